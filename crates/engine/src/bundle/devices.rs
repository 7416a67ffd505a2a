//! Lists the devices of a container, the defaults and the requested ones, and the rules of its device cgroup.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use oci_hooks::cdi;
use oci_hooks_files::beneath::descriptor_path;
use oci_hooks_files::fs::PathError;
use oci_hooks_host::file_user::FileUser;
use oci_hooks_host::host_file::{HostFile, HostRoot};
use oci_spec::runtime::{LinuxDevice, LinuxDeviceCgroup, LinuxDeviceType};
use rustix::fs::{self, AtFlags, CWD, FileType, major, minor};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A device of the host, or all devices below a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDevice {
    /// Device or directory on the host.
    pub host: HostFile,
    pub container: PathBuf,
    pub access: DeviceAccess,
}

/// Access to a device: some of `r`, `w` and `m`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAccess(String);

/// A rule for the device cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRule {
    /// `a`, `b` or `c`: all, block or character devices.
    pub kind: char,
    /// `None` for any.
    pub major: Option<u32>,
    /// `None` for any.
    pub minor: Option<u32>,
    pub access: DeviceAccess,
}

/// Errors of adding a device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The access is not a combination of `r`, `w` and `m`.
    #[error("invalid device access {text:?}: expected some of r, w and m")]
    Access { text: String },
    /// The rule does not follow Docker's syntax.
    #[error(
        "invalid device rule {text:?}: expected TYPE MAJOR:MINOR ACCESS, for example `c 42:* rmw`"
    )]
    Rule { text: String },
    #[error("{path} is not a device")]
    NotADevice { path: String },
    /// This process cannot create the device, and the container could not open the host's.
    #[error(
        "cannot add device {path}: the user who runs the container may not open it for {access}\
         {by_group}: have an administrator grant access (`setfacl -m u:USER:rw {path}`, or MODE=\"0666\" in a \
         udev rule)"
    )]
    Denied {
        path: String,
        /// `reading`, `writing`, or both.
        access: &'static str,
        /// Clause of the message about access through the user's groups, which containers do not
        /// have.
        by_group: &'static str,
    },
    /// This process cannot create the device, and the host has none that could be mounted.
    #[error(
        "cannot add device {path}: the host has no such file, and only root can create devices"
    )]
    NotOnHost { path: String },
    /// The device cannot be opened.
    #[error(transparent)]
    Path(#[from] PathError),
}

impl FromStr for DeviceAccess {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let is_good = !text.is_empty()
            && text.chars().all(|c| "rwm".contains(c) && text.matches(c).count() == 1);
        if is_good {
            Ok(DeviceAccess(text.to_owned()))
        } else {
            Err(DeviceError::Access { text: text.to_owned() })
        }
    }
}

impl DeviceAccess {
    /// Returns access to read, write and create a device.
    pub fn all() -> Self {
        DeviceAccess("rwm".to_owned())
    }

    /// Returns the access that a CDI specification permits; empty if it permits none.
    pub(super) fn of_cdi(node: &cdi::DeviceNode) -> Self {
        DeviceAccess(node.access().to_owned())
    }

    /// Returns the access to check on the host's device, and the word for it in messages, such as
    /// `reading`.
    fn file_access(&self) -> (fs::Access, &'static str) {
        match (self.0.contains('r'), self.0.contains('w')) {
            (true, true) => (fs::Access::READ_OK | fs::Access::WRITE_OK, "reading and writing"),
            (true, false) => (fs::Access::READ_OK, "reading"),
            (false, true) => (fs::Access::WRITE_OK, "writing"),
            (false, false) => (fs::Access::EXISTS, "anything"),
        }
    }
}

impl fmt::Display for DeviceAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for DeviceRule {
    type Err = DeviceError;

    /// Reads `TYPE MAJOR:MINOR ACCESS`.
    fn from_str(text: &str) -> Result<Self, DeviceError> {
        Self::parse(text).ok_or_else(|| DeviceError::Rule { text: text.to_owned() })
    }
}

impl fmt::Display for DeviceRule {
    /// Writes `TYPE MAJOR:MINOR ACCESS`, the syntax that [`FromStr`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |number: Option<u32>| number.map_or("*".to_owned(), |n| n.to_string());
        let DeviceRule { kind, major, minor, access } = self;
        write!(f, "{kind} {}:{} {access}", number(*major), number(*minor))
    }
}

impl Serialize for DeviceRule {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DeviceRule {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        // Without the text: errors of settings do not quote the file.
        Self::parse(&String::deserialize(from)?).ok_or_else(|| {
            D::Error::custom(
                "invalid device rule: expected KIND MAJOR:MINOR ACCESS, as in `c 189:* rwm`",
            )
        })
    }
}

impl DeviceRule {
    /// Returns whether this rule grants at least the access of the other rule.
    pub fn covers(&self, other: &DeviceRule) -> bool {
        let is_any = |own: Option<u32>, other| own.is_none() || own == other;
        (self.kind == 'a' || self.kind == other.kind)
            && is_any(self.major, other.major)
            && is_any(self.minor, other.minor)
            && other.access.0.chars().all(|access| self.access.0.contains(access))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let (kind, numbers, access) = (words.next()?, words.next()?, words.next()?);
        let kind = match kind {
            "a" | "b" | "c" => kind.chars().next()?,
            _ => return None,
        };
        let (major, minor) = numbers.split_once(':')?;
        let number =
            |text: &str| if text == "*" { Some(None) } else { text.parse().ok().map(Some) };
        let rule = DeviceRule {
            kind,
            major: number(major)?,
            minor: number(minor)?,
            access: access.parse().ok()?,
        };
        words.next().is_none().then_some(rule)
    }

    pub(super) fn to_spec(&self) -> LinuxDeviceCgroup {
        let kind = match self.kind {
            'b' => LinuxDeviceType::B,
            'c' => LinuxDeviceType::C,
            _ => LinuxDeviceType::A,
        };
        let mut rule = LinuxDeviceCgroup::default();
        rule.set_allow(true)
            .set_typ(Some(kind))
            .set_major(self.major.map(i64::from))
            .set_minor(self.minor.map(i64::from))
            .set_access(Some(self.access.0.clone()));
        rule
    }
}

/// Returns the rule that allows or denies all access to all devices.
fn every_device(allow: bool) -> LinuxDeviceCgroup {
    let mut rule = LinuxDeviceCgroup::default();
    rule.set_allow(allow).set_access(Some(DeviceAccess::all().0));
    rule
}

/// `linux.devices` and the rules of `linux.resources.devices`.
#[derive(Debug, Default)]
pub struct DeviceSet {
    pub nodes: Vec<DeviceNode>,
    pub rules: Vec<LinuxDeviceCgroup>,
}

/// A device node of a container, with the numbers, mode and owner of the host's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceNode {
    pub path: PathBuf,
    pub kind: LinuxDeviceType,
    pub major: u32,
    pub minor: u32,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Device file on the host, if it exists.
    pub host: Option<HostFile>,
    pub access: DeviceAccess,
}

/// Rules for devices that runtimes create in every container, and for terminals.
const DEFAULT_RULES: [&str; 10] = [
    // Making nodes is harmless where opening them is not allowed.
    "c *:* m",
    "b *:* m",
    "c 1:3 rwm",
    "c 1:5 rwm",
    "c 1:7 rwm",
    "c 1:8 rwm",
    "c 1:9 rwm",
    "c 5:0 rwm",
    "c 5:2 rwm",
    "c 136:* rwm",
];

/// Returns the devices of a container.
pub fn devices(
    wanted: &[HostDevice],
    rules: &[DeviceRule],
    privileged: bool,
) -> Result<DeviceSet, DeviceError> {
    let mut devices = DeviceSet::default();
    if privileged {
        devices.rules.push(every_device(true));
        let host = HostFile::open_trusted(Path::new("/dev"))?;
        devices
            .add(&HostDevice { host, container: "/dev".into(), access: DeviceAccess::all() }, 0)?;
    } else {
        devices.rules.push(every_device(false));
        let default = DEFAULT_RULES.iter().filter_map(|rule| DeviceRule::parse(rule));
        devices.rules.extend(default.map(|rule| rule.to_spec()));
    }
    for device in wanted {
        devices.add(device, 0)?;
    }
    devices.rules.extend(rules.iter().map(DeviceRule::to_spec));
    Ok(devices)
}

/// Returns the device nodes that a container could open on the host. A privileged container gets only these;
/// for other containers, a requested device that is not accessible is an error.
pub fn filter_accessible(
    nodes: Vec<DeviceNode>,
    privileged: bool,
) -> Result<Vec<DeviceNode>, DeviceError> {
    let mut kept = Vec::with_capacity(nodes.len());
    for node in nodes {
        match node.check_access() {
            Ok(()) => kept.push(node),
            Err(_) if privileged => {}
            Err(error) => return Err(error),
        }
    }
    Ok(kept)
}

/// Paths and numbers of the character devices that runtimes create in every container.
const RUNTIME_DEVICES: [(&str, u32, u32); 6] = [
    ("/dev/null", 1, 3),
    ("/dev/zero", 1, 5),
    ("/dev/full", 1, 7),
    ("/dev/random", 1, 8),
    ("/dev/urandom", 1, 9),
    ("/dev/tty", 5, 0),
];

/// Names that are skipped when the host's `/dev` is added: nodes that runtimes create, and mount
/// points of other file systems.
const RESERVED_DEV_NAMES: [&str; 8] =
    ["ptmx", "pts", "shm", "mqueue", "console", "fd", "init", "core"];

/// Maximum depth of subdirectories when a directory of devices is added.
const MAX_DEPTH: usize = 8;

impl DeviceSet {
    fn add(&mut self, device: &HostDevice, depth: usize) -> Result<(), DeviceError> {
        let stat = device.host.stat();
        let (kind, letter) = match device.host.kind() {
            FileType::Directory => return self.add_directory(device, depth),
            FileType::CharacterDevice => (LinuxDeviceType::C, 'c'),
            FileType::BlockDevice => (LinuxDeviceType::B, 'b'),
            _ => return Err(DeviceError::NotADevice { path: device.host.display().to_string() }),
        };
        let (major, minor) = (major(stat.st_rdev), minor(stat.st_rdev));
        let access = device.access.clone();
        self.nodes.push(DeviceNode {
            path: device.container.clone(),
            kind,
            major,
            minor,
            mode: stat.st_mode & 0o777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            host: Some(device.host.clone()),
            access: access.clone(),
        });
        let rule = DeviceRule { kind: letter, major: Some(major), minor: Some(minor), access };
        self.rules.push(rule.to_spec());
        Ok(())
    }

    fn add_directory(&mut self, directory: &HostDevice, depth: usize) -> Result<(), DeviceError> {
        if depth == MAX_DEPTH {
            return Ok(());
        }
        let root = HostRoot::of(directory.host.clone())?;
        let is_dev = directory.host.has_name(Path::new("/dev"));
        for name in root.names()? {
            let is_own = is_dev && RESERVED_DEV_NAMES.iter().any(|own| name == *own);
            let host = match root.open(Path::new(&name)) {
                // Symlinks are left to the container; a device may be gone by now.
                Err(_) => continue,
                Ok(host) => host,
            };
            let kind = host.kind();
            let is_device = kind.is_char_device() || kind.is_block_device();
            if is_own || !(is_device || kind.is_dir()) {
                continue;
            }
            let container = directory.container.join(&name);
            self.add(&HostDevice { host, container, access: directory.access.clone() }, depth + 1)?;
        }
        Ok(())
    }
}

impl DeviceNode {
    /// Returns whether runtimes create the same device in every container.
    pub(super) fn is_of_runtimes(&self) -> bool {
        self.kind == LinuxDeviceType::C
            && RUNTIME_DEVICES.iter().any(|(path, major, minor)| {
                self.path == Path::new(path) && (self.major, self.minor) == (*major, *minor)
            })
    }

    /// Checks that processes of a container, which lack this process's supplementary groups, could open the
    /// host's node, which is used if none can be created.
    ///
    /// # Errors
    ///
    /// Fails if the node cannot be opened.
    fn check_access(&self) -> Result<(), DeviceError> {
        let (wanted, access) = self.access.file_access();
        let Some(host) = &self.host else {
            return Err(DeviceError::NotOnHost { path: self.path.display().to_string() });
        };
        let path = descriptor_path(host);
        let is_allowed = || fs::accessat(CWD, &*path, wanted, AtFlags::empty()).is_ok();
        let root = FileUser { uid: 0, gid: 0 };
        // If this process cannot drop groups, containers keep them.
        let for_container = root.run_as_user(is_allowed).unwrap_or_else(|_| is_allowed());
        if for_container {
            return Ok(());
        }
        let by_group = if is_allowed() {
            " except through a group, and containers have none of the user's groups"
        } else {
            ", and containers have none of the user's groups"
        };
        Err(DeviceError::Denied { path: host.display().to_string(), access, by_group })
    }

    pub(super) fn to_spec(&self) -> LinuxDevice {
        let mut device = LinuxDevice::default();
        device
            .set_path(self.path.clone())
            .set_typ(self.kind)
            .set_major(self.major.into())
            .set_minor(self.minor.into())
            .set_file_mode(Some(self.mode))
            .set_uid(Some(self.uid))
            .set_gid(Some(self.gid));
        device
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{json, to_value};

    use super::*;

    #[test]
    fn device_rules_are_parsed_like_in_docker() {
        let rule: DeviceRule = "c 42:* rmw".parse().unwrap();
        let expected = json!({"allow": true, "type": "c", "major": 42, "access": "rmw"});
        assert_eq!(to_value(rule.to_spec()).unwrap(), expected);
        for wrong in ["", "c 42 r", "d 1:1 r", "c 1:1 x", "c 1:1 rr", "c 1:1 r r", "c -1:1 r"] {
            assert!(wrong.parse::<DeviceRule>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn device_nodes_have_the_hosts_numbers() {
        let zero = HostDevice {
            host: HostFile::open_trusted(Path::new("/dev/zero")).unwrap(),
            container: "/dev/nil".into(),
            access: "r".parse().unwrap(),
        };
        let devices = devices(&[zero], &[], false).unwrap();
        let node = &devices.nodes[0];
        assert_eq!(node.path, Path::new("/dev/nil"));
        assert_eq!((node.major, node.minor), (1, 5));
        assert_eq!(devices.rules.last().unwrap().access().as_deref(), Some("r"));
        assert_eq!(devices.rules.len(), 1 + DEFAULT_RULES.len() + 1);
        let first = to_value(&devices.rules[0]).unwrap();
        assert_eq!(first, json!({"allow": false, "access": "rwm"}));
    }

    #[test]
    fn files_that_are_no_device_are_rejected() {
        let file = HostDevice {
            host: HostFile::open_trusted(Path::new("/etc/passwd")).unwrap(),
            container: "/dev/x".into(),
            access: DeviceAccess::all(),
        };
        assert!(matches!(devices(&[file], &[], false), Err(DeviceError::NotADevice { .. })));
    }
}
