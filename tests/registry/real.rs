//! A real registry, filled by skopeo.

use std::fs;
use std::path::Path;

use oci_hooks::image::{Digest, RegistryOptions};

use crate::setup::{Content, Puller, chain, noise, read};
use crate::support::program;
use crate::support::registry::{Auth, Options, Registry};

/// Writes an image as an OCI layout with the tag `latest`.
fn layout(content: &Content, directory: &Path) -> String {
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
    let content = Content::new(&[b"zero", &noise(1 << 20), b"two"]);
    let directory = program::temporary_directory();
    let from = layout(&content, directory.path());
    let registry = Registry::start(Auth::Password("user", "secret"));
    let login = Some(("user", "secret"));
    let puller = Puller::with_login(&registry.address(), "user", "secret");
    for (name, options) in [
        ("test/oci:1", &[][..]),
        ("test/docker:1", &["--format=v2s2"]),
        ("test/zstd:1", &["--dest-compress-format=zstd", "--dest-compress"]),
    ] {
        registry.skopeo(&from, name, login, options).success();
        let image = puller.pull_image(&format!("{}/{name}", registry.address())).unwrap();
        assert_eq!(read(&image, 1), noise(1 << 20), "{name}");
        assert!(image.access.is_some());
    }
    let error = Puller::new().pull_image(&format!("{}/test/oci:1", registry.address()));
    assert!(chain(&error.unwrap_err()).contains("authentication required for"));
    let error = puller.pull_image(&format!("{}/test/oci:2", registry.address()));
    assert!(chain(&error.unwrap_err()).contains("test/oci:2 not found in"));
}

#[test]
fn certificates_count_as_configured() {
    let content = Content::new(&[b"zero"]);
    let directory = program::temporary_directory();
    let from = layout(&content, directory.path());
    let data = program::repository("tests/data/registry");
    let (certificate, key) = (data.join("server.pem"), data.join("server.key"));
    let options = Options { tls: Some((&certificate, &key)) };
    let registry = Registry::start_with(Auth::None, options);
    registry.push(&from, "test/image:latest", None);

    // On the loopback interface no certificate is needed.
    Puller::new().pull(&registry.address()).unwrap();
    let pull = |options: RegistryOptions| {
        let mut puller = Puller::new();
        puller.options.registries.insert(registry.address(), options);
        puller.pull(&registry.address()).map_err(|error| chain(&error))
    };
    let with_ca = |name: &str| {
        let mut options = RegistryOptions::default();
        options.ca_files = vec![data.join(name)];
        options
    };
    pull(with_ca("authority.pem")).unwrap();
    // Another authority than the one that signed it: the server itself.
    let mut wrong = with_ca("server.pem");
    let error = pull(wrong.clone()).unwrap_err();
    assert!(error.contains("add its CA certificate"), "{error}");
    wrong.insecure = true;
    pull(wrong).unwrap();
    assert!(pull(with_ca("none.pem")).unwrap_err().contains("none.pem"));
}

#[test]
fn plain_http_is_named_where_https_is_wanted() {
    let registry = Registry::start(Auth::None);
    let mut puller = Puller::new();
    let mut options = RegistryOptions::default();
    options.ca_files = vec![program::repository("tests/data/registry/authority.pem")];
    puller.options.registries.insert(registry.address(), options);
    let error = chain(&puller.pull(&registry.address()).unwrap_err());
    let address = registry.address();
    assert!(error.contains(&format!("set insecure = true for {address}")), "{error}");
}
