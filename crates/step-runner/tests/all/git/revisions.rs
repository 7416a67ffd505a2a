//! Resolution of revisions, and the cache of repositories.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use oci_hooks_testsupport::http::{WebResponse, WebServer};
use step_runner::resolve::GitError;

use crate::git::setup::{TestRepository, text};

#[test]
fn tags_branches_and_commits_are_found() {
    let repository = TestRepository::new();
    let server = repository.serve(None);
    let url = format!("http://{}/r.git", server.address());
    let commits = repository.commits.lock().unwrap().clone();
    for (rev, expected) in [
        ("v1", "one"),
        ("v1a", "one"),
        ("main", "three"),
        ("feature/x", "two"),
        (&commits[0], "one"),
        (&commits[1].to_uppercase(), "two"),
        (&commits[2][..8], "three"),
        (&commits[1][..12], "two"),
    ] {
        let tree = repository.fetch(&url, rev).unwrap();
        assert_eq!(text(&tree), expected, "{rev}");
        assert!(commits.iter().any(|commit| tree.ends_with(commit)), "{}", tree.display());
        assert!(!tree.join(".git").exists());
    }
}

#[test]
fn commits_that_no_branch_ends_in_are_found_by_their_first_digits() {
    let repository = TestRepository::new();
    repository.commit("four");
    let server = repository.serve(None);
    let url = format!("http://{}/r.git", server.address());
    let commit = repository.commits.lock().unwrap()[2].clone();
    assert_eq!(text(&repository.fetch(&url, &commit[..8]).unwrap()), "three");
}

#[test]
fn missing_revision_is_not_found() {
    let repository = TestRepository::new();
    let server = repository.serve(None);
    let url = format!("http://{}/r.git", server.address());
    let commit = repository.commits.lock().unwrap()[2].clone();
    for rev in [
        "nope",
        "",
        "--all",
        "v*",
        "main~1",
        "v1^{tree}",
        "refs/heads/main",
        "HEAD:text",
        "0123456789abcdef",
        &"0".repeat(40),
        &commit[..7],
    ] {
        let error = repository.fetch(&url, rev).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot find version {rev:?}"));
    }
    let error = repository.fetch(&url, ".git").unwrap_err();
    assert_eq!(error.to_string(), ".git version not allowed");
    let url = format!("http://{}/none.git", server.address());
    let error = repository.fetch(&url, "main").unwrap_err();
    assert!(error.to_string().starts_with(&format!("cannot fetch {url}: repository ")), "{error}");
    assert!(error.to_string().ends_with("not found"), "{error}");
}

#[test]
fn renamed_branch_does_not_affect_later_fetches() {
    let repository = TestRepository::new();
    let server = repository.serve(None);
    let url = format!("http://{}/r.git", server.address());
    repository.git(&["branch", "topic"]);
    let commits = repository.commits.lock().unwrap().clone();
    repository.commit("four");
    assert_eq!(text(&repository.fetch(&url, &commits[2][..8]).unwrap()), "three");
    repository.git(&["branch", "--delete", "--force", "topic"]);
    repository.git(&["branch", "topic/a"]);
    assert_eq!(text(&repository.fetch(&url, &commits[1][..9]).unwrap()), "two");
}

#[test]
fn sha256_repositories_are_supported() {
    let repository = TestRepository::with_format("sha256");
    let server = repository.serve(None);
    let url = format!("http://{}/r.git", server.address());
    let commits = repository.commits.lock().unwrap().clone();
    assert_eq!(commits[0].len(), 64);
    for (rev, expected) in [("v1a", "one"), (&*commits[1], "two"), (&commits[1][..48], "two")] {
        assert_eq!(text(&repository.fetch(&url, rev).unwrap()), expected, "{rev}");
    }
}

#[test]
fn moving_branch_is_followed_and_old_commits_stay_cached() {
    let repository = TestRepository::new();
    let server = repository.serve(None);
    let url = format!("http://{}/r.git", server.address());
    let before = repository.fetch(&url, "main").unwrap();
    repository.commit("four");
    let after = repository.fetch(&url, "main").unwrap();
    assert_eq!((text(&before).as_str(), text(&after).as_str()), ("three", "four"));
}

#[test]
fn commit_is_fetched_alone_and_once() {
    let repository = TestRepository::new();
    let server = repository.serve(None);
    let url = format!("http://{}/r.git", server.address());
    let tree = repository.fetch(&url, "main").unwrap();
    let asked = server.requests().iter().any(|request| request.body.contains("deepen 1"));
    assert!(asked);

    let posts = || server.requests().iter().filter(|r| r.path.contains("upload-pack")).count();
    let before = posts();
    let commit = repository.commits.lock().unwrap()[2].clone();
    assert_eq!(repository.fetch(&url, &commit).unwrap(), tree);
    assert_eq!(posts(), before);
    // A branch name is looked up on the server.
    assert_eq!(repository.fetch(&url, "main").unwrap(), tree);
    assert!(posts() > before);
}

#[test]
fn files_keep_what_makes_them_programs_and_links() {
    let repository = TestRepository::new();
    let program = repository.path().join("run");
    fs::write(&program, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink("run", repository.path().join("link")).unwrap();
    repository.commit("four");
    let server = repository.serve(None);
    let tree = repository.fetch(&format!("http://{}/r.git", server.address()), "main").unwrap();
    assert!(fs::metadata(tree.join("run")).unwrap().permissions().mode() & 0o100 != 0);
    assert_eq!(fs::read_link(tree.join("link")).unwrap().to_str(), Some("run"));
}

#[test]
fn many_concurrent_fetches_succeed() {
    let repository = TestRepository::new();
    let server = repository.serve(None);
    let url = format!("http://{}/r.git", server.address());
    let trees: BTreeSet<_> = std::thread::scope(|scope| {
        let fetches: Vec<_> = (0..8)
            .map(|index| {
                let rev = if index % 2 == 0 { "main" } else { "v1" };
                let (repository, url) = (&repository, &url);
                scope.spawn(move || repository.fetch(url, rev).unwrap())
            })
            .collect();
        fetches.into_iter().map(|fetch| fetch.join().unwrap()).collect()
    });
    let texts: Vec<_> = trees.iter().map(|tree| text(tree)).collect();
    assert_eq!(texts.iter().collect::<BTreeSet<_>>().len(), 2);
    assert_eq!(texts.len(), 2);
}

#[test]
fn leftovers_of_a_killed_fetch_do_not_block_the_next() {
    let repository = TestRepository::new();
    let server = repository.serve(None);
    let url = format!("http://{}/r.git", server.address());
    let tree = repository.fetch(&url, "v1").unwrap();
    let dir = tree.parent().unwrap();
    fs::create_dir(dir.join("scratch.git")).unwrap();
    fs::write(dir.join("scratch.git/shallow.lock"), "").unwrap();
    fs::create_dir(dir.join("half")).unwrap();
    fs::write(dir.join("half/text"), "half").unwrap();
    assert_eq!(text(&repository.fetch(&url, "main").unwrap()), "three");
}

#[test]
fn silent_server_is_not_waited_for() {
    let repository = TestRepository::new();
    let (release, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let server = WebServer::start(move |_| {
        let _ = wait.lock().unwrap().recv();
        WebResponse::status(500)
    });
    let url = format!("http://{}/r.git", server.address());
    let second = Duration::from_secs(1);
    let error = repository.fetch_with(&url, "main", |git| git.timeout = second).unwrap_err();
    assert!(matches!(error, GitError::TimedOut { seconds: 1, .. }), "{error}");
    drop(release);
}

#[test]
fn git_environment_variables_have_no_effect() {
    let repository = TestRepository::new();
    let server = repository.serve(None);
    let made = repository.dir.path().join("made");
    let env = repository.env_with(&[
        ("GIT_DIR", "/nowhere"),
        ("GIT_INDEX_FILE", "/nowhere"),
        ("GIT_CONFIG_COUNT", "1"),
        ("GIT_CONFIG_KEY_0", "core.sshCommand"),
        ("GIT_CONFIG_VALUE_0", "touch"),
        ("GIT_TRACE", made.to_str().unwrap()),
    ]);
    let url = format!("http://{}/r.git", server.address());
    let tree = repository.fetch_with(&url, "main", |git| git.env = env.clone()).unwrap();
    assert_eq!(text(&tree), "three");
    assert!(!made.exists());
}

#[test]
fn repositories_on_this_machine_must_be_asked_for() {
    let repository = TestRepository::new();
    let url = format!("file://{}", repository.path().display());
    let error = repository.fetch(&url, "main").unwrap_err();
    assert!(matches!(error, GitError::Url { .. }), "{error}");
    let tree = repository.fetch_with(&url, "v1a", |git| git.files = true).unwrap();
    assert_eq!(text(&tree), "one");
}
