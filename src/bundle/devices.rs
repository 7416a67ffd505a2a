//! Devices: what every container has, and what was asked for.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use oci_spec::runtime::{LinuxDevice, LinuxDeviceCgroup, LinuxDeviceType};
use rustix::fs::{self, AtFlags, CWD, FileType, major, minor};

use crate::sys::caller::FileUser;
use crate::sys::fs::PathError;
use crate::sys::host_file::{HostFile, HostRoot};

/// A device of the host, or all those below a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// What it is on the host.
    pub host: HostFile,
    /// Its path in the container.
    pub container: PathBuf,
    /// What the container may do with it.
    pub access: Access,
}

/// What may be done with a device: some of `r`, `w` and `m`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access(String);

/// A rule for the device cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceRule {
    /// `a`, `b` or `c`: all, block or character devices.
    pub kind: char,
    /// `None` for any.
    pub major: Option<u32>,
    /// `None` for any.
    pub minor: Option<u32>,
    pub access: Access,
}

/// Why a device cannot be given.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// It is not written as Docker writes one.
    #[error("invalid device {text:?}: expected /dev/NAME[:/dev/NAME][:rwm]")]
    Syntax { text: String },
    /// It is not what may be done with a device.
    #[error("invalid device access {text:?}: expected some of r, w and m")]
    Access { text: String },
    /// It is not a rule as Docker writes one.
    #[error(
        "invalid device rule {text:?}: expected TYPE MAJOR:MINOR ACCESS, for example `c 42:* rmw`"
    )]
    Rule { text: String },
    #[error("{path} is not a device")]
    NotADevice {
        /// What it is called on the host.
        path: String,
    },
    /// This process may not make it, and the container could not open the host's.
    #[error(
        "cannot give the container {path}: the user who runs it may not open it for {access} \
         {by_group}: have an administrator allow it (`setfacl -m u:USER:rw {path}`, or MODE=\"0666\" in a \
         udev rule)"
    )]
    Denied {
        /// What it is called on the host.
        path: String,
        /// `reading`, `writing`, or both.
        access: &'static str,
        /// What groups of the user have to do with it.
        by_group: &'static str,
    },
    /// It cannot be looked at.
    #[error(transparent)]
    Path(#[from] PathError),
}

impl FromStr for Access {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let is_good = !text.is_empty()
            && text.chars().all(|c| "rwm".contains(c) && text.matches(c).count() == 1);
        if is_good {
            Ok(Access(text.to_owned()))
        } else {
            Err(DeviceError::Access { text: text.to_owned() })
        }
    }
}

impl Access {
    /// Everything.
    pub fn all() -> Self {
        Access("rwm".to_owned())
    }

    /// Returns how it has to be opened for that, and what that is called.
    fn of_file(&self) -> (fs::Access, &'static str) {
        match (self.0.contains('r'), self.0.contains('w')) {
            (true, true) => (fs::Access::READ_OK | fs::Access::WRITE_OK, "reading and writing"),
            (true, false) => (fs::Access::READ_OK, "reading"),
            (false, true) => (fs::Access::WRITE_OK, "writing"),
            (false, false) => (fs::Access::EXISTS, "anything"),
        }
    }
}

impl FromStr for Device {
    type Err = DeviceError;

    /// Reads `HOST[:CONTAINER][:ACCESS]`, and opens the device, which the administrator names.
    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let wrong = || DeviceError::Syntax { text: text.to_owned() };
        let parts: Vec<&str> = text.split(':').collect();
        let (host, container, access) = match parts[..] {
            [host] => (host, host, Access::all()),
            [host, last] => match last.parse() {
                Ok(access) => (host, host, access),
                Err(_) => (host, last, Access::all()),
            },
            [host, container, access] => (host, container, access.parse().map_err(|_| wrong())?),
            _ => return Err(wrong()),
        };
        if !host.starts_with('/') || !container.starts_with('/') {
            return Err(wrong());
        }
        let host = HostFile::open_trusted(Path::new(host))?;
        Ok(Device { host, container: container.into(), access })
    }
}

impl FromStr for DeviceRule {
    type Err = DeviceError;

    /// Reads `TYPE MAJOR:MINOR ACCESS`.
    fn from_str(text: &str) -> Result<Self, DeviceError> {
        Self::parse(text).ok_or_else(|| DeviceError::Rule { text: text.to_owned() })
    }
}

impl DeviceRule {
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

    fn to_spec(&self) -> LinuxDeviceCgroup {
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

/// Returns the rule that allows or denies everything with all devices.
fn every_device(allow: bool) -> LinuxDeviceCgroup {
    let mut rule = LinuxDeviceCgroup::default();
    rule.set_allow(allow).set_access(Some(Access::all().0));
    rule
}

/// `linux.devices` and the rules of `linux.resources.devices`.
#[derive(Debug, Default)]
pub struct Devices {
    pub nodes: Vec<Node>,
    pub rules: Vec<LinuxDeviceCgroup>,
}

/// A device node of a container, as the host has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub path: PathBuf,
    pub kind: LinuxDeviceType,
    pub major: u32,
    pub minor: u32,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// What it is on the host.
    pub host: HostFile,
    /// What the container may do with it.
    pub access: Access,
}

/// What the runtimes themselves make in every container, and the terminals.
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
    wanted: &[Device],
    rules: &[DeviceRule],
    privileged: bool,
) -> Result<Devices, DeviceError> {
    let mut devices = Devices::default();
    if privileged {
        devices.rules.push(every_device(true));
        let host = HostFile::open_trusted(Path::new("/dev"))?;
        devices.add(&Device { host, container: "/dev".into(), access: Access::all() }, 0)?;
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

/// Returns those of the host's device nodes that a container could open. A privileged one gets what there
/// is, and one that asks for a device that or an error.
pub fn accessible(nodes: Vec<Node>, privileged: bool) -> Result<Vec<Node>, DeviceError> {
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

/// What runtimes make by themselves, and what is a mount of its own.
const OWN: [&str; 8] = ["ptmx", "pts", "shm", "mqueue", "console", "fd", "init", "core"];

/// How deep directories of devices are.
const MAX_DEPTH: usize = 8;

impl Devices {
    fn add(&mut self, device: &Device, depth: usize) -> Result<(), DeviceError> {
        let stat = device.host.stat();
        let (kind, letter) = match device.host.kind() {
            FileType::Directory => return self.add_directory(device, depth),
            FileType::CharacterDevice => (LinuxDeviceType::C, 'c'),
            FileType::BlockDevice => (LinuxDeviceType::B, 'b'),
            _ => return Err(DeviceError::NotADevice { path: device.host.display().to_string() }),
        };
        let (major, minor) = (major(stat.st_rdev), minor(stat.st_rdev));
        let access = device.access.clone();
        self.nodes.push(Node {
            path: device.container.clone(),
            kind,
            major,
            minor,
            mode: stat.st_mode & 0o777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            host: device.host.clone(),
            access: access.clone(),
        });
        let rule = DeviceRule { kind: letter, major: Some(major), minor: Some(minor), access };
        self.rules.push(rule.to_spec());
        Ok(())
    }

    fn add_directory(&mut self, directory: &Device, depth: usize) -> Result<(), DeviceError> {
        if depth == MAX_DEPTH {
            return Ok(());
        }
        let root = HostRoot::of(directory.host.clone())?;
        let is_dev = directory.host.has_name(Path::new("/dev"));
        for name in root.names()? {
            let is_own = is_dev && OWN.iter().any(|own| name == *own);
            let host = match root.open(Path::new(&name)) {
                // Links are made in the container by who wants them; what is gone is gone.
                Err(_) => continue,
                Ok(host) => host,
            };
            let kind = host.kind();
            let is_device = kind.is_char_device() || kind.is_block_device();
            if is_own || !(is_device || kind.is_dir()) {
                continue;
            }
            let container = directory.container.join(&name);
            self.add(&Device { host, container, access: directory.access.clone() }, depth + 1)?;
        }
        Ok(())
    }
}

impl Node {
    /// Checks that processes of a container could open the node of the host, which they get where none
    /// can be made. They are in none of the groups that this process may be in.
    ///
    /// # Errors
    ///
    /// Fails if they could not.
    fn check_access(&self) -> Result<(), DeviceError> {
        let (wanted, access) = self.access.of_file();
        let path = format!("/proc/self/fd/{}", self.host.as_fd().as_raw_fd());
        let is_allowed = || fs::accessat(CWD, &*path, wanted, AtFlags::empty()).is_ok();
        let root = FileUser { uid: 0, gid: 0 };
        // Where nobody may leave groups, containers keep them.
        let for_container = root.act(is_allowed).unwrap_or_else(|_| is_allowed());
        if for_container {
            return Ok(());
        }
        let by_group = if is_allowed() {
            "but by a group, and containers are in none of this user's"
        } else {
            "by itself, and containers are in none of this user's groups"
        };
        Err(DeviceError::Denied { path: self.host.display().to_string(), access, by_group })
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
    fn devices_are_read_as_docker_reads_them() {
        let device: Device = "/dev/null".parse().unwrap();
        assert_eq!(device.container, Path::new("/dev/null"));
        assert_eq!(device.access, Access::all());
        let device: Device = "/dev/null:r".parse().unwrap();
        assert_eq!((device.container.to_str(), &*device.access.0), (Some("/dev/null"), "r"));
        let device: Device = "/dev/null:/dev/xvdc:rw".parse().unwrap();
        assert_eq!((device.container.to_str(), &*device.access.0), (Some("/dev/xvdc"), "rw"));
        for wrong in ["", "null", "/dev/a:/dev/b:x", "/dev/a:/dev/b:rr", "/dev/a:b", "/a:/b:r:w"] {
            assert!(wrong.parse::<Device>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn rules_are_read_as_docker_reads_them() {
        let rule: DeviceRule = "c 42:* rmw".parse().unwrap();
        let expected = json!({"allow": true, "type": "c", "major": 42, "access": "rmw"});
        assert_eq!(to_value(rule.to_spec()).unwrap(), expected);
        for wrong in ["", "c 42 r", "d 1:1 r", "c 1:1 x", "c 1:1 r r", "c -1:1 r"] {
            assert!(wrong.parse::<DeviceRule>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn nodes_have_the_numbers_of_the_host() {
        let wanted = ["/dev/zero:/dev/nil:r".parse().unwrap()];
        let devices = devices(&wanted, &[], false).unwrap();
        let node = &devices.nodes[0];
        assert_eq!(node.path, Path::new("/dev/nil"));
        assert_eq!((node.major, node.minor), (1, 5));
        assert_eq!(devices.rules.last().unwrap().access().as_deref(), Some("r"));
        assert_eq!(devices.rules.len(), 1 + DEFAULT_RULES.len() + 1);
        let first = to_value(&devices.rules[0]).unwrap();
        assert_eq!(first, json!({"allow": false, "access": "rwm"}));
    }

    #[test]
    fn what_is_no_device_is_refused() {
        let file = Device {
            host: HostFile::open_trusted(Path::new("/etc/passwd")).unwrap(),
            container: "/dev/x".into(),
            access: Access::all(),
        };
        assert!(matches!(devices(&[file], &[], false), Err(DeviceError::NotADevice { .. })));
    }
}
