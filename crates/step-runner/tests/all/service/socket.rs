//! Access control of the socket: clients that may connect, and servers that clients accept.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::{Command, Stdio};

use oci_hooks_testsupport::program::{require_root, run, temporary_directory};
use rustix::process::Signal;

use crate::service::setup::{PROGRAM, ServerFixture, block_on, output};

#[test]
fn socket_and_its_directories_are_private() {
    let server = ServerFixture::start();
    assert_eq!(fs::symlink_metadata(server.socket()).unwrap().mode() & 0o777, 0o600);
    let private = fs::read_dir(server.tmp()).unwrap().next().unwrap().unwrap().path();
    assert_eq!(private.metadata().unwrap().mode() & 0o777, 0o700);
    for entry in fs::read_dir(private).unwrap() {
        assert_eq!(entry.unwrap().metadata().unwrap().mode() & 0o777, 0o700);
    }
}

#[test]
fn default_socket_is_in_a_user_directory() {
    let dir = temporary_directory();
    let uid = rustix::process::geteuid().as_raw();
    let cases = [
        ("XDG_RUNTIME_DIR", dir.path().join("step-runner/step-runner.sock")),
        ("TMPDIR", dir.path().join(format!("step-runner-{uid}/step-runner.sock"))),
        ("STEP_RUNNER_SOCKET", dir.path().join("mine.sock")),
    ];
    for (name, socket) in cases {
        let value = if name == "STEP_RUNNER_SOCKET" { &socket } else { dir.path() };
        let mut command = Command::new(PROGRAM);
        command.env_clear().env("TMPDIR", dir.path()).env(name, value);
        // The server exits with the command, which sees the socket.
        let script = "stat -c '%a %F' \"$STEP_RUNNER_SOCKET\"; exit 5";
        let done = run(command.args(["serve", "--", "/bin/sh", "-c", script]));
        assert_eq!(done.status.code(), Some(5), "{}", done.stderr);
        assert_eq!(done.stdout, "600 socket\n");
        let ready = format!("step-runner is listening on socket {}\n", socket.display());
        assert_eq!(done.stderr, ready);
        assert!(!socket.exists());
    }
}

#[test]
fn directory_of_another_user_is_not_used() {
    require_root();
    let dir = temporary_directory();
    let private = dir.path().join("step-runner-0");
    fs::create_dir(&private).unwrap();
    std::os::unix::fs::chown(&private, Some(12345), None).unwrap();
    let mut command = Command::new(PROGRAM);
    command.env_clear().env("TMPDIR", dir.path()).arg("serve");
    let error = run(&mut command).failure();
    assert!(error.contains("is owned by user 12345"), "{error}");
    fs::remove_dir(&private).unwrap();
    let elsewhere = dir.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &private).unwrap();
    let error = run(&mut command).failure();
    assert!(error.starts_with("error: cannot open "), "{error}");
}

#[test]
fn lock_or_socket_of_another_user_is_reported() {
    require_root();
    let dir = temporary_directory();
    let shared = dir.path().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
    let socket = shared.join("step-runner.sock");
    let lock = shared.join(".step-runner.sock.lock");
    let mut serve = Command::new(PROGRAM);
    serve.env_clear().env("TMPDIR", dir.path()).arg("serve").arg(&shared);
    serve.args(["--", "/bin/true"]);

    // A lock held by another user's process is not mistaken for another server.
    fs::write(&lock, "").unwrap();
    std::os::unix::fs::chown(&lock, Some(12345), None).unwrap();
    let held = fs::File::open(&lock).unwrap();
    held.lock().unwrap();
    let error = run(&mut serve).failure();
    let expected = format!(
        "error: cannot use the lock file {}: it belongs to user 12345, who could hold the lock for \
         ever: remove it, or use a directory where no other user can create files\n",
        lock.display()
    );
    assert_eq!(error, expected);
    fs::remove_file(&lock).unwrap();
    fs::create_dir(&lock).unwrap();
    std::os::unix::fs::chown(&lock, Some(12345), None).unwrap();
    assert_eq!(run(&mut serve).failure(), expected);
    fs::remove_dir(&lock).unwrap();

    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    std::os::unix::fs::lchown(&socket, Some(12345), None).unwrap();
    let expected = format!("error: socket {} is owned by user 12345: ", socket.display());
    for _ in 0..2 {
        let error = run(&mut serve).failure();
        assert!(error.starts_with(&expected), "{error}");
        assert!(socket.exists());
    }
    drop(listener);
    fs::remove_file(&socket).unwrap();

    assert_eq!(run(&mut serve).status.code(), Some(0));
    assert_eq!(fs::metadata(&lock).unwrap().mode() & 0o777, 0o600);
}

#[test]
fn downloads_are_not_cached_in_a_directory_of_another_user() {
    require_root();
    let dir = temporary_directory();
    let private = dir.path().join("step-runner-0");
    fs::create_dir(&private).unwrap();
    fs::write(dir.path().join("step.yml"), "spec: {}\n---\nrun: []\n").unwrap();
    let mut command = Command::new(PROGRAM);
    command.env_clear().env("TMPDIR", dir.path()).arg("run").arg(dir.path());
    std::os::unix::fs::chown(&private, Some(12345), None).unwrap();
    let error = run(&mut command).failure();
    assert!(error.contains("is owned by user 12345, not by this user"), "{error}");
    std::os::unix::fs::chown(&private, Some(0), None).unwrap();
    assert!(!run(&mut command).stderr.contains("is owned by"));
}

#[test]
fn other_users_are_rejected_whatever_the_mode() {
    require_root();
    block_on(async {
        let mut server = ServerFixture::start();
        fs::set_permissions(server.dirs.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(server.socket(), fs::Permissions::from_mode(0o666)).unwrap();
        // A copy that the other user can execute.
        let program = server.dirs.path().join("step-runner");
        oci_hooks_testsupport::program::copy_program(PROGRAM.as_ref(), &program);
        let mut proxy = Command::new("setpriv");
        proxy.args(["--reuid", "12345", "--regid", "12345", "--clear-groups"]);
        proxy.arg(&program).arg("proxy").arg("--socket").arg(server.socket());
        let mut proxy = proxy
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let open = proxy.stdin.take();
        let done = proxy.wait_with_output().unwrap();
        drop(open);
        assert_eq!(done.stdout, b"");
        assert!(String::from_utf8_lossy(&done.stderr).starts_with("error: "), "{done:?}");

        // Permitted users are not affected.
        server.gitlab().run(server.script("1", "true")).await.unwrap();
        output(&mut server.gitlab(), "1").await;
        server.signal(Signal::TERM);
        assert!(server.read_output().contains("rejected connection from user 12345"));
        assert!(server.wait_for_exit().success());
    });
}

#[test]
fn proxy_sends_nothing_to_a_server_of_another_user() {
    require_root();
    let dir = temporary_directory();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = dir.path().join("step-runner");
    oci_hooks_testsupport::program::copy_program(PROGRAM.as_ref(), &program);
    let socket = dir.path().join("step-runner.sock");
    // The socket's file belongs to the other user, but root's process listens: the file's owner does not matter.
    let mut listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    std::os::unix::fs::lchown(&socket, Some(12345), None).unwrap();
    for (uid, is_told) in [("12345", true), ("0", true), ("12345", false)] {
        if !is_told {
            // Clients see the user who called `listen`.
            fs::remove_file(&socket).unwrap();
            listener = listen_as(23456, &socket);
        }
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
        let mut proxy = Command::new("setpriv");
        proxy.args(["--reuid", uid, "--regid", uid, "--clear-groups"]);
        proxy.arg(&program).arg("proxy").arg("--socket").arg(&socket);
        let mut proxy = proxy
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // The proxy may have exited.
        let _ = proxy.stdin.take().unwrap().write_all(b"secret");
        let done = proxy.wait_with_output().unwrap();
        let (mut taken, _) = listener.accept().unwrap();
        let mut told = String::new();
        taken.read_to_string(&mut told).unwrap();
        let stderr = String::from_utf8_lossy(&done.stderr);
        assert_eq!(told, if is_told { "secret" } else { "" }, "{uid}: {stderr}");
        assert_eq!(done.status.success(), is_told, "{uid}: {stderr}");
        assert_eq!(stderr.contains("the server runs as user 23456"), !is_told, "{stderr}");
    }
}

/// Listens on a socket as another user, without another process.
fn listen_as(uid: u32, socket: &std::path::Path) -> std::os::unix::net::UnixListener {
    let socket = socket.to_owned();
    let listen = move || {
        let uid = rustix::process::Uid::from_raw(uid);
        let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
        // Changes the user of this thread only, which ends here. `listen` updates the listener's credentials.
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        rustix::net::listen(&listener, 8).unwrap();
        listener
    };
    std::thread::spawn(listen).join().unwrap()
}

#[test]
fn one_of_two_servers_wins() {
    let server = ServerFixture::start();
    let error = run(server.command().stdin(Stdio::null())).failure();
    assert_eq!(
        error,
        format!("error: socket {} is in use by another server\n", server.socket().display())
    );
    // Even after its socket is removed, a server keeps the lock on its state directory.
    fs::remove_file(server.socket()).unwrap();
    assert!(run(&mut server.command()).failure().starts_with("error: socket "));
    let mut elsewhere = server.command();
    elsewhere.args(["--state-dir"]).arg(server.dirs.path().join("tmp"));
    run(&mut elsewhere).failure();
}
