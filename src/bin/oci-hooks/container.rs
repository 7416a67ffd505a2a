//! Containers of the engines on this machine: their configuration, and the rules that apply to their hooks.
//!
//! Engines are queried through their command-line programs. Each call has a time limit.

mod containerd;
mod crio;
mod inspect;

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use oci_hooks::hooks::Consumer;
use oci_hooks::hooks::consumer::{CRIO, NRI, PODMAN};
use oci_hooks::hooks::directories::ConfiguredDirs;
use serde::Serialize;

use crate::doctor::containerd::ContainerdConfig;
use crate::doctor::crio::{CrioConfig, directories as crio_directories};
use crate::doctor::docker::DockerInfo;
use crate::doctor::host::DoctorHost;
use crate::doctor::native::consumer_of;
use crate::doctor::wrapper;
use crate::error::HooksCommandError;

/// An engine that runs containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ContainerEngine {
    Podman,
    Docker,
    Crio,
    /// containerd without the containers of Docker
    Containerd,
}

/// A container of an engine.
#[derive(Clone, Debug)]
pub struct EngineContainer {
    pub engine: ContainerEngine,
    pub id: String,
    /// Name; for containerd, `NAMESPACE/ID`.
    pub name: String,
    /// State as the engine names it, if it reports one.
    pub state: Option<String>,
    /// The program or file that describes the container.
    pub source: String,
    pub config: ContainerConfig,
    /// Name or path of the runtime, for engines whose runtime may add hooks.
    runtime: Option<String>,
}

/// The configuration of a container.
#[derive(Clone, Debug)]
pub enum ContainerConfig {
    /// A `config.json`, with its source.
    File { path: PathBuf, by: String },
    /// A configuration made from other data, with its source.
    Text { text: Vec<u8>, by: String },
}

/// The consumer whose rules apply to the hooks of a container, and its directories, with their sources.
pub struct ContainerRules {
    pub consumer: Consumer,
    /// Source of the consumer, as printed by `explain`.
    pub by: String,
    /// Hook directories; if `None`, the consumer's own configuration decides.
    pub dirs: Option<ConfiguredDirs>,
    /// The reason why no hooks are injected, whatever the hooks are; `None` if matching hooks are
    /// injected.
    pub exempt: Option<String>,
}

impl ContainerEngine {
    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            ContainerEngine::Podman => "podman",
            ContainerEngine::Docker => "docker",
            ContainerEngine::Crio => "crio",
            ContainerEngine::Containerd => "containerd",
        }
    }

    /// Asks the engine for containers with a name or id; `None` if the engine is not installed.
    fn find(self, name: &str, host: &DoctorHost) -> Option<Result<Vec<EngineContainer>, String>> {
        let program = host.program(self.name())?;
        Some(match self {
            ContainerEngine::Podman | ContainerEngine::Docker => {
                inspect::find(self, &program, name, host)
            }
            ContainerEngine::Crio => crio::find(name, host),
            ContainerEngine::Containerd => containerd::find(&program, name, host),
        })
    }
}

/// Returns whether engines accept a text as the name of a container.
pub fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
}

/// Finds a container by its name, id or the start of its id. Returns `None` if no engine is installed; a missing
/// engine is an error only if it is `wanted`.
pub fn find(
    name: &str,
    wanted: Option<ContainerEngine>,
    host: &DoctorHost,
) -> Result<Option<EngineContainer>, HooksCommandError> {
    let engines = ContainerEngine::value_variants().iter();
    let engines = engines.filter(|engine| wanted.is_none_or(|wanted| wanted == **engine));
    let mut found: Vec<EngineContainer> = Vec::new();
    let mut answers = Vec::new();
    for engine in engines {
        match engine.find(name, host) {
            None if wanted.is_none() => {}
            None => answers.push(format!("{}: not installed", engine.name())),
            Some(Ok(containers)) => {
                for container in containers {
                    // Docker's containers are also containerd's, and `docker` may be podman.
                    let is_same = |other: &EngineContainer| {
                        other.id == container.id && other.engine != container.engine
                    };
                    if !found.iter().any(is_same) {
                        found.push(container);
                    }
                }
                answers.push(format!("{}: no such container", engine.name()));
            }
            Some(Err(message)) => answers.push(format!("{}: {message}", engine.name())),
        }
    }
    // The whole name or id of one container may be the start of another container's id.
    let is_whole = |container: &EngineContainer| container.id == name || container.name == name;
    if found.iter().any(is_whole) {
        found.retain(is_whole);
    }
    match found.len() {
        0 if answers.is_empty() => Ok(None),
        0 => Err(HooksCommandError::NoContainer { name: name.to_owned(), answers }),
        1 => Ok(found.pop()),
        _ => Err(HooksCommandError::ManyContainers {
            hint: match found.iter().all(|other| other.engine == found[0].engine) {
                true => "pass the full ID".to_owned(),
                false => format!("choose one with --engine {}", found[0].engine.name()),
            },
            name: name.to_owned(),
            found: found.iter().map(EngineContainer::describe).collect(),
        }),
    }
}

impl EngineContainer {
    /// Returns the engine, the name, and the first 12 characters of the id.
    fn describe(&self) -> String {
        let EngineContainer { engine, name, id, .. } = self;
        format!("{} {name} ({:.12})", engine.name(), id)
    }

    /// Returns the rules for the container's hooks.
    pub fn rules(&self, host: &DoctorHost) -> Result<ContainerRules, HooksCommandError> {
        let rules = |consumer, by: &str| ContainerRules {
            consumer,
            by: by.to_owned(),
            dirs: None,
            exempt: None,
        };
        match self.engine {
            ContainerEngine::Podman => {
                let podman = host.program("podman");
                Ok(match podman.and_then(|podman| consumer_of(&podman, host).ok()) {
                    Some(consumer) => rules(consumer, "podman --version"),
                    None => rules(PODMAN, "assumed: `podman --version` gives no version"),
                })
            }
            ContainerEngine::Crio => {
                let config = CrioConfig::query(host).ok().flatten();
                let dirs = crio_directories(config.as_ref(), host);
                let dirs = dirs.map_err(|source| HooksCommandError::Directories {
                    consumer: CRIO.name,
                    source,
                })?;
                Ok(ContainerRules { dirs: Some(dirs), ..rules(CRIO, "the container's engine") })
            }
            ContainerEngine::Docker => {
                let info = DockerInfo::query(host);
                let name = self.runtime.as_deref().unwrap_or("runc");
                let path = info.as_ref().and_then(|info| info.runtime(name)).unwrap_or(name);
                Ok(of_runtime(path, "docker info", host).unwrap_or_else(|| {
                    let reason = format!(
                        "the runtime {name} adds no hooks, and Docker itself reads no hook files"
                    );
                    ContainerRules {
                        exempt: Some(reason),
                        ..rules(PODMAN, "as if oci-hooks-runtime were the runtime")
                    }
                }))
            }
            ContainerEngine::Containerd => {
                let runtime = self.runtime.as_deref().unwrap_or("runc");
                if let Some(rules) = of_runtime(runtime, "containerd", host) {
                    return Ok(rules);
                }
                let of_pods = self.name.starts_with("k8s.io/");
                let config = host.program("containerd").filter(|_| of_pods);
                let config = config.and_then(|path| ContainerdConfig::of(&path, host).ok());
                Ok(match config.and_then(|config| config.nri_plugin(host)) {
                    Some(plugin) => rules(NRI, &plugin),
                    None => ContainerRules {
                        exempt: Some(format!(
                            "the runtime {runtime} adds no hooks, and no NRI plugin adds them to this container"
                        )),
                        ..rules(NRI, "as if oci-hooks-nri were installed")
                    },
                })
            }
        }
    }
}

/// Returns the rules of `oci-hooks-runtime`, if `runtime` is that wrapper.
fn of_runtime(runtime: &str, by: &str, host: &DoctorHost) -> Option<ContainerRules> {
    wrapper::is_wrapper(runtime, host).then(|| {
        let config = wrapper::config(host);
        ContainerRules {
            consumer: config.consumer,
            by: format!("the runtime {runtime}, named by {by}"),
            dirs: Some(ConfiguredDirs::external(config.dirs, config.dirs_source)),
            exempt: None,
        }
    })
}

/// Returns whether a file exists; an error if it cannot be looked up, for example without permission.
fn exists(path: &Path) -> Result<bool, String> {
    path.try_exists().map_err(|error| format!("cannot look up {}: {error}", path.display()))
}

#[test]
fn names_are_those_of_engines() {
    for (text, expected) in [
        ("web", true),
        ("3f2a", true),
        ("k8s_web_pod-1.2", true),
        ("", false),
        ("-f", false),
        (".", false),
        ("a/b", false),
        ("a b", false),
    ] {
        assert_eq!(is_name(text), expected, "{text}");
    }
}
