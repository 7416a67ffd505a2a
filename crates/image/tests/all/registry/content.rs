//! Content from a registry is checked, and invalid content leaves nothing behind.

use std::sync::{Arc, Mutex};

use oci_hooks_image::{Digest, MAX_LAYERS, MAX_MANIFEST_BYTES, Platform};
use oci_hooks_testsupport::http::{WebResponse, WebServer};
use serde_json::{Value, json};

use crate::registry::setup::{
    MockImage, Puller, archive, chain, descriptor, gzip, media_type, random_bytes, read,
};

#[test]
fn an_image_is_pulled_with_its_layers_and_configuration() {
    let content =
        MockImage::new(&[b"zero", &random_bytes(3 << 20), b"two", b"three", b"four", b"five"]);
    let server = content.serve();
    let puller = Puller::new();
    let image = puller.pull(&server.address()).unwrap();
    assert_eq!(image.config.cmd, Some(vec!["/0".to_owned()]));
    assert_eq!(read(&image, 0), b"zero");
    assert_eq!(read(&image, 1), random_bytes(3 << 20));
    assert_eq!(read(&image, 5), b"five");
    assert_eq!(puller.seen.count("done"), 6);
    let total: usize = content.layers.iter().map(Vec::len).sum();
    assert_eq!(puller.seen.count("bytes"), total as u64);
}

#[test]
fn stored_layers_are_not_fetched_again() {
    let current = Arc::new(Mutex::new(MockImage::new(&[b"a", b"b"])));
    let server = WebServer::start({
        let current = Arc::clone(&current);
        move |request| current.lock().unwrap().answer(request)
    });
    let puller = Puller::new();
    puller.pull(&server.address()).unwrap();
    *current.lock().unwrap() = MockImage::new(&[b"a", b"c"]);
    puller.pull(&server.address()).unwrap();
    assert_eq!(puller.seen.count("cached"), 1);
    assert_eq!(puller.layers(), 3);
}

#[test]
fn layer_from_another_registry_is_fetched_but_stored_once() {
    let server = MockImage::new(&[b"a", b"b"]).serve();
    let puller = Puller::new();
    let image = puller.pull(&server.address()).unwrap();
    let content = MockImage::new(&[b"a", b"c"]);
    let other = content.serve();
    assert_eq!(puller.pull(&other.address()).unwrap().layers[0], image.layers[0]);
    assert_eq!(puller.seen.count("cached"), 0);
    assert!(other.requests().iter().any(|request| request.path == content.layer_path(0)));
    assert_eq!(puller.layers(), 3);
}

/// Pulls an image whose responses are changed by a function; returns the error.
#[track_caller]
fn pull_error(
    content: &MockImage,
    change: impl Fn(&str, WebResponse) -> WebResponse + Send + Sync + 'static,
) -> String {
    let content = content.clone();
    let server = WebServer::start(move |request| change(&request.path, content.answer(request)));
    let puller = Puller::new();
    let error = chain(&puller.pull(&server.address()).unwrap_err());
    assert_eq!(puller.layers(), 0, "{error}");
    error
}

#[test]
fn a_layer_with_another_digest_or_size_is_rejected() {
    let content = MockImage::new(&[&random_bytes(300_000)]);
    let layer = content.layer_path(0);
    let change = |edit: fn(&mut Vec<u8>)| {
        let layer = layer.clone();
        pull_error(&content, move |path, mut response| {
            if path == layer {
                edit(&mut response.body);
            }
            response
        })
    };
    // The time in the gzip header: the decompressed data stays the same.
    let error = change(|body| body[4] ^= 1);
    assert!(error.contains("digest mismatch for the layer's "), "{error}");
    let error = change(|body| body.push(0));
    assert!(error.contains("size mismatch"), "{error}");
    let error = change(|body| body.truncate(1000));
    assert!(error.contains("size mismatch"), "{error}");
    let error = change(|body| body.clear());
    assert!(error.contains("size mismatch"), "{error}");
}

#[test]
fn layer_without_a_length_is_read_up_to_the_size_of_its_descriptor() {
    let content = MockImage::new(&[&random_bytes(1000)]);
    let layer = content.layer_path(0);
    let error = pull_error(&content, move |path, mut response| {
        if path == layer {
            // One chunk of a megabyte, whose length is not known in advance.
            let mut body = b"100000\r\n".to_vec();
            body.extend(random_bytes(1 << 20));
            body.extend(b"\r\n0\r\n\r\n");
            response.body = body;
            response.headers.push(("transfer-encoding".to_owned(), "chunked".to_owned()));
        }
        response
    });
    assert!(error.contains("size mismatch"), "{error}");
}

#[test]
fn bytes_after_the_end_of_the_compressed_archive_count() {
    let plain = archive("0", b"a");
    let mut blob = gzip(&plain);
    blob.extend_from_slice(b"trailing");
    let mut content = MockImage::with_layers(&[plain], vec![blob.clone()]);
    // The descriptor is that of the first part only.
    let short = &blob[..blob.len() - 8];
    content.manifest["layers"][0] = descriptor(crate::registry::setup::GZIP, short);
    content.layers = vec![short.to_vec()];
    let layer = content.layer_path(0);
    let error = pull_error(&content, move |path, mut response| {
        if path == layer {
            response.body.clone_from(&blob);
        }
        response
    });
    assert!(error.contains("size mismatch"), "{error}");
}

#[test]
fn layer_that_contradicts_the_configuration_is_rejected() {
    let mut content = MockImage::new(&[b"good"]);
    content.layers = vec![gzip(&archive("0", b"evil"))];
    content.manifest["layers"][0] = descriptor(crate::registry::setup::GZIP, &content.layers[0]);
    let error = pull_error(&content, |_, response| response);
    assert!(error.contains("digest mismatch for the layer's archive: expected sha256:"), "{error}");
}

#[test]
fn manifest_must_match_the_requested_digest() {
    let content = MockImage::new(&[b"a"]);
    let digest = Digest::of(b"something else");
    let manifest = content.clone();
    let server = WebServer::start(move |request| {
        if request.path.contains("/manifests/sha256:") {
            WebResponse::ok(manifest.manifest.to_string())
                .with("content-type", media_type::OCI_MANIFEST)
        } else {
            manifest.answer(request)
        }
    });
    let name = format!("{}/test/image@{digest}", server.address());
    let error = chain(&Puller::new().pull_image(&name).unwrap_err());
    assert!(error.contains("digest mismatch for content from "), "{error}");
}

#[test]
fn a_configuration_with_another_digest_or_size_is_rejected() {
    let content = MockImage::new(&[b"a"]);
    let path = format!("/v2/test/image/blobs/{}", Digest::of(&content.config));
    for edit in [
        (|body: &mut Vec<u8>| body.push(b' ')) as fn(&mut Vec<u8>),
        |body| body.truncate(10),
        |body| *body.last_mut().unwrap() = b' ',
    ] {
        let path = path.clone();
        let error = pull_error(&content, move |asked, mut response| {
            if asked == path {
                edit(&mut response.body);
            }
            response
        });
        let is_named = error.contains("digest mismatch") || error.contains("bytes");
        assert!(is_named, "{error}");
    }
    let mut large = content;
    large.manifest["config"]["size"] = json!(1_u64 << 40);
    let error = pull_error(&large, |_, response| response);
    assert!(error.contains("is too large (limit 4194304 bytes)"), "{error}");
}

#[test]
fn manifest_size_is_limited_and_digests_are_no_paths() {
    let mut content = MockImage::new(&[b"a"]);
    let error = pull_error(&content, |path, mut response| {
        if path.ends_with("/manifests/latest") {
            response.body.extend(vec![b' '; usize::try_from(MAX_MANIFEST_BYTES).unwrap()]);
        }
        response
    });
    assert!(error.contains("is too large (limit 4194304 bytes)"), "{error}");
    content.manifest["layers"][0]["digest"] = json!("sha256:../../x");
    let error = pull_error(&content, |_, response| response);
    assert!(error.contains("the manifest is malformed: ") && error.contains("../../x"), "{error}");
}

#[test]
fn manifest_with_a_wrong_content_type_is_rejected() {
    let content = MockImage::new(&[b"a"]);
    for announced in [media_type::OCI_INDEX, media_type::DOCKER_MANIFEST, "text/html"] {
        let error = pull_error(&content, move |_, mut response| {
            for (name, value) in &mut response.headers {
                if name == "content-type" {
                    *value = announced.to_owned();
                }
            }
            response
        });
        assert!(error.contains("media type mismatch: expected"), "{error}");
    }
    let mut both = content;
    both.manifest["manifests"] = json!([]);
    let error = pull_error(&both, |_, response| response);
    assert!(error.contains("do not match its media type"), "{error}");
}

/// Serves an index with one manifest for this machine, announced as `media_type`.
fn index(content: &MockImage, media_type: &str, document: &Value) -> WebServer {
    let document = document.to_string();
    let platform = Platform::host();
    let mut entry = descriptor(media_type, document.as_bytes());
    entry["platform"] = json!(platform);
    let other = json!({"os": "linux", "architecture": "other"});
    let mut first = descriptor(media_type::OCI_MANIFEST, b"x");
    first["platform"] = other;
    let index = json!({
        "schemaVersion": 2, "mediaType": media_type::OCI_INDEX, "manifests": [first, entry],
    });
    let path = format!("/v2/test/image/manifests/{}", Digest::of(document.as_bytes()));
    let content = content.clone();
    WebServer::start(move |request| {
        if request.path.ends_with("/latest") {
            WebResponse::ok(index.to_string()).with("content-type", media_type::OCI_INDEX)
        } else if request.path == path {
            WebResponse::ok(document.clone())
        } else {
            content.answer(request)
        }
    })
}

#[test]
fn image_of_an_index_is_selected_by_platform() {
    let content = MockImage::new(&[b"a"]);
    let server = index(&content, media_type::OCI_MANIFEST, &content.manifest);
    let puller = Puller::new();
    let image = puller.pull(&server.address()).unwrap();
    assert_eq!(image.digest, Digest::of(content.manifest.to_string().as_bytes()));
    let asked = server.requests().len();
    puller.pull(&server.address()).unwrap();
    // HTTPS was tried first, then one request shows that nothing changed.
    let again: Vec<_> = server.requests().split_off(asked);
    assert_eq!(again.len(), 1, "{again:?}");
}

#[test]
fn index_in_place_of_a_manifest_is_rejected() {
    let content = MockImage::new(&[b"a"]);
    let nested = json!({
        "schemaVersion": 2, "mediaType": media_type::OCI_INDEX,
        "manifests": [descriptor(media_type::OCI_MANIFEST, b"x")],
    });
    let mut untyped = nested.clone();
    untyped.as_object_mut().unwrap().remove("mediaType");
    for (announced, document, message) in [
        (media_type::OCI_MANIFEST, &nested, "media type mismatch: expected"),
        (media_type::OCI_MANIFEST, &untyped, "do not match its media type"),
        (media_type::OCI_INDEX, &content.manifest, "media type mismatch: expected"),
        (media_type::OCI_INDEX, &nested, "names another index"),
    ] {
        let server = index(&content, announced, document);
        let error = chain(&Puller::new().pull(&server.address()).unwrap_err());
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn an_image_for_another_platform_is_rejected() {
    let mut content = MockImage::new(&[b"a"]);
    let mut config: Value = serde_json::from_slice(&content.config).unwrap();
    config["architecture"] = json!("other");
    content.config = config.to_string().into_bytes();
    content.manifest["config"] = descriptor(media_type::OCI_CONFIG, &content.config);
    let error = pull_error(&content, |_, response| response);
    assert!(error.contains("is for linux/other, not for linux/"), "{error}");
}

#[test]
fn layers_without_a_diff_id_are_rejected() {
    let mut content = MockImage::new(&[b"a"]);
    let layer = content.manifest["layers"][0].clone();
    content.manifest["layers"].as_array_mut().unwrap().push(layer);
    let error = pull_error(&content, |_, response| response);
    assert!(error.contains("lists 2 layers, the configuration 1"), "{error}");
}

#[test]
fn image_with_too_many_layers_is_rejected_before_the_download() {
    let content = MockImage::new(&vec![&b"a"[..]; MAX_LAYERS + 1]);
    let server = content.serve();
    let puller = Puller::new();
    let said = chain(&puller.pull(&server.address()).unwrap_err());
    assert!(said.contains("the image has 500 layers, expected 499 at most: "), "{said}");
    let layers: Vec<_> = (0..=MAX_LAYERS).map(|at| content.layer_path(at)).collect();
    assert!(server.requests().iter().all(|request| !layers.contains(&request.path)));
    assert_eq!(puller.layers(), 0);
}
