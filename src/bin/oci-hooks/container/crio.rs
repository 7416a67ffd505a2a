//! Containers of CRI-O, which keeps them in the same storage as podman.

use std::path::Path;

use serde::Deserialize;

use super::{ContainerConfig, ContainerEngine, EngineContainer, exists};
use crate::doctor::crio::CrioConfig;
use crate::doctor::host::DoctorHost;

/// Files in the storage that list its containers.
const LISTS: [&str; 2] = ["containers.json", "volatile-containers.json"];

/// A container in the storage, of CRI-O or another engine.
#[derive(Deserialize)]
struct StoredContainer {
    id: String,
    #[serde(default)]
    names: Vec<String>,
    /// Metadata of the engine that created the container, in JSON.
    #[serde(default)]
    metadata: String,
}

/// The fields of CRI-O's metadata that this program reads. The metadata of other engines has no pod
/// ID.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct CrioMetadata {
    pod_id: String,
    /// Name of the container in its pod.
    #[serde(default)]
    metadata_name: String,
}

/// The fields of CRI-O's state that this program reads.
#[derive(Deserialize)]
struct CrioState {
    status: String,
}

/// Finds containers by name, id or start of the id.
pub fn find(name: &str, host: &DoctorHost) -> Result<Vec<EngineContainer>, String> {
    let config = CrioConfig::query(host)?;
    let setting = |key: &str, usual: &str| {
        let value = config.as_ref().and_then(|config| config.string(key));
        value.filter(|value| !value.is_empty()).unwrap_or_else(|| usual.to_owned())
    };
    let dir = format!("{}-containers", setting("storage_driver", "overlay"));
    let root = Path::new(&setting("root", "/var/lib/containers/storage")).join(&dir);
    let run_root = Path::new(&setting("runroot", "/run/containers/storage")).join(&dir);
    let mut found = Vec::new();
    for list in LISTS.map(|list| root.join(list)) {
        let Some(text) = host.read(&list)? else { continue };
        let stored: Vec<StoredContainer> =
            serde_json::from_str(&text).map_err(|error| format!("{}: {error}", list.display()))?;
        for container in stored.into_iter().filter(|container| container.is_named(name)) {
            // The second directory survives a reboot, so its `config.json` may be from before the last boot.
            let dirs = [&run_root, &root].map(|dir| dir.join(&container.id).join("userdata"));
            let mut paths = dirs.iter().map(|dir| dir.join("config.json"));
            let Some(path) = paths.find(|path| exists(path) == Ok(true)) else {
                return Err(format!("{} does not exist", dirs[0].join("config.json").display()));
            };
            let state = host.read(&dirs[1].join("state.json")).ok().flatten();
            let state = state.and_then(|state| serde_json::from_str::<CrioState>(&state).ok());
            found.push(EngineContainer {
                engine: ContainerEngine::Crio,
                name: container.names.first().unwrap_or(&container.id).clone(),
                id: container.id,
                state: state.map(|state| state.status),
                source: list.display().to_string(),
                config: ContainerConfig::File {
                    path,
                    by: "the storage that `crio config` names".to_owned(),
                },
                runtime: None,
            });
        }
    }
    Ok(found)
}

impl StoredContainer {
    /// Returns whether CRI-O created the container, and `name` is one of its names or the start of its id.
    fn is_named(&self, name: &str) -> bool {
        let Ok(metadata) = serde_json::from_str::<CrioMetadata>(&self.metadata) else {
            return false;
        };
        let is_name = || metadata.metadata_name == name || self.names.iter().any(|n| n == name);
        !metadata.pod_id.is_empty() && (self.id.starts_with(name) || is_name())
    }
}
