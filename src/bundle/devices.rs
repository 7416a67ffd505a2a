//! Devices: what every container has, and what was asked for.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{FileType, major, minor};
use serde_json::{Value, json};

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
pub struct DeviceRule {
    /// `a`, `b` or `c`.
    pub kind: char,
    /// The first number; `None` for any.
    pub major: Option<u32>,
    /// The second number; `None` for any.
    pub minor: Option<u32>,
    /// What is allowed.
    pub access: Access,
}

/// Why a device cannot be given.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// It is not written as Docker writes one.
    #[error("{text:?} is not a device: write /dev/NAME[:/dev/NAME][:rwm]")]
    Syntax {
        /// What was written.
        text: String,
    },
    /// It is not what may be done with a device.
    #[error("{text:?} is not an access to a device: write some of r, w and m")]
    Access {
        /// What was written.
        text: String,
    },
    /// It is not a rule as Docker writes one.
    #[error("{text:?} is not a device rule: write `c 42:* rmw`")]
    Rule {
        /// What was written.
        text: String,
    },
    /// It is something else.
    #[error("{path} is not a device")]
    NotADevice {
        /// What it is called on the host.
        path: String,
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

    fn to_json(&self) -> Value {
        let mut rule =
            json!({"allow": true, "type": self.kind.to_string(), "access": self.access.0});
        if let Some(major) = self.major {
            rule["major"] = major.into();
        }
        if let Some(minor) = self.minor {
            rule["minor"] = minor.into();
        }
        rule
    }
}

/// `linux.devices` and the rules of `linux.resources.devices`.
#[derive(Debug, Default)]
pub(super) struct Devices {
    pub(super) nodes: Vec<Node>,
    pub(super) rules: Vec<Value>,
}

/// A device node of a container, as the host has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) path: PathBuf,
    pub(super) kind: char,
    pub(super) major: u32,
    pub(super) minor: u32,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// What the runtimes themselves make in every container, and the terminals.
const DEFAULT_RULES: [(&str, Option<u32>, Option<u32>, &str); 10] = [
    // Making nodes is harmless where opening them is not allowed.
    ("c", None, None, "m"),
    ("b", None, None, "m"),
    ("c", Some(1), Some(3), "rwm"),
    ("c", Some(1), Some(5), "rwm"),
    ("c", Some(1), Some(7), "rwm"),
    ("c", Some(1), Some(8), "rwm"),
    ("c", Some(1), Some(9), "rwm"),
    ("c", Some(5), Some(0), "rwm"),
    ("c", Some(5), Some(2), "rwm"),
    ("c", Some(136), None, "rwm"),
];

/// Returns the devices of a container.
pub(super) fn devices(
    wanted: &[Device],
    rules: &[DeviceRule],
    privileged: bool,
) -> Result<Devices, DeviceError> {
    let mut devices = Devices::default();
    if privileged {
        devices.rules.push(json!({"allow": true, "access": "rwm"}));
        let host = HostFile::open_trusted(Path::new("/dev"))?;
        devices.add(&Device { host, container: "/dev".into(), access: Access::all() }, 0)?;
    } else {
        devices.rules.push(json!({"allow": false, "access": "rwm"}));
        for (kind, major, minor, access) in DEFAULT_RULES {
            let kind = kind.chars().next().expect("kinds have a letter");
            let rule = DeviceRule { kind, major, minor, access: Access(access.to_owned()) };
            devices.rules.push(rule.to_json());
        }
    }
    for device in wanted {
        devices.add(device, 0)?;
    }
    devices.rules.extend(rules.iter().map(DeviceRule::to_json));
    Ok(devices)
}

/// What runtimes make by themselves, and what is a mount of its own.
const OWN: [&str; 8] = ["ptmx", "pts", "shm", "mqueue", "console", "fd", "init", "core"];

/// How deep directories of devices are.
const MAX_DEPTH: usize = 8;

impl Devices {
    fn add(&mut self, device: &Device, depth: usize) -> Result<(), DeviceError> {
        let stat = device.host.stat();
        let kind = match device.host.kind() {
            FileType::Directory => return self.add_directory(device, depth),
            FileType::CharacterDevice => 'c',
            FileType::BlockDevice => 'b',
            _ => return Err(DeviceError::NotADevice { path: device.host.display().to_string() }),
        };
        let (major, minor) = (major(stat.st_rdev), minor(stat.st_rdev));
        self.nodes.push(Node {
            path: device.container.clone(),
            kind,
            major,
            minor,
            mode: stat.st_mode & 0o777,
            uid: stat.st_uid,
            gid: stat.st_gid,
        });
        let access = device.access.clone();
        let rule = DeviceRule { kind, major: Some(major), minor: Some(minor), access };
        self.rules.push(rule.to_json());
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
    pub(super) fn to_json(&self) -> Value {
        json!({
            "path": self.path,
            "type": self.kind.to_string(),
            "major": self.major,
            "minor": self.minor,
            "fileMode": self.mode,
            "uid": self.uid,
            "gid": self.gid,
        })
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(rule.to_json(), expected);
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
        assert_eq!(devices.rules.last().unwrap()["access"], "r");
        assert_eq!(devices.rules[0], json!({"allow": false, "access": "rwm"}));
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
