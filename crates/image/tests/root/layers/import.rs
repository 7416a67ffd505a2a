//! Import of images, and digests as names.

use std::fs;
use std::path::Path;
use std::process::Command;

use oci_hooks_image::{Digest, ImageReference, ImportError, Platform};
use oci_hooks_testsupport::program::find;
use serde_json::{Value, json};

use crate::layers::archive::{Fixture, TestArchive, gzip, names_of_layers};

/// Writes an OCI layout with an image of these layers, each a blob and its archive.
pub(crate) fn write_layout(dir: &Path, layers: &[(Vec<u8>, Vec<u8>)]) {
    let blobs = dir.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let add = |content: &[u8], media_type: &str| {
        let digest = Digest::of(content);
        fs::write(blobs.join(digest.hex()), content).unwrap();
        json!({ "mediaType": media_type, "digest": digest.as_str(), "size": content.len() })
    };
    let configuration = configuration(layers);
    let oci = |name: &str| format!("application/vnd.oci.image.{name}");
    let layers: Vec<Value> =
        layers.iter().map(|(blob, _)| add(blob, &oci("layer.v1.tar+gzip"))).collect();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": oci("manifest.v1+json"),
        "config": add(configuration.to_string().as_bytes(), &oci("config.v1+json")),
        "layers": layers,
    });
    let mut manifest = add(manifest.to_string().as_bytes(), &oci("manifest.v1+json"));
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": "latest" });
    let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
    fs::write(dir.join("index.json"), index.to_string()).unwrap();
    fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
}

fn configuration(layers: &[(Vec<u8>, Vec<u8>)]) -> Value {
    let diff_ids: Vec<_> =
        layers.iter().map(|(_, archive)| Digest::of(archive).to_string()).collect();
    let host = Platform::host();
    json!({
        "os": host.os,
        "architecture": host.architecture,
        "config": { "Env": ["A=1"], "Cmd": ["/bin/sh"] },
        "rootfs": { "type": "layers", "diff_ids": diff_ids },
        "history": diff_ids.iter().map(|_| json!({ "created_by": "test" })).collect::<Vec<_>>(),
    })
}

fn layers() -> Vec<(Vec<u8>, Vec<u8>)> {
    let archives = [
        TestArchive::default().file("a", b"1").file("b", b"1").finish(),
        TestArchive::default().file(".wh.a", b"").file("c", b"2").finish(),
    ];
    archives.into_iter().map(|archive| (gzip(&archive), archive)).collect()
}

fn name() -> ImageReference {
    "example.org/imported:latest".parse().unwrap()
}

fn archive_of(dir: &Path, to: &Path, options: &[&str]) {
    let status = Command::new(find("tar"))
        .args(options)
        .arg("-cf")
        .arg(to)
        .arg("-C")
        .arg(dir)
        .arg(".")
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn a_layout_is_imported_as_a_directory_and_as_an_archive() {
    let fixture = Fixture::new();
    let layout = fixture.outside_path().join("layout");
    write_layout(&layout, &layers());
    let (plain, compressed) =
        (fixture.outside_path().join("a.tar"), fixture.outside_path().join("a.tar.gz"));
    archive_of(&layout, &plain, &[]);
    archive_of(&layout, &compressed, &["-z"]);
    let mut images = Vec::new();
    for path in [&layout, &plain, &compressed] {
        let fixture = Fixture::new();
        let image = fixture.store.import(path, &name()).unwrap();
        assert_eq!(image.config.env, ["A=1"]);
        assert_eq!(image.layers.len(), 2);
        assert!(image.layers[0].join("a").exists() && image.layers[1].join("c").exists());
        let found = fixture.store.find(&name(), &Platform::host()).unwrap().unwrap();
        assert_eq!(found, image);
        images.push((image.digest, image.id));
    }
    assert!(images.iter().all(|image| *image == images[0]));
}

#[test]
fn stored_layer_is_not_given_to_a_layout_without_its_blob() {
    let fixture = Fixture::new();
    let layers = layers();
    fixture.unpack_blob(&layers[0].1, gzip).unwrap();
    let layout = fixture.outside_path().join("layout");
    write_layout(&layout, &layers);
    let blob = layout.join("blobs/sha256").join(Digest::of(&layers[0].0).hex());
    let good = fs::read(&blob).unwrap();
    fs::remove_file(&blob).unwrap();
    fixture.store.import(&layout, &name()).unwrap_err();
    let other = gzip(&TestArchive::default().file("a", b"3").finish());
    fs::write(&blob, other).unwrap();
    fixture.store.import(&layout, &name()).unwrap_err();
    assert_eq!(fixture.store.find(&name(), &Platform::host()).unwrap(), None);
    fs::write(&blob, good).unwrap();
    fixture.store.import(&layout, &name()).unwrap();
    assert_eq!(names_of_layers(&fixture).len(), 2);
}

#[test]
fn image_of_a_layout_is_selected_by_name() {
    let fixture = Fixture::new();
    let layout = fixture.outside_path().join("layout");
    write_layout(&layout, &layers());
    let index = layout.join("index.json");
    let one = fs::read_to_string(&index).unwrap();
    let mut document: Value = serde_json::from_str(&one).unwrap();
    let mut ours = document["manifests"][0].clone();
    ours["annotations"] = json!({
        "io.containerd.image.name": "example.org/imported:latest",
        "org.opencontainers.image.ref.name": "latest",
    });
    let mut other = ours.clone();
    other["annotations"]["io.containerd.image.name"] = json!("example.org/other:latest");
    other["digest"] = json!(Digest::of(b"not there"));
    document["manifests"] = json!([other, ours]);
    fs::write(&index, document.to_string()).unwrap();
    fixture.store.import(&layout, &name()).unwrap();
    let third = "example.org/third:1".parse().unwrap();
    let error = fixture.store.import(&layout, &third).unwrap_err().to_string();
    let named = "expected one of example.org/imported:latest, example.org/other:latest, latest";
    assert!(error.ends_with(named), "{error}");
}

#[test]
fn docker_save_archive_is_imported_with_its_links() {
    let fixture = Fixture::new();
    let saved = fixture.outside_path().join("saved");
    let layers = layers();
    for (at, (_, archive)) in layers.iter().enumerate() {
        fs::create_dir_all(saved.join(at.to_string())).unwrap();
        fs::write(saved.join(format!("{at}/layer.tar")), archive).unwrap();
    }
    fs::create_dir(saved.join("again")).unwrap();
    std::os::unix::fs::symlink("../0/layer.tar", saved.join("again/layer.tar")).unwrap();
    fs::write(saved.join("config.json"), configuration(&layers).to_string()).unwrap();
    let manifest = json!([
        { "Config": "none.json", "RepoTags": ["other:latest"], "Layers": [] },
        {
            "Config": "config.json",
            "RepoTags": ["example.org/imported:latest"],
            "Layers": ["again/layer.tar", "1/layer.tar"],
        },
    ]);
    fs::write(saved.join("manifest.json"), manifest.to_string()).unwrap();
    let path = fixture.outside_path().join("saved.tar");
    archive_of(&saved, &path, &[]);
    let image = fixture.store.import(&path, &name()).unwrap();
    assert!(image.layers[0].join("a").exists() && image.layers[1].join("c").exists());
    let error = fixture.store.import(&path, &"nobody".parse().unwrap()).unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(error, ImportError::Several { .. }) && text.contains("other:latest"),
        "{text}"
    );
}

#[test]
fn digests_are_not_paths() {
    for text in ["sha256:../../x", "sha256:", "sha256:A", &format!("sha256:{}/", "a".repeat(63))] {
        text.parse::<Digest>().unwrap_err();
    }
    let fixture = Fixture::new();
    let layout = fixture.outside_path().join("layout");
    write_layout(&layout, &layers());
    let index = fs::read_to_string(layout.join("index.json")).unwrap();
    let digest = index.split('"').find(|word| word.starts_with("sha256:")).unwrap();
    for bad in ["sha256:../../index.json", &format!("sha256:{}", "0".repeat(64))] {
        fs::write(layout.join("index.json"), index.replace(digest, bad)).unwrap();
        fixture.store.import(&layout, &name()).unwrap_err();
    }
    assert_eq!(names_of_layers(&fixture), <[String; 0]>::default());
}

#[test]
fn content_with_a_wrong_digest_is_rejected() {
    let layers = layers();
    let original = Fixture::new();
    let layout = original.outside_path().join("layout");
    write_layout(&layout, &layers);
    let blobs = layout.join("blobs/sha256");
    for blob in crate::layers::archive::names(&blobs) {
        let good = fs::read(blobs.join(&blob)).unwrap();
        let mut bad = good.clone();
        let last = bad.len() - 1;
        bad[last] ^= 1;
        fs::write(blobs.join(&blob), &bad).unwrap();
        let fixture = Fixture::new();
        fixture.store.import(&layout, &name()).unwrap_err();
        assert!(fixture.store.images().unwrap().is_empty());
        fs::write(blobs.join(&blob), &good).unwrap();
    }
    Fixture::new().store.import(&layout, &name()).unwrap();
}

#[test]
fn invalid_images_are_rejected_with_a_reason() {
    let fixture = Fixture::new();
    let error = fixture.store.import(&fixture.outside_path(), &name()).unwrap_err();
    assert!(matches!(error, ImportError::Format { .. }), "{error}");
    let error = fixture.store.import(&fixture.outside_path().join("canary"), &name()).unwrap_err();
    assert!(matches!(error, ImportError::Archive { .. }), "{error}");
    // A blob that is a link to a file of the host.
    let layout = fixture.outside_path().join("layout");
    write_layout(&layout, &layers());
    fs::remove_file(layout.join("index.json")).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", layout.join("index.json")).unwrap();
    fixture.store.import(&layout, &name()).unwrap_err();
}
