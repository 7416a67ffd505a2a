//! Containers of podman and Docker, which describe them in the same format.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::json;

use super::{ContainerConfig, ContainerEngine, EngineContainer, exists};
use crate::doctor::host::DoctorHost;

/// The part of `container inspect` that matters here.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InspectedContainer {
    id: String,
    name: String,
    #[serde(default)]
    path: String,
    args: Option<Vec<String>>,
    state: InspectedState,
    mounts: Option<Vec<InspectedMount>>,
    config: InspectedConfig,
    host_config: InspectedHostConfig,
    /// Podman's `config.json`, once it is written.
    #[serde(rename = "OCIConfigPath")]
    config_path: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InspectedState {
    status: String,
    #[serde(default)]
    pid: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InspectedMount {
    #[serde(rename = "Type")]
    kind: String,
    destination: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InspectedConfig {
    /// Podman's annotations.
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InspectedHostConfig {
    /// Docker's annotations.
    annotations: Option<BTreeMap<String, String>>,
    tmpfs: Option<BTreeMap<String, String>>,
    runtime: Option<String>,
}

/// Asks podman or Docker for a container.
pub fn find(
    engine: ContainerEngine,
    program: &Path,
    name: &str,
    host: &DoctorHost,
) -> Result<Vec<EngineContainer>, String> {
    let source = format!("{} container inspect", engine.name());
    let text = host.output(program, &["container", "inspect", name]);
    let text = text.ok_or_else(|| format!("{source} does not end"))??;
    let inspected: Vec<InspectedContainer> =
        serde_json::from_str(&text).map_err(|error| format!("{source}: {error}"))?;
    inspected.into_iter().map(|found| found.container(engine, &source)).collect()
}

impl InspectedContainer {
    fn container(self, engine: ContainerEngine, source: &str) -> Result<EngineContainer, String> {
        let path = match engine {
            ContainerEngine::Podman => self.config_path.clone(),
            _ => config_of_task(self.state.pid, &self.id),
        };
        let config = match path {
            Some(path) if exists(&path)? => ContainerConfig::File { path, by: source.to_owned() },
            _ => {
                ContainerConfig::Text { text: self.config(), by: format!("guessed from {source}") }
            }
        };
        Ok(EngineContainer {
            engine,
            id: self.id,
            name: self.name.trim_start_matches('/').to_owned(),
            state: Some(self.state.status),
            source: source.to_owned(),
            config,
            runtime: self.host_config.runtime,
        })
    }

    /// Returns the part of a `config.json` that hooks are matched against.
    fn config(&self) -> Vec<u8> {
        let args = [&self.path].into_iter().chain(self.args.iter().flatten());
        let annotations = self.config.annotations.as_ref();
        let annotations = annotations.or(self.host_config.annotations.as_ref());
        let mounts = self.mounts.iter().flatten();
        let mounts =
            mounts.map(|mount| json!({"destination": mount.destination, "type": mount.kind}));
        let tmpfs = self.host_config.tmpfs.iter().flatten().map(|(destination, options)| {
            let options: Vec<_> = options.split(',').collect();
            json!({"destination": destination, "type": "tmpfs", "options": options})
        });
        let config = json!({
            "process": {"args": args.collect::<Vec<_>>()},
            "annotations": annotations,
            "mounts": mounts.chain(tmpfs).collect::<Vec<_>>(),
        });
        config.to_string().into_bytes()
    }
}

/// Returns the `config.json` of a running container of Docker. The shim, which is the parent of its first process,
/// works in a bundle of containerd.
fn config_of_task(pid: u32, id: &str) -> Option<PathBuf> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok().filter(|_| pid > 0)?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim();
    let bundle = fs::read_link(format!("/proc/{parent}/cwd")).ok()?;
    Some(bundle.parent()?.join(id).join("config.json"))
}
