//! Downloads of images as layouts, for programs with their own stores.

use std::fs;
use std::path::{Path, PathBuf};

use oci_hooks_image::{
    Credentials, DownloadedImage, ImageReference, Platform, PullError, PullPolicy, PullRequest,
    RegistryClient, SilentProgress, download,
};
use oci_hooks_testsupport::http::{WebResponse, WebServer};
use oci_hooks_testsupport::program;

use crate::registry::setup::{MockImage, Puller, basic, chain, login};

/// Downloads `test/image` of a registry to a directory.
fn fetch(
    registry: &str,
    credentials: &Credentials,
    (policy, known): (PullPolicy, Option<&DownloadedImage>),
    directory: &Path,
) -> Result<Option<DownloadedImage>, PullError> {
    let reference: ImageReference = format!("{registry}/test/image").parse().unwrap();
    let client = RegistryClient::new(Puller::new().options).unwrap();
    let request = PullRequest {
        reference: &reference,
        platform: &Platform::host(),
        credentials,
        policy,
        progress: &SilentProgress,
    };
    download(&client, &request, known, directory)
}

const AT_FIRST: (PullPolicy, Option<&DownloadedImage>) = (PullPolicy::Newer, None);

#[test]
fn downloaded_image_can_be_imported() {
    let server = MockImage::new(&[b"a", b"b"]).serve();
    let directory = program::temporary_directory();
    let found = fetch(&server.address(), &Credentials::default(), AT_FIRST, directory.path());
    let downloaded = found.unwrap().unwrap();
    let puller = Puller::new();
    let image = puller.store().import(directory.path(), &"a/b".parse().unwrap()).unwrap();
    assert_eq!((&image.id, image.layers.len()), (&downloaded.id, 2));
    assert_eq!(downloaded.access, None);
    // The image has not changed.
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
    let content = MockImage::new(&[b"a"]);
    let layer = content.layer_path(0);
    let server = WebServer::start(move |request| {
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
fn known_image_requires_its_login() {
    let content = MockImage::new(&[b"a"]);
    let server = WebServer::start(move |request| match request.header("authorization") {
        Some(header) if header == basic("user", "secret") => content.answer(request),
        _ => WebResponse::status(401).with("www-authenticate", "Basic realm=\"x\""),
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
    // The same while the registry does not answer.
    let _refusing = server.refuse_connections();
    for (credentials, is_theirs) in [(own, true), (Credentials::default(), false)] {
        let known = (PullPolicy::Newer, Some(&private));
        let found = fetch(&address, &credentials, known, directory.path());
        assert_eq!(found.is_ok(), is_theirs);
    }
}
