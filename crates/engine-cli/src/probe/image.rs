//! Image that contains only the probe program, for containers that are not built from programs of this host.

use std::fs::File;
use std::io;
use std::path::Path;

use oci_hooks_files::fs::{PathContext as _, PathError};
use oci_hooks_image::{LayoutWriter, MediaType, Platform};
use serde_json::{Value, json};

use super::{IsolationProbe, PROGRAM};

impl IsolationProbe {
    /// Writes the image to a new file, as an OCI layout. The program is in its root directory.
    pub fn write_image(path: &Path) -> Result<(), PathError> {
        let file = File::options().read(true).write(true).create_new(true).open(path);
        file.and_then(write).with_path("write", path)
    }
}

fn write(file: File) -> io::Result<()> {
    let mut writer = LayoutWriter::new(file)?;
    let layer = writer.layer::<io::Error>(|layer| {
        layer.directory(Path::new("etc"))?;
        layer.file(
            Path::new(PROGRAM),
            true,
            oci_hooks_init::PROGRAM.len() as u64,
            oci_hooks_init::PROGRAM,
        )
    })?;
    let Platform { os, architecture, .. } = Platform::host();
    let config = json!({
        "os": os, "architecture": architecture, "config": {},
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id]},
    });
    let mut document = |kind: MediaType, document: &Value| {
        let bytes = serde_json::to_vec(document)?;
        let digest = writer.blob(&bytes)?;
        Ok::<_, io::Error>(
            json!({"mediaType": kind.as_ref(), "digest": digest, "size": bytes.len()}),
        )
    };
    let config = document(MediaType::ImageConfig, &config)?;
    let kind = MediaType::ImageLayerZstd;
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MediaType::ImageManifest.as_ref(), "config": config,
        "layers": [{"mediaType": kind.as_ref(), "digest": layer.digest, "size": layer.size}],
    });
    let manifest = document(MediaType::ImageManifest, &manifest)?;
    let index = json!({
        "schemaVersion": 2, "mediaType": MediaType::ImageIndex.as_ref(), "manifests": [manifest],
    });
    writer.finish(&serde_json::to_vec(&index)?).map(drop)
}
