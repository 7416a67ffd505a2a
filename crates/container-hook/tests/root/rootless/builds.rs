//! Dockerfile actions of rootless jobs, built below the job's pause process with access only to host
//! programs.

use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use oci_hooks_testsupport::github_runner::{InstalledHook as _, built_step};
use oci_hooks_testsupport::http::{WebResponse, WebServer};
use oci_hooks_testsupport::leftovers::{InstalledProgram as _, LeftoverSnapshot};
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::world::OWN;

use crate::rootless::setup::{UserKind, with_each};

#[test]
fn dockerfile_reaches_neither_user_files_nor_host_network() {
    with_each(&UserKind::ROOTLESS, "", |installation| {
        let mut runner = installation.runner("runner-1");
        let user = installation.user.expect("it is not root");
        let secret = user.home.join("secret");
        installation.write(&secret, "secret\n");
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        let action = runner.work().join("_actions/octo/docker-action/v1");
        let reached = [
            secret.clone(),
            user.home.clone(),
            runner.work(),
            user.data(),
            user.run_directory(),
            installation.jobs_directory(),
            format!("/proc/1/root{}", secret.display()).into(),
            "/proc/1/cwd/etc".into(),
            installation.entry(),
        ];
        let reached = reached.map(|path| path.display().to_string()).join(" ");
        installation.write(
            action.join("Dockerfile"),
            &format!(
                "FROM alpine:3.20\n\
                 RUN for path in {reached}; do ! ls -a $path || exit 9; done 2>/dev/null\n\
                 RUN for pid in /proc/[0-9]*; do ! grep -qa '[R]unner' $pid/cmdline || exit 8; done\n\
                 RUN ! grep -q -E '^ *(out|provider):' /proc/net/dev\n\
                 ENTRYPOINT [\"echo\", \"nothing reached\"]\n"
            ),
        );
        runner.prepare(runner.job_container("node:22"), &[]);
        let ended = runner.container_step(built_step(&action.join("Dockerfile"))).0.success();
        assert!(ended.stdout().ends_with("nothing reached\n"), "{}", ended.log());
        runner.cleanup();
        assert_eq!(user.find_foreign_files(installation.world, &runner.work()), "");
    });
}

#[test]
fn dockerfile_reaches_no_host_server_or_file() {
    with_each(&UserKind::ROOTLESS, "", |installation| {
        let host = installation.host();
        host.shell(
            "ip addr add 169.254.169.254/32 dev lo; mkdir -m 755 /run/canary; echo secret >/run/canary/file",
        );
        let name = SocketAddr::from_abstract_name(program::unique_name()).unwrap();
        let abstract_name = String::from_utf8_lossy(name.as_abstract_name().unwrap()).into_owned();
        let _abstract = host.enter(|| UnixListener::bind_addr(&name)).unwrap();
        let listener = host.enter(|| TcpListener::bind("0.0.0.0:0")).unwrap();
        let server = WebServer::start_at(listener, None, |_| WebResponse::ok("secret"));
        let port = server.port();
        let mut runner = installation.runner("runner-1");
        let action = runner.work().join("_actions/octo/docker-action/v1");
        // Addresses of the host in pasta and slirp4netns, and the cloud metadata address.
        let addresses = ["127.0.0.1", "169.254.169.254", OWN, "192.0.2.1", "10.0.2.2"];
        for address in &addresses[..3] {
            let dockerfile = action.join(address).join("Dockerfile");
            let text = format!("FROM alpine:3.20\nADD http://{address}:{port}/file /file\n");
            installation.write(&dockerfile, &text);
            runner.container_step(built_step(&dockerfile)).0.failure();
        }
        let (all, up) = (addresses.join(" "), "../".repeat(12));
        installation.write(
            action.join("Dockerfile"),
            &format!(
                "FROM alpine:3.20 AS evil\nRUN ln -s / /link\nFROM alpine:3.20\n\
                 RUN for at in {all}; do ! nc -w 2 $at {port} </dev/null || exit 9; done\n\
                 RUN ! grep {abstract_name} /proc/net/unix\n\
                 RUN --mount=type=cache,id={up}run/canary,target=/mnt ! cat /mnt/file\n\
                 RUN --mount=type=bind,from=evil,source=/link,target=/mnt,rw ! cat /mnt/run/canary/file\n\
                 ENTRYPOINT [\"echo\", \"nothing reached\"]\n"
            ),
        );
        let ended = runner.container_step(built_step(&action.join("Dockerfile"))).0.success();
        assert!(ended.stdout().ends_with("nothing reached\n"), "{}", ended.log());
        assert!(!ended.log().contains("secret"), "{}", ended.log());
        let own = host.enter(|| TcpStream::connect(("127.0.0.1", port))).unwrap();
        assert_eq!(server.connections_before(own), 0, "requests came");
    });
}

#[test]
fn base_image_has_the_files_of_its_layers() {
    with_each(&UserKind::ALL, "", |installation| {
        let mut runner = installation.runner("runner-1");
        let dockerfile = runner.workspace().join("Dockerfile");
        let mut build = |text: &str| {
            installation.write(&dockerfile, text);
            let ended = runner.container_step(built_step(&dockerfile)).0.success();
            let stdout = ended.stdout();
            let (_, output) = stdout.split_once("begin\n").expect("the image ran");
            output.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        let files = build(
            "FROM test/layers:1\nRUN (ls /opt /srv; ! ls /gone 2>/dev/null) >/listed\n\
             RUN rm -r /opt && mkdir /opt && touch /opt/more\n\
             ENTRYPOINT [\"sh\", \"-c\", \"echo begin; cat /etc/same /listed; ls /opt /srv\"]\n",
        );
        let expected = "same /opt: own /srv: new /opt: more /srv: new";
        assert_eq!(files.join(" "), expected);
        let files = build(
            "FROM test/layers:anew\nRUN ls / >/listed\n\
             ENTRYPOINT [\"sh\", \"-c\", \"echo begin; ls / /bin\"]\nRUN ! test -e /srv && ! test -e /opt\n",
        );
        assert!(
            ["busybox", "ls", "sh", "listed"].iter().all(|name| files.contains(&name.to_string()))
        );
        assert!(
            !["opt", "srv", "bash"].iter().any(|name| files.contains(&name.to_string())),
            "{files:?}"
        );
        runner.cleanup();
    });
}

#[test]
fn cancelled_build_ends_in_time_and_leaves_nothing() {
    cancel_build("echo start\"ed\"; sleep 1000");
}

#[test]
fn cancelled_build_that_ignores_signals_ends_in_time_and_leaves_nothing() {
    cancel_build("trap '' INT TERM; echo start\"ed\"; while :; do sleep 1; done");
}

/// Cancels the build of a Dockerfile that runs a script, once the script prints `started`. The script must
/// not contain that word, because buildah prints the script first.
fn cancel_build(script: &str) {
    with_each(&UserKind::ROOTLESS, "", |installation| {
        let mut runner = installation.runner("runner-1");
        let dockerfile = runner.workspace().join("Dockerfile");
        let before = LeftoverSnapshot::take(installation);
        installation.write(&dockerfile, &format!("FROM alpine:3.20\nRUN {script}\n"));
        // Once in a step without a job, and once in a job.
        let mut call = runner.start_container_step(built_step(&dockerfile));
        call.wait_for_line("started");
        let (ended, signals) = call.cancel();
        assert!(!ended.status.success() && signals < 3, "{signals} signals: {}", ended.log());
        before.check_live(installation, script);
        runner.prepare(runner.job_container("node:22"), &[]);
        let mut call = runner.start_container_step(built_step(&dockerfile));
        call.wait_for_line("started");
        let (ended, signals) = call.cancel();
        assert!(!ended.status.success() && signals < 3, "{signals} signals: {}", ended.log());
        runner.run("echo the container is still there").success();
        runner.cleanup();
        before.check_live(installation, script);
    });
}
