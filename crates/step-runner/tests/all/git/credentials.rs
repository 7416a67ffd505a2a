//! Passwords are sent only to their own server.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use oci_hooks_testsupport::http::{WebResponse, WebServer};
use step_runner::resolve::{GitCredential, Interrupt, ReferenceContext};

use crate::git::setup::{TestRepository, basic, text};

const SECRET: &str = "s3cr3t-token";

fn job(origin: String) -> Option<GitCredential> {
    let username = "gitlab-ci-token".to_owned();
    Some(GitCredential { origin, username, password: SECRET.to_owned() })
}

#[test]
fn token_is_sent_only_to_its_own_host() {
    let repository = TestRepository::new();
    let server = repository.serve(Some("gitlab-ci-token:s3cr3t-token"));
    let url = format!("http://{}/r.git", server.address());
    let here = job(format!("http://{}", server.address()));
    assert_eq!(text(&repository.fetch_as(here, &url, "main").unwrap()), "three");

    let other = TestRepository::new();
    let before = server.requests().len();
    let elsewhere = job("https://gitlab.example".to_owned());
    let error = other.fetch_as(elsewhere, &url, "main").unwrap_err().to_string();
    assert!(error.contains("could not read Username"), "{error}");
    let requests = server.requests();
    assert!(requests[before..].iter().all(|request| request.header("authorization").is_none()));
    assert!(!error.contains("CI_JOB_TOKEN"), "{error}");

    // The job's own server, but not encrypted.
    let host = server.address().to_string();
    let here = job(format!("https://{}", host.split(':').next().unwrap()));
    let error = other.fetch_as(here, &url, "main").unwrap_err().to_string();
    assert!(error.ends_with(": CI_JOB_TOKEN is sent over https only"), "{error}");
    let requests = server.requests();
    assert!(requests[before..].iter().all(|request| request.header("authorization").is_none()));
}

#[test]
fn token_does_not_follow_a_redirect() {
    let repository = TestRepository::new();
    let thief = WebServer::start(|_| {
        WebResponse::status(401).with("www-authenticate", "Basic realm=\"give me\"")
    });
    let place = thief.address();
    let server = WebServer::start(move |request| {
        WebResponse::redirect(format!("http://{place}{}", request.path))
    });
    let url = format!("http://{}/r.git", server.address());
    let credential = job(format!("http://{}", server.address()));
    let error = repository.fetch_as(credential, &url, "main").unwrap_err().to_string();
    assert!(!error.contains(SECRET), "{error}");
    let requests = thief.requests();
    assert!(!requests.is_empty());
    assert!(requests.iter().all(|request| request.header("authorization").is_none()));
}

#[test]
fn passwords_in_urls_are_in_no_argument_file_or_message() {
    let repository = TestRepository::new();
    // A git wrapper that records its arguments.
    let (bin, notes) = (repository.dir.path().join("bin"), repository.dir.path().join("notes"));
    fs::create_dir(&bin).unwrap();
    let path = std::env::var("PATH").unwrap();
    let script = format!(
        "#!/bin/sh\nprintf '%s\\n' \"$*\" >>{}\nPATH={path} exec git \"$@\"\n",
        notes.display()
    );
    fs::write(bin.join("git"), script).unwrap();
    fs::set_permissions(bin.join("git"), fs::Permissions::from_mode(0o755)).unwrap();
    let env = repository.env_with(&[("PATH", &format!("{}:{path}", bin.display()))]);

    let server = repository.serve(Some("a b:s3cr3t-token"));
    let fetch = |url: &str, rev| repository.fetch_with(url, rev, |git| git.env = env.clone());
    let url = format!("http://a%20b:s3cr3t-token@{}/r.git", server.address());
    assert_eq!(text(&fetch(&url, "main").unwrap()), "three");
    assert_eq!(
        server.requests().last().unwrap().header("authorization"),
        Some(&*basic("a b:s3cr3t-token"))
    );
    let wrong = format!("http://x:s3cr3t-token@{}/r.git", server.address());
    let error = fetch(&wrong, "v1").unwrap_err();
    assert!(!format!("{error} {error:?}").contains(SECRET), "{error:?}");

    let notes = fs::read_to_string(notes).unwrap();
    assert!(notes.contains("ls-remote"), "{notes}");
    assert!(!notes.contains(SECRET), "{notes}");
    assert!(
        !dir_contains(&repository.cache(), SECRET) && !dir_contains(&repository.home(), SECRET)
    );
}

#[test]
fn netrc_of_the_user_is_read() {
    let repository = TestRepository::new();
    let server = repository.serve(Some("me:s3cr3t-token"));
    let netrc = "machine 127.0.0.1 login me password s3cr3t-token\n";
    fs::write(repository.home().join(".netrc"), netrc).unwrap();
    let url = format!("http://{}/r.git", server.address());
    assert_eq!(text(&repository.fetch(&url, "main").unwrap()), "three");
}

#[test]
fn job_token_is_sent_only_to_its_gitlab_over_https() {
    let nothing = BTreeMap::new();
    let credential = |vars: &[(&str, &str)]| {
        let vars = vars.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let (dir, interrupt) = (Path::new("/"), Interrupt::new().unwrap());
        ReferenceContext { dir, tree: None, vars: &vars, env: &nothing, interrupt: &interrupt }
            .git_credential()
    };
    let (host, token) = (("CI_SERVER_HOST", "gitlab.example"), ("CI_JOB_TOKEN", SECRET));
    assert_eq!(credential(&[host, token]), job("https://gitlab.example".to_owned()));
    let port = ("CI_SERVER_PORT", "443");
    assert_eq!(credential(&[host, token, port]), job("https://gitlab.example".to_owned()));
    let port = ("CI_SERVER_PORT", "8443");
    assert_eq!(credential(&[host, token, port]), job("https://gitlab.example:8443".to_owned()));
    assert_eq!(credential(&[host]), None);
    assert_eq!(credential(&[token]), None);
    assert!(!format!("{:?}", credential(&[host, token])).contains(SECRET));
}

/// Returns whether any file below a directory contains a text.
fn dir_contains(dir: &Path, text: &str) -> bool {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).any(|path| {
        if path.is_dir() {
            return dir_contains(&path, text);
        }
        fs::read(&path).unwrap().windows(text.len()).any(|bytes| bytes == text.as_bytes())
    })
}
