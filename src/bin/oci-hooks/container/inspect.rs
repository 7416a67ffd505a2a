//! Containers of podman and Docker, which describe them in the same format.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::json;

use super::{ContainerConfig, ContainerEngine, EngineContainer, exists};
use crate::doctor::host::DoctorHost;

/// The fields of `container inspect` that this program reads.
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
    #[serde(default)]
    source: String,
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
    /// Options of the tmpfs mounts, by destination.
    tmpfs: Option<BTreeMap<String, String>>,
    runtime: Option<String>,
    init: Option<bool>,
    #[serde(default)]
    pid_mode: String,
}

/// Mount options that an engine writes into `config.json`.
struct EngineMountOptions {
    bind: &'static [&'static str],
    /// Options of a tmpfs; the user's options follow them.
    tmpfs: &'static [&'static str],
}

/// Arguments that `docker run --init` puts before the container's own arguments.
const DOCKER_INIT: &[&str] = &["/sbin/docker-init", "--"];

const PODMAN_MOUNT_OPTIONS: EngineMountOptions =
    EngineMountOptions { bind: &["rprivate", "rbind"], tmpfs: &[] };
const DOCKER_MOUNT_OPTIONS: EngineMountOptions = EngineMountOptions {
    bind: &["rbind", "rprivate"],
    tmpfs: &["noexec", "nosuid", "nodev", "rprivate"],
};

/// Asks podman or Docker for a container.
pub fn find(
    engine: ContainerEngine,
    program: &Path,
    name: &str,
    host: &DoctorHost,
) -> Result<Vec<EngineContainer>, String> {
    let source = format!("{} container inspect", engine.name());
    let text = host.output(program, &["container", "inspect", name]);
    let text =
        text.ok_or_else(|| format!("`{source}` cannot be run, or takes longer than 10 s"))??;
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
            _ => ContainerConfig::Text {
                text: self.config(engine),
                by: format!("guessed from {source}"),
            },
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
    fn config(&self, engine: ContainerEngine) -> Vec<u8> {
        // Podman's `Path` already names the init program, if there is one.
        let (options, init): (_, &[&str]) = match engine {
            ContainerEngine::Podman => (PODMAN_MOUNT_OPTIONS, &[]),
            // Without a PID namespace of its own, the container has no init program.
            _ if self.host_config.init == Some(true) && self.host_config.pid_mode.is_empty() => {
                (DOCKER_MOUNT_OPTIONS, DOCKER_INIT)
            }
            _ => (DOCKER_MOUNT_OPTIONS, &[]),
        };
        let command = [&self.path].into_iter().chain(self.args.iter().flatten());
        let args = init.iter().copied().chain(command.map(String::as_str));
        let annotations = self.config.annotations.as_ref();
        let annotations = annotations.or(self.host_config.annotations.as_ref());
        let tmpfs_mount = |destination: &str, of_user: &str| {
            let of_user = of_user.split(',').filter(|option| !option.is_empty());
            let options: Vec<_> = options.tmpfs.iter().copied().chain(of_user).collect();
            json!({"destination": destination, "type": "tmpfs", "source": "tmpfs", "options": options})
        };
        let mounts = self.mounts.iter().flatten().map(|mount| match &*mount.kind {
            "tmpfs" => tmpfs_mount(&mount.destination, ""),
            _ => json!({"destination": mount.destination, "type": "bind", "source": mount.source,
                "options": options.bind}),
        });
        let tmpfs = self.host_config.tmpfs.iter().flatten();
        let tmpfs = tmpfs.map(|(destination, options)| tmpfs_mount(destination, options));
        let config = json!({
            "process": {"args": args.collect::<Vec<_>>()},
            "annotations": annotations,
            "mounts": mounts.chain(tmpfs).collect::<Vec<_>>(),
        });
        config.to_string().into_bytes()
    }
}

/// Returns the path of the `config.json` of a running Docker container. Its first process is a child of containerd's
/// shim, whose working directory is a bundle; the bundles of a namespace are siblings.
fn config_of_task(pid: u32, id: &str) -> Option<PathBuf> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok().filter(|_| pid > 0)?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim();
    let bundle = fs::read_link(format!("/proc/{parent}/cwd")).ok()?;
    Some(bundle.parent()?.join(id).join("config.json"))
}
