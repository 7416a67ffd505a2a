//! Applying the edits of devices to the text of a configuration.

use rustix::fs::{FileType, lstat, major, minor};
use serde::Serialize;

use super::load::{DeviceError, DeviceSelection};
use super::spec::{DeviceMount, DeviceNode};
use crate::hooks::entries::edit_entries;
use crate::hooks::{ConfigDocument, Hook, OciStage};
use crate::json::{JsonKind, JsonValue};

/// Applies the edits in the same order as the CDI Go package.
pub(super) fn apply(selection: &DeviceSelection, config: &[u8]) -> Result<Vec<u8>, DeviceError> {
    let edits = &selection.edits;
    let facts = ContainerFacts::of(&ConfigDocument::parse(config)?);
    let mut text = config.to_vec();
    if !edits.env.is_empty() {
        text = edit_entries(&text, &["process", "env"], JsonKind::Array, variable, |entries| {
            for entry in &edits.env {
                entries.put(name_of(entry), entry);
            }
        })?;
    }
    text = add_nodes(&edits.device_nodes, &facts, text)?;
    if !edits.net_devices.is_empty() {
        text =
            edit_entries(&text, &["linux", "netDevices"], JsonKind::Object, nameless, |entries| {
                for device in &edits.net_devices {
                    entries.put(&device.host_interface_name, &InterfaceName { name: &device.name });
                }
            })?;
    }
    if !edits.mounts.is_empty() {
        text = edit_entries(
            &text,
            &["mounts"],
            JsonKind::Array,
            |it| text_at(it, "destination"),
            |entries| {
                for mount in &edits.mounts {
                    entries.remove(&mount.container_path);
                    entries.push(
                        &mount.container_path,
                        &OciMount::of(mount, facts.has_user_namespace),
                    );
                }
                entries.sort_by_key(depth);
            },
        )?;
    }
    for stage in OciStage::ALL {
        let hooks: Vec<_> =
            edits.hooks.iter().filter(|hook| hook.hook_name == stage.name()).collect();
        if hooks.is_empty() {
            continue;
        }
        text =
            edit_entries(&text, &["hooks", stage.name()], JsonKind::Array, nameless, |entries| {
                for hook in hooks {
                    let env =
                        (!hook.env.is_empty() || selection.empty_env).then(|| hook.env.clone());
                    let (path, args) = (hook.path.clone(), hook.args.clone());
                    entries.push("", &Hook { path, args, env, timeout: hook.timeout });
                }
            })?;
    }
    if let Some(rdt) = &edits.intel_rdt {
        text = edit_entries(&text, &["linux"], JsonKind::Object, nameless, |entries| {
            entries.put("intelRdt", rdt);
        })?;
    }
    if edits.additional_gids.iter().any(|&gid| gid != 0) {
        let path = ["process", "user", "additionalGids"];
        text = edit_entries(&text, &path, JsonKind::Array, raw, |entries| {
            for gid in edits.additional_gids.iter().filter(|&&gid| gid != 0) {
                if !entries.contains(&gid.to_string()) {
                    entries.push(&gid.to_string(), gid);
                }
            }
        })?;
    }
    Ok(text)
}

fn add_nodes(
    nodes: &[DeviceNode],
    facts: &ContainerFacts,
    text: Vec<u8>,
) -> Result<Vec<u8>, DeviceError> {
    if nodes.is_empty() {
        return Ok(text);
    }
    let nodes: Vec<_> = nodes.iter().map(DeviceNode::with_host_values).collect::<Result<_, _>>()?;
    let devices: Vec<_> = nodes.iter().map(|node| facts.device(node)).collect();
    let text = edit_entries(
        &text,
        &["linux", "devices"],
        JsonKind::Array,
        |it| text_at(it, "path"),
        |entries| {
            for device in &devices {
                entries.remove(device.path);
                entries.put(device.path, device);
            }
        },
    )?;
    let rules: Vec<_> = nodes.iter().filter_map(DeviceRule::of).collect();
    if rules.is_empty() {
        return Ok(text);
    }
    let path = ["linux", "resources", "devices"];
    let text = edit_entries(&text, &path, JsonKind::Array, nameless, |entries| {
        for rule in &rules {
            entries.push("", rule);
        }
    })?;
    Ok(text)
}

fn name_of(variable: &str) -> &str {
    variable.split('=').next().unwrap_or_default()
}

fn variable(entry: JsonValue<'_>) -> String {
    name_of(&entry.as_str().unwrap_or_default()).to_owned()
}

fn text_at(entry: JsonValue<'_>, key: &str) -> String {
    entry.get(key).and_then(JsonValue::as_str).unwrap_or_default().into_owned()
}

fn raw(entry: JsonValue<'_>) -> String {
    String::from_utf8_lossy(entry.raw()).into_owned()
}

fn nameless(_: JsonValue<'_>) -> String {
    String::new()
}

/// Returns the number of slashes in a path after Go's `filepath.Clean`.
fn depth(path: &str) -> usize {
    let is_absolute = path.starts_with('/');
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => drop(parts.pop()),
            ".." if is_absolute => {}
            part => parts.push(part),
        }
    }
    if is_absolute { parts.len().max(1) } else { parts.len().saturating_sub(1) }
}

/// Values of the configuration on which the edits depend.
struct ContainerFacts {
    /// `process.user.uid`, if it is not 0.
    uid: Option<u32>,
    /// `process.user.gid`, if it is not 0.
    gid: Option<u32>,
    has_user_namespace: bool,
}

impl ContainerFacts {
    fn of(config: &ConfigDocument<'_>) -> Self {
        let root = config.document().root();
        let user = root.get("process").and_then(|process| process.get("user"));
        let id = |name: &str| {
            let id = user?.get(name)?.as_i64()?;
            u32::try_from(id).ok().filter(|&id| id > 0)
        };
        let namespaces = root.get("linux").and_then(|linux| linux.get("namespaces"));
        let has_user_namespace =
            namespaces.is_some_and(|list| list.elements().any(|it| text_at(it, "type") == "user"));
        ContainerFacts { uid: id("uid"), gid: id("gid"), has_user_namespace }
    }

    fn device<'n>(&self, node: &'n DeviceNode) -> OciDevice<'n> {
        OciDevice {
            path: &node.path,
            kind: &node.kind,
            major: node.major,
            minor: node.minor,
            file_mode: node.file_mode,
            uid: node.uid.or(self.uid),
            gid: node.gid.or(self.gid),
        }
    }
}

impl DeviceNode {
    /// Returns the path of the device file on the host.
    pub fn host_path(&self) -> &str {
        if self.host_path.is_empty() { &self.path } else { &self.host_path }
    }

    /// Returns the permitted access as letters of `rwm`; empty if none is permitted.
    pub fn access(&self) -> &str {
        match self.permissions.as_str() {
            "" => "rwm",
            "none" => "",
            permissions => permissions,
        }
    }

    /// Returns the node, with missing values taken from the device file on the host.
    pub fn with_host_values(&self) -> Result<DeviceNode, DeviceError> {
        let mut node = self.clone();
        let is_complete = !node.kind.is_empty() && (node.major != 0 || node.kind == "p");
        let path = self.host_path();
        let stat = match lstat(path) {
            Ok(stat) => stat,
            Err(_) if is_complete => return Ok(node),
            Err(error) => {
                return Err(DeviceError::Node { path: path.to_owned(), source: error.into() });
            }
        };
        let found = match FileType::from_raw_mode(stat.st_mode) {
            FileType::BlockDevice => "b",
            FileType::CharacterDevice => "c",
            FileType::Fifo => "p",
            _ if is_complete => return Ok(node),
            _ => {
                let (path, expected) = (path.to_owned(), node.kind);
                return Err(DeviceError::NodeType { path, expected, found: "not a device" });
            }
        };
        node.file_mode.get_or_insert(stat.st_mode & 0o7777);
        if is_complete {
            return Ok(node);
        }
        if !node.kind.is_empty() && node.kind != found {
            let (path, expected) = (path.to_owned(), node.kind);
            return Err(DeviceError::NodeType { path, expected, found });
        }
        found.clone_into(&mut node.kind);
        if found != "p" && node.major == 0 {
            node.major = major(stat.st_rdev).into();
            node.minor = minor(stat.st_rdev).into();
        }
        Ok(node)
    }
}

/// An element of `linux.devices`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OciDevice<'n> {
    path: &'n str,
    #[serde(rename = "type")]
    kind: &'n str,
    major: i64,
    minor: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    file_mode: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gid: Option<u32>,
}

/// An element of `linux.resources.devices`.
#[derive(Serialize)]
struct DeviceRule<'n> {
    allow: bool,
    #[serde(rename = "type")]
    kind: &'n str,
    major: i64,
    minor: i64,
    #[serde(skip_serializing_if = "str::is_empty")]
    access: &'n str,
}

impl<'n> DeviceRule<'n> {
    /// Returns the rule that permits access to a device; `None` unless its type is `b` or `c`.
    fn of(node: &'n DeviceNode) -> Option<Self> {
        let DeviceNode { kind, major, minor, .. } = node;
        let is_device = kind == "b" || kind == "c";
        let (major, minor, access) = (*major, *minor, node.access());
        is_device.then_some(DeviceRule { allow: true, kind, major, minor, access })
    }
}

/// A value of `linux.netDevices`.
#[derive(Serialize)]
struct InterfaceName<'e> {
    name: &'e str,
}

/// An element of `mounts`.
#[derive(Serialize)]
struct OciMount<'e> {
    destination: &'e str,
    #[serde(rename = "type", skip_serializing_if = "str::is_empty")]
    kind: &'e str,
    source: &'e str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    options: Vec<&'e str>,
}

impl<'e> OciMount<'e> {
    /// Returns the entry of a mount. In a user namespace, bind mounts get the option `idmap` or
    /// `ridmap`, which maps the owners of their files.
    fn of(mount: &'e DeviceMount, has_user_namespace: bool) -> Self {
        let mut options: Vec<&str> = mount.options.iter().map(String::as_str).collect();
        let is_mapped = options.iter().any(|option| ["idmap", "ridmap"].contains(option));
        if has_user_namespace && !is_mapped {
            let bind = options.iter().rev().find(|option| ["bind", "rbind"].contains(option));
            match bind {
                Some(&"rbind") => options.push("ridmap"),
                Some(_) => options.push("idmap"),
                None if mount.kind == "bind" => options.push("idmap"),
                None => {}
            }
        }
        let (destination, source) = (&mount.container_path, &mount.host_path);
        OciMount { destination, kind: &mount.kind, source, options }
    }
}
