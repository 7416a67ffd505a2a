//! Types of a CDI specification, and the checks of their values.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::hooks::OciStage;

/// Versions of the specification, from old to new.
const VERSIONS: [&str; 10] =
    ["0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"];

/// Punctuation that is permitted inside device names.
const NAME_MARKS: &[u8] = b"_-.:";

/// A CDI specification: the content of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[non_exhaustive]
pub struct CdiSpec {
    pub cdi_version: String,
    /// Vendor and class: `vendor.com/class`.
    pub kind: String,
    pub annotations: BTreeMap<String, String>,
    pub devices: Vec<DeviceDefinition>,
    /// Edits for every container that gets at least one of the devices.
    pub container_edits: ContainerEdits,
}

/// A device of a specification.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[non_exhaustive]
pub struct DeviceDefinition {
    pub name: String,
    pub annotations: BTreeMap<String, String>,
    pub container_edits: ContainerEdits,
}

/// Changes to a container's `config.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
#[non_exhaustive]
pub struct ContainerEdits {
    /// Variables as `NAME=value`, which replace variables of the same name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<DeviceNode>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub net_devices: Vec<NetDevice>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<DeviceHook>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<DeviceMount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intel_rdt: Option<IntelRdt>,
    /// Supplementary group IDs of the process; 0 is ignored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub additional_gids: Vec<u32>,
}

/// A device node. The runtime creates it in the container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
#[non_exhaustive]
pub struct DeviceNode {
    pub path: String,
    /// Path on the host; if it is empty, the same as `path`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host_path: String,
    /// `b`, `c`, `u` or `p`; if it is empty, the type on the host.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Major number; if it is 0, both numbers are those of the host's device file.
    pub major: i64,
    pub minor: i64,
    /// Permission bits; `None` means those of the host's device file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_mode: Option<u32>,
    /// Letters of `rwm`, or `none`; if it is empty, `rwm`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub permissions: String,
    /// Owner in the container; `None` means the user of the container's process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Group in the container; `None` means the group of the container's process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
}

/// A network interface of the host that is moved into the container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
#[non_exhaustive]
pub struct NetDevice {
    pub host_interface_name: String,
    /// Name of the interface in the container.
    pub name: String,
}

/// A hook for one stage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
#[non_exhaustive]
pub struct DeviceHook {
    /// Name of the stage, such as `createContainer`.
    pub hook_name: String,
    pub path: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Timeout in seconds; `None` means no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
}

/// A mount of a host path in the container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
#[non_exhaustive]
pub struct DeviceMount {
    pub host_path: String,
    pub container_path: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
}

/// Limits of Intel's Resource Director Technology.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
#[non_exhaustive]
pub struct IntelRdt {
    #[serde(rename = "closID", skip_serializing_if = "String::is_empty")]
    pub clos_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub l3_cache_schema: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mem_bw_schema: String,
    #[serde(skip_serializing_if = "has_no_items")]
    pub schemata: Option<Vec<String>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub enable_monitoring: bool,
}

fn has_no_items(list: &Option<Vec<String>>) -> bool {
    list.as_ref().is_none_or(Vec::is_empty)
}

/// An invalid or missing value, with its JSON pointer.
#[derive(Debug)]
pub(super) struct ValueFault {
    pub pointer: String,
    pub message: String,
}

fn fault(pointer: impl Into<String>, message: impl Into<String>) -> ValueFault {
    ValueFault { pointer: pointer.into(), message: message.into() }
}

impl CdiSpec {
    /// Checks the values as the CDI Go package does.
    pub(super) fn check(&self) -> Result<(), ValueFault> {
        self.check_version()?;
        if !is_kind(&self.kind) {
            let message = format!("invalid kind {:?}: expected vendor.com/class", self.kind);
            return Err(fault("/kind", message));
        }
        self.container_edits.check("/containerEdits")?;
        if self.devices.is_empty() {
            return Err(fault("/devices", "expected at least one device"));
        }
        let mut names = HashSet::new();
        for (index, device) in self.devices.iter().enumerate() {
            let at = format!("/devices/{index}");
            let name = &device.name;
            if !is_name(name, u8::is_ascii_alphanumeric, NAME_MARKS) {
                let expected =
                    "expected letters, digits and `_-.:`, first and last a letter or digit";
                return Err(fault(
                    at + "/name",
                    format!("invalid device name {name:?}: {expected}"),
                ));
            }
            if device.container_edits == ContainerEdits::default() {
                return Err(fault(at, format!("device {name:?} has no containerEdits")));
            }
            device.container_edits.check(&format!("{at}/containerEdits"))?;
            if !names.insert(name) {
                return Err(fault(at + "/name", format!("device {name:?} is defined twice")));
            }
        }
        Ok(())
    }

    fn check_version(&self) -> Result<(), ValueFault> {
        let version = self.cdi_version.strip_prefix('v').unwrap_or(&self.cdi_version);
        let index = |wanted: &str| VERSIONS.iter().position(|known| *known == wanted);
        let Some(given) = index(version) else {
            let known = VERSIONS[2..].join(", ");
            let message =
                format!("unknown version {:?}: expected one of {known}", self.cdi_version);
            return Err(fault("/cdiVersion", message));
        };
        let (needed, reason) = self.needed_version();
        if index(needed).is_some_and(|needed| given < needed) {
            let message =
                format!("version {version} does not have {reason}: write {needed} or later");
            return Err(fault("/cdiVersion", message));
        }
        Ok(())
    }

    /// Returns the oldest version that supports every field in use, and a field that requires it.
    fn needed_version(&self) -> (&'static str, &'static str) {
        let all =
            || self.devices.iter().map(|it| &it.container_edits).chain([&self.container_edits]);
        let any = |test: fn(&ContainerEdits) -> bool| all().any(test);
        let is_new_rdt = |rdt: &IntelRdt| rdt.schemata.is_some() || rdt.enable_monitoring;
        if all().any(|edits| edits.intel_rdt.as_ref().is_some_and(is_new_rdt)) {
            return ("1.1.0", "intelRdt.schemata and enableMonitoring");
        }
        if any(|edits| !edits.net_devices.is_empty()) {
            return ("1.1.0", "netDevices");
        }
        if any(|edits| edits.intel_rdt.is_some()) {
            return ("0.7.0", "intelRdt");
        }
        if any(|edits| !edits.additional_gids.is_empty()) {
            return ("0.7.0", "additionalGids");
        }
        if !self.annotations.is_empty() || self.devices.iter().any(|it| !it.annotations.is_empty())
        {
            return ("0.6.0", "annotations");
        }
        if self.kind.split_once('/').is_some_and(|(_, class)| class.contains('.')) {
            return ("0.6.0", "dots in a class");
        }
        if self.devices.iter().any(|it| it.name.starts_with(|c: char| c.is_ascii_digit())) {
            return ("0.5.0", "device names that start with a digit");
        }
        if any(|edits| edits.device_nodes.iter().any(|node| !node.host_path.is_empty())) {
            return ("0.5.0", "hostPath of device nodes");
        }
        if any(|edits| edits.mounts.iter().any(|mount| !mount.kind.is_empty())) {
            return ("0.4.0", "types of mounts");
        }
        ("0.3.0", "the current schema")
    }
}

impl ContainerEdits {
    /// Appends other edits to these; an `intel_rdt` of `other` replaces the present one.
    pub(super) fn append(&mut self, other: &ContainerEdits) {
        self.env.extend_from_slice(&other.env);
        self.device_nodes.extend_from_slice(&other.device_nodes);
        self.net_devices.extend_from_slice(&other.net_devices);
        self.hooks.extend_from_slice(&other.hooks);
        self.mounts.extend_from_slice(&other.mounts);
        if other.intel_rdt.is_some() {
            self.intel_rdt.clone_from(&other.intel_rdt);
        }
        self.additional_gids.extend_from_slice(&other.additional_gids);
    }

    fn check(&self, at: &str) -> Result<(), ValueFault> {
        check_env(&self.env, at)?;
        for (index, node) in self.device_nodes.iter().enumerate() {
            node.check(&format!("{at}/deviceNodes/{index}"))?;
        }
        for (index, hook) in self.hooks.iter().enumerate() {
            hook.check(&format!("{at}/hooks/{index}"))?;
        }
        for (index, mount) in self.mounts.iter().enumerate() {
            let at = format!("{at}/mounts/{index}");
            not_empty(&mount.host_path, &at, "hostPath")?;
            not_empty(&mount.container_path, &at, "containerPath")?;
        }
        if let Some(rdt) = &self.intel_rdt {
            let id = &rdt.clos_id;
            let is_bad = id.len() >= 4096 || id == "." || id == ".." || id.contains(['/', '\n']);
            if id != "/" && is_bad {
                let message =
                    format!("invalid closID {id:?}: expected the name of a directory, or /");
                return Err(fault(format!("{at}/intelRdt/closID"), message));
            }
        }
        let (mut hosts, mut names) = (HashSet::new(), HashSet::new());
        for (index, device) in self.net_devices.iter().enumerate() {
            let at = format!("{at}/netDevices/{index}");
            not_empty(&device.host_interface_name, &at, "hostInterfaceName")?;
            not_empty(&device.name, &at, "name")?;
            let (host, name) = (&device.host_interface_name, &device.name);
            if !hosts.insert(host) || !names.insert(name) {
                let message = format!("duplicate hostInterfaceName {host:?} or name {name:?}");
                return Err(fault(at, message));
            }
        }
        Ok(())
    }
}

impl DeviceNode {
    fn check(&self, at: &str) -> Result<(), ValueFault> {
        not_empty(&self.path, at, "path")?;
        if !["", "b", "c", "u", "p"].contains(&self.kind.as_str()) {
            let message = format!("invalid type {:?}: expected b, c, u or p", self.kind);
            return Err(fault(format!("{at}/type"), message));
        }
        let permissions = &self.permissions;
        // Go checks that nothing is left after these letters are trimmed from both ends.
        if permissions != "none" && !permissions.chars().all(|c| "rwm".contains(c)) {
            let message =
                format!("invalid permissions {permissions:?}: expected letters of rwm, or none");
            return Err(fault(format!("{at}/permissions"), message));
        }
        Ok(())
    }
}

impl DeviceHook {
    fn check(&self, at: &str) -> Result<(), ValueFault> {
        if OciStage::from_name(&self.hook_name).is_none() {
            let stages = OciStage::ALL.map(OciStage::name).join(", ");
            let message = format!("unknown stage {:?}: expected one of {stages}", self.hook_name);
            return Err(fault(format!("{at}/hookName"), message));
        }
        not_empty(&self.path, at, "path")?;
        check_env(&self.env, at)
    }
}

fn check_env(env: &[String], at: &str) -> Result<(), ValueFault> {
    match env.iter().position(|entry| entry.find('=').is_none_or(|at| at == 0)) {
        Some(index) => Err(fault(format!("{at}/env/{index}"), "expected NAME=value")),
        None => Ok(()),
    }
}

/// Returns whether a text is a valid qualified device name: `vendor.com/class=name`.
pub fn is_device_name(text: &str) -> bool {
    let Some((kind, name)) = text.split_once('=') else { return false };
    is_kind(kind) && is_name(name, u8::is_ascii_alphanumeric, NAME_MARKS)
}

fn is_kind(text: &str) -> bool {
    text.split_once('/').is_some_and(|(vendor, class)| is_kind_part(vendor) && is_kind_part(class))
}

fn not_empty(value: &str, at: &str, key: &str) -> Result<(), ValueFault> {
    if value.is_empty() {
        return Err(fault(at, format!("missing required property: {key}")));
    }
    Ok(())
}

/// Returns whether a text is a valid vendor or class.
fn is_kind_part(name: &str) -> bool {
    is_name(name, u8::is_ascii_alphabetic, b"_-.")
}

fn is_name(name: &str, is_first: fn(&u8) -> bool, marks: &[u8]) -> bool {
    match name.as_bytes() {
        [] => false,
        [only] => is_first(only),
        [first, inner @ .., last] => {
            let is_inner = |byte: &u8| byte.is_ascii_alphanumeric() || marks.contains(byte);
            is_first(first) && inner.iter().all(is_inner) && last.is_ascii_alphanumeric()
        }
    }
}
