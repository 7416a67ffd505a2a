//! Servers that stall, send too much, redirect, or send invalid file names.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use oci_hooks_host::processes::ProcessSnapshot;
use oci_hooks_testsupport::git;
use oci_hooks_testsupport::http::{Gate, WebRequest, WebResponse, WebServer};
use oci_hooks_testsupport::program::wait_until;
use step_runner::resolve::{GitError, Interrupt};

use crate::git::setup::{TestRepository, text};

/// Serves a repository, with changed responses to requests for a pack.
fn serve(
    repository: &TestRepository,
    change: impl Fn(WebResponse) -> WebResponse + Send + Sync + 'static,
) -> WebServer {
    let root = repository.dir.path().to_owned();
    WebServer::start(move |request| {
        let response = git::answer(&root, request);
        if is_fetch(request) { change(response) } else { response }
    })
}

fn is_fetch(request: &WebRequest) -> bool {
    request.body.contains("command=fetch")
}

fn url(server: &WebServer) -> String {
    format!("http://{}/r.git", server.address())
}

/// Serves a repository whose pack stops in the middle until the gate is open.
fn serve_stalling(repository: &TestRepository) -> (WebServer, Gate) {
    let gate = Gate::default();
    let held = gate.clone();
    let server = serve(repository, move |response| {
        let half = response.body.len() / 2;
        WebResponse { held: Some((half, held.clone())), ..response }
    });
    (server, gate)
}

#[test]
fn stalled_pack_is_dropped_on_interrupt() {
    let repository = TestRepository::new();
    let (server, gate) = serve_stalling(&repository);
    let interrupt = Interrupt::new().unwrap();
    std::thread::scope(|scope| {
        let fetch = || {
            repository.fetch_with(&url(&server), "main", |git| {
                git.interrupt = interrupt.clone();
                git.timeout = Duration::from_secs(3600);
            })
        };
        let fetch = scope.spawn(fetch);
        gate.wait_until_reached();
        interrupt.set();
        let error = fetch.join().unwrap().unwrap_err();
        assert!(matches!(error, GitError::Interrupted), "{error}");
    });
    gate.open();
    assert_eq!(text(&repository.fetch(&url(&server), "main").unwrap()), "three");
}

#[test]
fn stalled_pack_is_dropped_after_the_fetch_timeout() {
    let repository = TestRepository::new();
    let (server, gate) = serve_stalling(&repository);
    let second = Duration::from_secs(1);
    let error = repository.fetch_with(&url(&server), "main", |git| git.timeout = second);
    let error = error.unwrap_err();
    assert!(matches!(error, GitError::TimedOut { seconds: 1, .. }), "{error}");
    gate.open();
}

#[test]
fn git_ends_with_a_killed_program() {
    let repository = TestRepository::new();
    let (server, gate) = serve_stalling(&repository);
    let address = server.address().to_string();
    let mut program = Command::new(env!("CARGO_BIN_EXE_step-runner"))
        .args(["run", "--git-url", &url(&server), "--git-rev", "main"])
        .env("XDG_CACHE_HOME", repository.cache())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    gate.wait_until_reached();
    let runs = |text: &str| ProcessSnapshot::ids().any(|id| has_arguments(id, &[&address, text]));
    assert!(runs("--git-dir="));
    program.kill().unwrap();
    program.wait().unwrap();
    wait_until("the end of git", || !runs("--git-dir="));
    // `git-remote-http` notices it only when the server sends the rest.
    gate.open();
    wait_until("the end of the connection", || !runs(""));
}

/// Returns whether the command line of a process contains these texts.
fn has_arguments(id: u32, texts: &[&str]) -> bool {
    let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line);
    texts.iter().all(|text| line.contains(text))
}

#[test]
fn wait_for_another_fetch_can_be_interrupted() {
    let repository = TestRepository::new();
    let (server, gate) = serve_stalling(&repository);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| repository.fetch(&url(&server), "main"));
        gate.wait_until_reached();
        let interrupt = Interrupt::new().unwrap();
        interrupt.set();
        let second =
            repository.fetch_with(&url(&server), "v1", |git| git.interrupt = interrupt.clone());
        assert!(matches!(second, Err(GitError::Interrupted)));
        gate.open();
        assert_eq!(text(&first.join().unwrap().unwrap()), "three");
    });
}

#[test]
fn oversized_repository_is_rejected_at_the_limit() {
    let repository = TestRepository::new();
    let mut noise = vec![0; 4 << 20];
    fastrand::Rng::with_seed(1).fill(&mut noise);
    fs::write(repository.path().join("noise"), noise).unwrap();
    repository.commit("noise");
    let server = repository.serve(None);
    let fetch =
        |bytes| repository.fetch_with(&url(&server), "main", |git| git.max_file_bytes = bytes);
    let error = fetch(1 << 20).unwrap_err().to_string();
    assert!(error.ends_with("; pack files can have at most 1MiB"), "{error}");
    assert_eq!(text(&fetch(8 << 20).unwrap()), "noise");
}

#[test]
fn files_that_unpack_to_an_oversized_checkout_are_rejected() {
    let repository = TestRepository::new();
    fs::write(repository.path().join("zeros"), vec![0; 4 << 20]).unwrap();
    repository.commit("zeros");
    let server = repository.serve(None);
    let fetch =
        |bytes| repository.fetch_with(&url(&server), "main", |git| git.max_file_bytes = bytes);
    let error = fetch(1 << 20).unwrap_err().to_string();
    assert!(error.ends_with(": a file of the repository is larger than 1MiB"), "{error}");
    assert_eq!(text(&fetch(8 << 20).unwrap()), "zeros");
}

#[test]
fn server_may_redirect_to_the_repository() {
    let repository = TestRepository::new();
    let real = repository.serve(None);
    let place = real.address();
    let server = WebServer::start(move |request| {
        let path = request.path.replace("/short/", "/r.git/");
        WebResponse::redirect(format!("http://{place}{path}"))
    });
    let short = format!("http://{}/short", server.address());
    assert_eq!(text(&repository.fetch(&short, "main").unwrap()), "three");
    assert!(!real.requests().is_empty());
}

#[test]
fn server_messages_cannot_control_the_terminal() {
    let repository = TestRepository::new();
    let server = serve(&repository, |response| {
        let body = b"0021ERR \x1b[2Jgo\r away\x07 and stay!\n0000";
        WebResponse { body: body.to_vec(), ..response }
    });
    let error = repository.fetch(&url(&server), "main").unwrap_err().to_string();
    assert!(!error.contains(char::is_control), "{error:?}");
}

/// Entries of a tree: mode, name and object id.
type TreeEntries<'a> = &'a [(&'a str, &'a str, &'a str)];

/// Creates a tree object without git's validity checks.
fn tree(repository: &TestRepository, entries: TreeEntries<'_>) -> String {
    let mut raw = Vec::new();
    for (mode, name, id) in entries {
        raw.extend(format!("{mode} {name}\0").into_bytes());
        let digits: Vec<_> = id.as_bytes().chunks(2).collect();
        raw.extend(
            digits
                .iter()
                .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()),
        );
    }
    object(repository, "tree", &raw)
}

fn object(repository: &TestRepository, kind: &str, content: &[u8]) -> String {
    use std::io::Write as _;
    let mut child = Command::new("git")
        .args(["hash-object", "-w", "--literally", "--stdin", "-t", kind])
        .current_dir(repository.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("git is installed");
    child.stdin.take().unwrap().write_all(content).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn hostile_git_trees_write_nothing_outside_the_checkout() {
    let repository = TestRepository::new();
    let server = repository.serve(None);
    let outside = repository.dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let blob = object(&repository, "blob", b"evil");
    let link = object(&repository, "blob", outside.to_str().unwrap().as_bytes());
    let file = tree(&repository, &[("100644", "file", &blob)]);
    let trees = [
        vec![("100644", ".git", blob.as_str())],
        vec![("40000", ".GIT", file.as_str())],
        vec![("40000", "..", file.as_str())],
        vec![("100644", "../file", blob.as_str())],
        vec![("120000", "dir", link.as_str()), ("40000", "dir", file.as_str())],
        vec![("120000", "file", link.as_str()), ("100644", "file", blob.as_str())],
    ];
    for (index, entries) in trees.iter().enumerate() {
        let root = tree(&repository, entries);
        let commit = repository.git(&["commit-tree", "-m", "evil", &root]);
        let name = format!("evil{index}");
        repository.git(&["update-ref", &format!("refs/heads/{name}"), &commit]);
        let fetched = repository.fetch(&url(&server), &name);
        // Git writes only one of two entries with the same name.
        if index < 4 {
            let error = fetched.unwrap_err();
            assert!(matches!(error, GitError::Failed { .. } | GitError::Path(_)), "{error}");
        }
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "{entries:?}");
        assert!(!Path::new(&repository.cache()).join("file").exists());
    }
    // Other revisions can still be fetched.
    assert_eq!(text(&repository.fetch(&url(&server), "main").unwrap()), "three");
}

#[test]
fn number_of_checked_out_files_is_limited() {
    let repository = TestRepository::new();
    let server = repository.serve(None);
    let mut id = object(&repository, "blob", b"x");
    let mut mode = "100644";
    // 10 to the power of 12 files.
    for _ in 0..12 {
        let names: Vec<_> = (0..10).map(|name| name.to_string()).collect();
        let entries: Vec<_> = names.iter().map(|name| (mode, name.as_str(), id.as_str())).collect();
        id = tree(&repository, &entries);
        mode = "40000";
    }
    let commit = repository.git(&["commit-tree", "-m", "bomb", &id]);
    repository.git(&["update-ref", "refs/heads/bomb", &commit]);
    // Git cannot list them all in a second.
    let start = Instant::now();
    let second = Duration::from_secs(1);
    let fetched = repository.fetch_with(&url(&server), "bomb", |git| git.timeout = second);
    assert!(matches!(fetched, Err(GitError::TimedOut { .. } | GitError::Failed { .. })));
    assert!(start.elapsed() < oci_hooks_testsupport::program::DEADLINE);
    let left = Mutex::new(Vec::new());
    for entry in fs::read_dir(repository.cache()).unwrap() {
        for entry in fs::read_dir(entry.unwrap().path()).unwrap() {
            left.lock().unwrap().push(entry.unwrap().file_name());
        }
    }
    assert_eq!(*left.lock().unwrap(), ["lock"]);
}
