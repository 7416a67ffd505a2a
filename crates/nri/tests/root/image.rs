//! An image for containerd, without a registry.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use sha2::{Digest as _, Sha256};

use oci_hooks_testsupport::{program, rootfs};

/// Image of all containers and sandboxes.
pub(crate) const IMAGE: &str = "localhost/busybox:test";

/// Writes an archive of an OCI layout; returns its path.
pub(crate) fn archive(directory: &Path) -> PathBuf {
    let layout = directory.join("layout");
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let add = |content: &[u8], kind: &str| {
        let hash: String =
            Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
        fs::write(blobs.join(&hash), content).unwrap();
        json!({
            "mediaType": format!("application/vnd.oci.image.{kind}"),
            "digest": format!("sha256:{hash}"),
            "size": content.len(),
        })
    };
    let layer = directory.join("layer.tar");
    rootfs::write_tar(&layer);
    let layer = add(&fs::read(layer).unwrap(), "layer.v1.tar");
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let config = json!({
        "os": "linux",
        "architecture": architecture,
        "config": {"Cmd": ["/bin/sleep", "1000"], "Env": ["PATH=/bin", "OF_THE_IMAGE=1"]},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    });
    let config = add(config.to_string().as_bytes(), "config.v1+json");
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": [layer]});
    let mut manifest = add(manifest.to_string().as_bytes(), "manifest.v1+json");
    manifest["annotations"] = json!({"io.containerd.image.name": IMAGE});
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    fs::write(layout.join("index.json"), index.to_string()).unwrap();
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion": "1.0.0"}"#).unwrap();
    let archive = directory.join("image.tar");
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(&layout).arg("-cf").arg(&archive).arg(".");
    program::run(&mut tar).success();
    archive
}
