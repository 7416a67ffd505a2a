//! Images that are downloaded as layouts, for programs with stores of their own.

use std::fs;
use std::path::{Path, PathBuf};

use oci_hooks::image::{
    Credentials, Downloaded, Platform, PullError, PullPolicy, PullRequest, Reference,
    RegistryClient, Silent, download,
};

use crate::setup::{Content, Puller, basic, chain, login};
use crate::support::http::{Response, Server};
use crate::support::program;

/// Downloads `test/image` of a registry to a directory.
fn fetch(
    registry: &str,
    credentials: &Credentials,
    (policy, known): (PullPolicy, Option<&Downloaded>),
    directory: &Path,
) -> Result<Option<Downloaded>, PullError> {
    let reference: Reference = format!("{registry}/test/image").parse().unwrap();
    let client = RegistryClient::new(Puller::new().options).unwrap();
    let request = PullRequest {
        reference: &reference,
        platform: &Platform::host(),
        credentials,
        policy,
        progress: &Silent,
    };
    download(&client, &request, known, directory)
}

const AT_FIRST: (PullPolicy, Option<&Downloaded>) = (PullPolicy::Newer, None);

#[test]
fn what_is_downloaded_can_be_imported() {
    let server = Content::new(&[b"a", b"b"]).serve();
    let directory = program::temporary_directory();
    let found = fetch(&server.address(), &Credentials::default(), AT_FIRST, directory.path());
    let downloaded = found.unwrap().unwrap();
    let puller = Puller::new();
    let image = puller.store().import(directory.path(), &"a/b".parse().unwrap()).unwrap();
    assert_eq!((&image.id, image.layers.len()), (&downloaded.id, 2));
    assert_eq!(downloaded.access, None);
    // It is still the same.
    let empty = program::temporary_directory();
    for policy in [PullPolicy::Newer, PullPolicy::Always, PullPolicy::Missing] {
        let known = (policy, Some(&downloaded));
        let again = fetch(&server.address(), &Credentials::default(), known, empty.path());
        assert_eq!(again.unwrap(), None, "{policy:?}");
    }
    assert_eq!(fs::read_dir(empty.path()).unwrap().count(), 0);
}

#[test]
fn a_layer_with_another_digest_is_refused() {
    let content = Content::new(&[b"a"]);
    let layer = content.layer_path(0);
    let server = Server::start(move |request| {
        let mut response = content.answer(request);
        if request.path == layer {
            response.body[20] ^= 1;
        }
        response
    });
    let directory = program::temporary_directory();
    let found = fetch(&server.address(), &Credentials::default(), AT_FIRST, directory.path());
    assert!(chain(&found.unwrap_err()).contains("digest"));
    let index: PathBuf = directory.path().join("index.json");
    assert!(!index.exists());
}

#[test]
fn a_known_image_is_for_those_who_have_its_login() {
    let content = Content::new(&[b"a"]);
    let server = Server::start(move |request| match request.header("authorization") {
        Some(header) if header == basic("user", "secret") => content.answer(request),
        _ => Response::status(401).with("www-authenticate", "Basic realm=\"x\""),
    });
    let own = login(&server.address(), "user", "secret");
    let directory = program::temporary_directory();
    let private = fetch(&server.address(), &own, AT_FIRST, directory.path()).unwrap().unwrap();
    assert!(private.access.is_some());
    let address = server.address();
    for policy in [PullPolicy::Newer, PullPolicy::Missing] {
        let known = (policy, Some(&private));
        let get = |credentials: &Credentials| {
            let empty = program::temporary_directory();
            fetch(&address, credentials, known, empty.path())
        };
        assert_eq!(get(&own).unwrap(), None);
        get(&Credentials::default()).unwrap_err();
    }
    // Nor is it where the registry says nothing.
    drop(server);
    for (credentials, is_theirs) in [(own, true), (Credentials::default(), false)] {
        let known = (PullPolicy::Newer, Some(&private));
        let found = fetch(&address, &credentials, known, directory.path());
        assert_eq!(found.is_ok(), is_theirs);
    }
}
