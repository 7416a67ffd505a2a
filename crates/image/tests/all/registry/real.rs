//! Pulls from a real registry, filled by skopeo.

use std::fs;
use std::path::Path;

use oci_hooks_image::{Digest, RegistryOptions};
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::registry::{RegistryAuth, RegistryConfig, TestRegistry};

use crate::registry::setup::{MockImage, Puller, chain, random_bytes, read};

/// Writes an image as an OCI layout with the tag `latest`.
fn layout(content: &MockImage, directory: &Path) -> String {
    let blobs = directory.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let manifest = content.manifest.to_string().into_bytes();
    for blob in content.layers.iter().chain([&content.config, &manifest]) {
        fs::write(blobs.join(Digest::of(blob).hex()), blob).unwrap();
    }
    fs::write(directory.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    let index = serde_json::json!({"schemaVersion": 2, "manifests": [{
        "mediaType": content.manifest["mediaType"],
        "digest": Digest::of(&manifest),
        "size": manifest.len(),
        "annotations": {"org.opencontainers.image.ref.name": "latest"},
    }]});
    fs::write(directory.join("index.json"), index.to_string()).unwrap();
    format!("oci:{}:latest", directory.display())
}

#[test]
fn images_of_every_form_are_pulled_with_a_password() {
    let content = MockImage::new(&[b"zero", &random_bytes(1 << 20), b"two"]);
    let directory = program::temporary_directory();
    let from = layout(&content, directory.path());
    let registry = TestRegistry::start(RegistryAuth::Password("user", "secret"));
    let login = Some(("user", "secret"));
    let puller = Puller::with_login(&registry.address(), "user", "secret");
    for (name, options) in [
        ("test/oci:1", &[][..]),
        ("test/docker:1", &["--format=v2s2"]),
        ("test/zstd:1", &["--dest-compress-format=zstd", "--dest-compress"]),
    ] {
        registry.skopeo(&from, name, login, options).success();
        let image = puller.pull_image(&format!("{}/{name}", registry.address())).unwrap();
        assert_eq!(read(&image, 1), random_bytes(1 << 20), "{name}");
        assert!(image.access.is_some());
    }
    let error = Puller::new().pull_image(&format!("{}/test/oci:1", registry.address()));
    assert!(chain(&error.unwrap_err()).contains("authentication required for"));
    let error = puller.pull_image(&format!("{}/test/oci:2", registry.address()));
    assert!(chain(&error.unwrap_err()).contains("test/oci:2 not found in"));
}

#[test]
fn certificates_count_as_configured() {
    let content = MockImage::new(&[b"zero"]);
    let directory = program::temporary_directory();
    let from = layout(&content, directory.path());
    let data = program::repository("crates/testsupport/data/registry");
    let (certificate, key) = (data.join("server.pem"), data.join("server.key"));
    let options = RegistryConfig { tls: Some((&certificate, &key)) };
    let registry = TestRegistry::start_with(RegistryAuth::None, options);
    registry.push(&from, "test/image:latest", None);

    // The loopback interface needs no certificate.
    Puller::new().pull(&registry.address()).unwrap();
    let pull = |options: RegistryOptions| {
        let mut puller = Puller::new();
        puller.options.registries.insert(registry.address(), options);
        puller.pull(&registry.address()).map_err(|error| chain(&error))
    };
    let with_ca = |name: &str| RegistryOptions {
        ca_files: vec![data.join(name)],
        ..RegistryOptions::default()
    };
    pull(with_ca("authority.pem")).unwrap();
    // The server's own certificate in place of its CA's.
    let mut wrong = with_ca("server.pem");
    let error = pull(wrong.clone()).unwrap_err();
    assert!(error.contains("cannot trust the certificate of "), "{error}");
    wrong.insecure = true;
    pull(wrong).unwrap();
    assert!(pull(with_ca("none.pem")).unwrap_err().contains("none.pem"));
}

#[test]
fn plain_http_server_is_named_if_https_is_expected() {
    let registry = TestRegistry::start(RegistryAuth::None);
    let mut puller = Puller::new();
    let options = RegistryOptions {
        ca_files: vec![program::repository("crates/testsupport/data/registry/authority.pem")],
        ..RegistryOptions::default()
    };
    puller.options.registries.insert(registry.address(), options);
    let error = chain(&puller.pull(&registry.address()).unwrap_err());
    let address = registry.address();
    assert!(error.contains(&format!("{address} speaks plain HTTP")), "{error}");
}
