//! Origin of the hooks that a configuration has.

use std::fmt;
use std::path::{Path, PathBuf};

use oci_hooks::cdi::{ContainerEdits, DeviceHook, DeviceRegistry};
use oci_hooks::hooks::{ConfigDocument, Consumer, Hook, HookSet, HookStage, OciStage};
use oci_hooks::json::JsonValue;
use serde::Serialize;

/// A hook of a configuration.
#[derive(Serialize)]
pub struct ConfigHook {
    pub stage: &'static str,
    pub path: String,
    pub args: Vec<String>,
    pub origin: HookOrigin,
    /// True if the program exists. Null if that is unknown: the hook runs inside the container, its path is below
    /// `/proc`, or the path cannot be looked up.
    pub exists: Option<bool>,
}

/// The origin of a hook.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum HookOrigin {
    HookFile {
        file: PathBuf,
    },
    /// CDI adds the hook for one of `devices`, or for any device of the specification if `devices` is empty.
    Cdi {
        file: PathBuf,
        devices: Vec<String>,
    },
    Engine {
        name: &'static str,
    },
    Unknown,
}

/// Hooks that engines add: a program or an argument that identifies the hook, and its origin.
const ENGINE_HOOKS: [(&str, &str); 3] = [
    ("libnetwork-setkey", "Docker, for the network"),
    ("oci-hook", "nerdctl, for the network"),
    ("nvidia-container-runtime-hook", "NVIDIA's runtime, or --gpus of Docker"),
];

impl fmt::Display for HookOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HookOrigin::HookFile { file } => write!(f, "hook file {}", file.display()),
            HookOrigin::Cdi { file, devices } if devices.is_empty() => {
                write!(f, "CDI, for any device of {}", file.display())
            }
            HookOrigin::Cdi { file, devices } => {
                write!(f, "CDI device {} of {}", devices.join(" or "), file.display())
            }
            HookOrigin::Engine { name } => f.write_str(name),
            HookOrigin::Unknown => f.write_str("origin unknown"),
        }
    }
}

/// Known sources of hooks.
pub struct HookSources<'a> {
    pub hooks: &'a HookSet,
    pub consumer: &'a Consumer,
    pub registry: &'a DeviceRegistry,
    /// Names of the devices that annotations request.
    pub devices: Vec<&'a str>,
}

impl HookSources<'_> {
    /// Returns the hooks of a configuration in the order of their stages.
    pub fn explain(&self, config: &ConfigDocument<'_>) -> Vec<ConfigHook> {
        let hooks = config.document().root().get("hooks");
        let stages = OciStage::ALL.into_iter().flat_map(|stage| {
            let list = hooks.and_then(|hooks| hooks.get(stage.name()));
            list.into_iter().flat_map(JsonValue::elements).map(move |element| (stage, element))
        });
        let explained = stages.map(|(stage, element)| {
            let hook = hook_of(element);
            let origin = self.origin(stage, &hook);
            // A path below `/proc` is the executable of a process, such as dockerd, which may have exited since.
            let is_process = hook.path.starts_with("/proc/");
            let is_on_host = stage != OciStage::StartContainer && !is_process;
            let exists = is_on_host.then(|| Path::new(&hook.path).try_exists().ok()).flatten();
            ConfigHook { stage: stage.name(), path: hook.path, args: hook.args, origin, exists }
        });
        explained.collect()
    }

    fn origin(&self, stage: OciStage, hook: &Hook) -> HookOrigin {
        let file = self.hooks.iter().find(|file| {
            let stages = &file.definition.stages;
            let at_stage = stages.iter().any(|at| match at {
                HookStage::Oci(OciStage::Prestart) => self.consumer.prestart == stage,
                // Podman runs `poststop` hooks itself; with the wrapper they are in the configuration.
                at => at.name() == stage.name(),
            });
            at_stage && is_same(&file.definition.hook, hook)
        });
        if let Some(file) = file {
            return HookOrigin::HookFile { file: file.path.clone() };
        }
        self.cdi(stage, hook).unwrap_or_else(|| {
            let program = Path::new(&hook.path).file_name().and_then(|name| name.to_str());
            let mut words = program.into_iter().chain(hook.args.iter().map(String::as_str));
            let known =
                words.find_map(|word| ENGINE_HOOKS.iter().find(|(known, _)| *known == word));
            known.map_or(HookOrigin::Unknown, |(_, name)| HookOrigin::Engine { name })
        })
    }

    /// Finds the hook in CDI specifications; `None` if no specification has it. Requested devices
    /// take precedence over other devices, and devices over edits for all devices of a
    /// specification.
    fn cdi(&self, stage: OciStage, hook: &Hook) -> Option<HookOrigin> {
        let has_hook = |edits: &ContainerEdits| {
            edits.hooks.iter().any(|device| {
                device.hook_name == stage.name() && is_same(&hook_of_device(device), hook)
            })
        };
        let entries: Vec<_> = self
            .registry
            .devices()
            .filter(|entry| has_hook(&entry.device.container_edits))
            .collect();
        let requested = entries.iter().find(|entry| self.devices.contains(&entry.name));
        if let Some(first) = requested.or(entries.first()) {
            let is_candidate = |name: &str| match requested {
                Some(_) => self.devices.contains(&name),
                None => true,
            };
            let devices =
                entries.iter().filter(|it| it.path == first.path && is_candidate(it.name));
            return Some(HookOrigin::Cdi {
                file: first.path.to_owned(),
                devices: devices.map(|entry| entry.name.to_owned()).collect(),
            });
        }
        let (path, _) = self.registry.specs().find(|(_, spec)| has_hook(&spec.container_edits))?;
        Some(HookOrigin::Cdi { file: path.to_owned(), devices: Vec::new() })
    }
}

/// Environment of a hook whose `env` is empty, as `oci-hooks-nri` sets it: in NRI, an empty list means the runtime's
/// environment.
const EMPTY_ENV_OF_NRI: &str = "OCI_HOOKS_NRI=1";

/// Returns whether two hooks are the same. A missing environment equals an empty environment, which `--strict` and
/// `oci-hooks-nri` set in its place.
fn is_same(one: &Hook, other: &Hook) -> bool {
    let env = |hook: &Hook| match hook.env.as_deref().unwrap_or_default() {
        [variable] if variable == EMPTY_ENV_OF_NRI => Vec::new(),
        env => env.to_vec(),
    };
    one.path == other.path
        && one.args == other.args
        && one.timeout == other.timeout
        && env(one) == env(other)
}

fn hook_of_device(device: &DeviceHook) -> Hook {
    let DeviceHook { path, args, env, timeout, .. } = device.clone();
    Hook { path, args, env: Some(env), timeout }
}

fn hook_of(element: JsonValue<'_>) -> Hook {
    let strings = |name| {
        let list = element.get(name).into_iter().flat_map(JsonValue::elements);
        list.map(|item| item.as_str().unwrap_or_default().into_owned()).collect()
    };
    Hook {
        path: element.get("path").and_then(JsonValue::as_str).unwrap_or_default().into_owned(),
        args: strings("args"),
        env: Some(strings("env")),
        timeout: element.get("timeout").and_then(JsonValue::as_i64),
    }
}
