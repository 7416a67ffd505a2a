//! The program `git`: its absence, the user's settings, certificates.

use std::fs;
use std::os::unix::fs::symlink;

use oci_hooks_testsupport::certificates::TestCertificates;
use oci_hooks_testsupport::git;
use oci_hooks_testsupport::http::WebServer;
use oci_hooks_testsupport::program::find;

use crate::git::setup::{TestRepository, text};

#[test]
fn missing_git_is_an_error_that_names_the_other_way() {
    let repository = TestRepository::new();
    let env = repository.env_with(&[("PATH", "/nowhere")]);
    let error = repository.fetch_with("https://host.example/r.git", "v1", |git| git.env = env);
    assert_eq!(
        error.unwrap_err().to_string(),
        "git not found in PATH \"/nowhere\": install git, or refer to the step as an OCI image, which needs no other \
         program"
    );
}

#[test]
fn git_beside_the_program_is_used_if_path_has_none() {
    let repository = TestRepository::new();
    let server = repository.serve(None);
    let url = format!("http://{}/r.git", server.address());
    let beside = repository.dir.path().join("git");
    symlink(find("git"), &beside).unwrap();
    let env = repository.env_with(&[("PATH", "/nowhere")]);
    let tree = repository.fetch_with(&url, "main", |git| {
        git.env = env;
        git.fallback_git = Some(beside.clone());
    });
    assert_eq!(text(&tree.unwrap()), "three");
}

#[test]
fn git_settings_of_the_user_are_in_force() {
    let repository = TestRepository::new();
    let server = repository.serve(None);
    let settings =
        format!("[url \"http://{}/\"]\n\tinsteadOf = https://host.example/\n", server.address());
    fs::write(repository.home().join(".gitconfig"), settings).unwrap();
    let url = "https://host.example/r.git";
    assert_eq!(text(&repository.fetch(url, "main").unwrap()), "three");
}

#[test]
fn submodules_are_empty_directories() {
    let repository = TestRepository::new();
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
    let repository = TestRepository::new();
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
    for name in ["SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"] {
        let env = repository.env_with(&[(name, authorities.to_str().unwrap())]);
        let tree = repository.fetch_with(&url, "main", |git| git.env = env.clone()).unwrap();
        assert_eq!(text(&tree), "three");
    }
}
