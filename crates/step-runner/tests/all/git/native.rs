//! Fetches without the program `git`, and fetches that need it.

use std::fs;

use oci_hooks_testsupport::certificates::TestCertificates;
use oci_hooks_testsupport::git;
use oci_hooks_testsupport::http::{WebResponse, WebServer};
use step_runner::resolve::{GitError, GitMethod};

use crate::git::setup::{TestRepository, text};

#[test]
fn repositories_are_fetched_without_git() {
    let repository = TestRepository::new(GitMethod::Auto);
    let server = repository.serve(None);
    let url = format!("http://{}/r.git", server.address());
    let env = repository.env_with(&[("PATH", "/nowhere")]);
    let fetch = |url: &str, rev| repository.fetch_with(url, rev, |git| git.env = env.clone());
    assert_eq!(text(&fetch(&url, "v1a").unwrap()), "one");
    let commit = repository.commits.lock().unwrap()[1].clone();
    assert_eq!(text(&fetch(&url, &commit[..9]).unwrap()), "two");
    // Other URLs require the program.
    let error = fetch("git@host.example:r.git", "main").unwrap_err();
    assert!(matches!(&error, GitError::NoProgram(path) if path == "/nowhere"), "{error}");
}

#[test]
fn servers_with_user_settings_are_left_to_git() {
    let repository = TestRepository::new(GitMethod::Auto);
    let server = repository.serve(None);
    let settings =
        format!("[url \"http://{}/\"]\n\tinsteadOf = https://host.example/\n", server.address());
    fs::write(repository.home().join(".gitconfig"), settings).unwrap();
    let url = "https://host.example/r.git";
    assert_eq!(text(&repository.fetch(url, "main").unwrap()), "three");
    assert!(mirrors(&repository) == 1);
}

#[test]
fn git_is_not_called_without_such_settings() {
    let repository = TestRepository::new(GitMethod::Auto);
    let server = repository.serve(None);
    fs::write(repository.home().join(".gitconfig"), "[user]\n\tname = me\n").unwrap();
    let url = format!("http://{}/r.git", server.address());
    assert_eq!(text(&repository.fetch(&url, "main").unwrap()), "three");
    assert!(mirrors(&repository) == 0);
}

/// Returns the number of mirrors created by git.
fn mirrors(repository: &TestRepository) -> usize {
    let dirs = fs::read_dir(repository.cache()).unwrap().map(|dir| dir.unwrap().path());
    dirs.filter(|dir| dir.join("mirror.git").exists()).count()
}

#[test]
fn servers_without_protocol_2_are_left_to_git() {
    let repository = TestRepository::new(GitMethod::Auto);
    let root = repository.dir.path().to_owned();
    let server = WebServer::start(move |request| {
        let mut request = request.clone();
        request.headers.retain(|(name, _)| name != "git-protocol");
        git::answer(&root, &request)
    });
    let url = format!("http://{}/r.git", server.address());
    assert_eq!(text(&repository.fetch(&url, "main").unwrap()), "three");
    let error = repository.fetch_with(&url, "v1", |git| git.method = GitMethod::Native);
    let error = error.unwrap_err().to_string();
    assert!(error.ends_with("does not know version 2 of git's protocol"), "{error}");
}

#[test]
fn server_without_git_is_an_error() {
    let repository = TestRepository::new(GitMethod::Native);
    let server = WebServer::start(|_| WebResponse::ok("<html>"));
    let url = format!("http://{}/r.git", server.address());
    assert!(matches!(repository.fetch(&url, "main"), Err(GitError::Outdated { .. })));
}

#[test]
fn sha256_repositories_are_supported() {
    let repository = TestRepository::with_format(GitMethod::Native, "sha256");
    let server = repository.serve(None);
    let url = format!("http://{}/r.git", server.address());
    let commits = repository.commits.lock().unwrap().clone();
    assert_eq!(commits[0].len(), 64);
    for (rev, expected) in [("v1a", "one"), (&commits[1], "two"), (&commits[1][..40], "two")] {
        let tree = repository.fetch(&url, rev);
        if rev.len() == 40 {
            // 40 digits are a complete commit id, of a SHA-1 repository.
            assert!(matches!(tree, Err(GitError::Version(_))));
        } else {
            assert_eq!(text(&tree.unwrap()), expected);
        }
    }
    assert_eq!(text(&repository.fetch(&url, &commits[1][..48]).unwrap()), "two");
}

#[test]
fn servers_that_reject_commit_ids_are_asked_for_refs() {
    let repository = TestRepository::new(GitMethod::Native);
    repository.commit("four");
    let commit = repository.commits.lock().unwrap()[2].clone();
    for filters in ["false", "true"] {
        repository.git(&["config", "uploadpack.allowFilter", filters]);
        let (root, wanted) = (repository.dir.path().to_owned(), format!("want {commit}"));
        let server = WebServer::start(move |request| {
            let response = git::answer(&root, request);
            if request.body.contains(&wanted) {
                let body = b"001fERR upload-pack: not our ref".to_vec();
                return WebResponse { body, ..response };
            }
            response
        });
        let url = format!("http://{}/r.git", server.address());
        for rev in [&commit[..], &commit[..8]] {
            assert_eq!(text(&repository.fetch(&url, rev).unwrap()), "three");
            fs::remove_dir_all(repository.cache()).unwrap();
        }
        let used = server.requests().iter().any(|request| request.body.contains("filter tree:0"));
        assert_eq!(used, filters == "true");
    }
}

#[test]
fn submodules_are_empty_directories() {
    let repository = TestRepository::new(GitMethod::Native);
    let commit = repository.commits.lock().unwrap()[0].clone();
    let entry = format!("160000,{commit},sub");
    repository.git(&["update-index", "--add", "--cacheinfo", &entry]);
    repository.git(&["commit", "--quiet", "--message=sub"]);
    let server = repository.serve(None);
    let url = format!("http://{}/r.git", server.address());
    let tree = repository.fetch(&url, "main").unwrap();
    assert_eq!(fs::read_dir(tree.join("sub")).unwrap().count(), 0);
}

#[test]
fn certificates_are_checked() {
    let repository = TestRepository::new(GitMethod::Native);
    let certificates = TestCertificates::shared();
    let root = repository.dir.path().to_owned();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = WebServer::start_at(listener, Some(certificates.tls()), move |request| {
        git::answer(&root, request)
    });
    let url = format!("https://{}/r.git", server.address());
    let error = repository.fetch(&url, "main").unwrap_err().to_string();
    assert!(error.contains("certificate"), "{error}");
    assert!(server.requests().is_empty());
    let authorities = certificates.authorities();
    let env = repository.env_with(&[("SSL_CERT_FILE", authorities.to_str().unwrap())]);
    let tree = repository.fetch_with(&url, "main", |git| git.env = env.clone()).unwrap();
    assert_eq!(text(&tree), "three");
}
