//! Containers of containerd: of pods, `ctr` and nerdctl.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::{ContainerConfig, ContainerEngine, EngineContainer, exists};
use crate::doctor::containerd::ContainerdConfig;
use crate::doctor::host::DoctorHost;

/// Labels with the names of containers.
const NAMES: [&str; 2] = ["nerdctl/name", "io.kubernetes.container.name"];

/// Directory of the bundles in containerd's state.
const TASKS: &str = "io.containerd.runtime.v2.task";

/// The part of `ctr containers info` that matters here.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ContainerInfo {
    spec: Value,
}

/// Finds containers of a name, id or start of an id, in all namespaces.
pub fn find(
    containerd: &Path,
    name: &str,
    host: &DoctorHost,
) -> Result<Vec<EngineContainer>, String> {
    let config = ContainerdConfig::of(containerd, host)?;
    let ctr = host.program("ctr").ok_or("ctr is not installed")?;
    let socket = config.socket();
    if !exists(Path::new(&socket))? {
        return Err(format!("does not run: {socket} does not exist"));
    }
    let call = |args: &[&str]| {
        // By default, ctr waits for a long time.
        let all = [&["--address", &socket, "--connect-timeout", "3s"][..], args].concat();
        host.output(&ctr, &all).ok_or_else(|| format!("ctr {} does not end", args.join(" ")))?
    };
    // In a name, only the dot has a meaning in patterns.
    let mut filters = vec![format!("id~=\"^{}\"", name.replace('.', "[.]"))];
    filters.extend(NAMES.iter().map(|label| format!("labels.{label:?}=={name:?}")));
    let filters: Vec<_> = filters.iter().map(String::as_str).collect();
    let mut found = Vec::new();
    for namespace in call(&["namespaces", "list", "--quiet"])?.lines() {
        let in_namespace = ["--namespace", namespace];
        let list =
            [&in_namespace[..], &["containers", "list", "--quiet"], filters.as_slice()].concat();
        for id in call(&list)?.lines() {
            let bundle = config.state().join(TASKS).join(namespace).join(id);
            let path = bundle.join("config.json");
            let config = if exists(&path)? {
                ContainerConfig::File { path, by: "containerd's state directory".to_owned() }
            } else {
                let info = [&in_namespace[..], &["containers", "info", id]].concat();
                let info: ContainerInfo = serde_json::from_str(&call(&info)?)
                    .map_err(|error| format!("ctr containers info: {error}"))?;
                ContainerConfig::Text {
                    text: info.spec.to_string().into_bytes(),
                    by: "ctr containers info".to_owned(),
                }
            };
            let tasks = call(&[&in_namespace[..], &["tasks", "list"]].concat())?;
            let mut tasks = tasks.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let task = tasks.find(|task| task.first() == Some(&id));
            found.push(EngineContainer {
                engine: ContainerEngine::Containerd,
                id: id.to_owned(),
                name: format!("{namespace}/{id}"),
                state: task.and_then(|task| Some(task.get(2)?.to_lowercase())),
                source: "ctr containers list".to_owned(),
                config,
                runtime: host.read(&bundle.join("runtime")).ok().flatten(),
            });
        }
    }
    Ok(found)
}
