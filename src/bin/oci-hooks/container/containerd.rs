//! Containers of containerd: of pods, `ctr` and nerdctl.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use prost::Message;
use serde::Deserialize;
use serde_json::Value;

use super::{ContainerConfig, ContainerEngine, EngineContainer, exists};
use crate::doctor::containerd::ContainerdConfig;
use crate::doctor::host::DoctorHost;

/// Labels with the names of containers.
const NAMES: [&str; 2] = ["nerdctl/name", "io.kubernetes.container.name"];

/// Directory of the bundles, below containerd's state directory.
const TASKS: &str = "io.containerd.runtime.v2.task";

/// The fields of `ctr containers info` that this program reads.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ContainerInfo {
    spec: Value,
    #[serde(default)]
    runtime: RuntimeInfo,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RuntimeInfo {
    options: Option<AnyMessage>,
}

/// A `google.protobuf.Any`, whose empty fields may be missing in the JSON.
#[derive(Default, Deserialize)]
#[serde(default)]
struct AnyMessage {
    type_url: String,
    /// The encoded message, in base64.
    value: String,
}

/// The fields of `containerd.runc.v1.Options` that this program reads.
#[derive(Message)]
struct RuncOptions {
    #[prost(string, tag = "6")]
    binary_name: String,
}

/// Finds containers by name, id or start of the id, in all namespaces.
pub fn find(
    containerd: &Path,
    name: &str,
    host: &DoctorHost,
) -> Result<Vec<EngineContainer>, String> {
    let config = ContainerdConfig::of(containerd, host)?;
    let ctr = host.program("ctr").ok_or("ctr is not installed")?;
    let socket = config.socket();
    if !exists(Path::new(&socket))? {
        return Err(format!("not running: {socket} does not exist"));
    }
    let call = |args: &[&str]| {
        // By default, ctr waits for a long time.
        let all = [&["--address", &socket, "--connect-timeout", "3s"][..], args].concat();
        host.output(&ctr, &all).ok_or_else(|| {
            format!("`ctr {}` cannot be run, or takes longer than 10 s", args.join(" "))
        })?
    };
    // Of the characters in a name, only the dot is special in a regular expression.
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
            let (config, runtime) = if exists(&path)? {
                let runtime = host.read(&bundle.join("runtime")).ok().flatten();
                (
                    ContainerConfig::File { path, by: "containerd's state directory".to_owned() },
                    runtime,
                )
            } else {
                let by = "ctr containers info".to_owned();
                let info = [&in_namespace[..], &["containers", "info", id]].concat();
                let info: ContainerInfo = serde_json::from_str(&call(&info)?)
                    .map_err(|error| format!("{by}: {error}"))?;
                let text = info.spec.to_string().into_bytes();
                (ContainerConfig::Text { text, by }, info.runtime.program())
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
                runtime,
            });
        }
    }
    Ok(found)
}

impl RuntimeInfo {
    /// Returns the program that containerd calls in place of `runc`, if one is configured.
    fn program(&self) -> Option<String> {
        let options = self.options.as_ref()?;
        let value = BASE64.decode(&options.value).ok()?;
        let is_runc = options.type_url.ends_with("containerd.runc.v1.Options");
        let options = RuncOptions::decode(&*value).ok().filter(|_| is_runc)?;
        Some(options.binary_name).filter(|name| !name.is_empty())
    }
}
