//! Options about devices.

use std::fmt;
use std::path::PathBuf;

use super::CreateOptions;
use super::create_options::{Device, DeviceRule};
use super::value::natural;

impl fmt::Display for DeviceRule {
    /// Writes the rule as the option takes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |number: Option<u32>| number.map_or("*".to_owned(), |n| n.to_string());
        let DeviceRule { kind, major, minor, access } = self;
        write!(f, "{kind} {}:{} {access}", number(*major), number(*minor))
    }
}

impl Device {
    /// Reads `--device`: `HOST[:CONTAINER][:ACCESS]`.
    pub(in crate::container_hook) fn parse(text: &str) -> Result<Self, String> {
        let invalid = || "must be HOST[:CONTAINER][:rwm] with absolute paths".to_owned();
        if !text.starts_with('/') {
            return Err(if text.contains('=') {
                "devices of the Container Device Interface are not supported; name those in /dev"
                    .to_owned()
            } else {
                invalid()
            });
        }
        let parts: Vec<&str> = text.split(':').collect();
        let (host, container, access) = match parts[..] {
            [host] => (host, host, "rwm"),
            [host, access] if is_access(access) => (host, host, access),
            [host, container] => (host, container, "rwm"),
            [host, container, access] if is_access(access) => (host, container, access),
            _ => return Err(invalid()),
        };
        if !container.starts_with('/') {
            return Err(invalid());
        }
        let (host, container) = (PathBuf::from(host), container.to_owned());
        Ok(Device { host, container, access: access.to_owned() })
    }
}

pub(super) fn device(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    options.devices.push(Device::parse(value)?);
    Ok(())
}

impl DeviceRule {
    /// Reads `--device-cgroup-rule`.
    pub(in crate::container_hook) fn parse(text: &str) -> Result<Self, String> {
        let invalid = || "must be `KIND MAJOR:MINOR ACCESS`, such as `c 189:* rwm`".to_owned();
        let parts: Vec<&str> = text.split(' ').collect();
        let [kind @ ("a" | "b" | "c"), numbers, access] = parts[..] else { return Err(invalid()) };
        let (major, minor) = numbers.split_once(':').ok_or_else(invalid)?;
        let number = |text| if text == "*" { Ok(None) } else { natural(text).map(Some) };
        if !is_access(access) {
            return Err(invalid());
        }
        Ok(DeviceRule {
            kind: char::from(kind.as_bytes()[0]),
            major: number(major)?,
            minor: number(minor)?,
            access: access.to_owned(),
        })
    }

    /// Returns whether whoever has this rule has nothing more by the other.
    pub(in crate::container_hook) fn covers(&self, other: &DeviceRule) -> bool {
        let is_any = |own: Option<u32>, other| own.is_none() || own == other;
        (self.kind == 'a' || self.kind == other.kind)
            && is_any(self.major, other.major)
            && is_any(self.minor, other.minor)
            && other.access.chars().all(|access| self.access.contains(access))
    }
}

pub(super) fn rule(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    options.device_rules.push(DeviceRule::parse(value)?);
    Ok(())
}

pub(super) fn gpus(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    options.gpu_count = match value {
        "all" => None,
        number => {
            let count = natural(number).ok().filter(|count: &u32| (1..=1024).contains(count));
            Some(count.ok_or("must be `all` or a number; which ones is the admin's to say")?)
        }
    };
    options.gpus = true;
    Ok(())
}

fn is_access(text: &str) -> bool {
    let count = |wanted| text.bytes().filter(|byte| *byte == wanted).count();
    !text.is_empty()
        && text.bytes().all(|byte| b"rwm".contains(&byte))
        && b"rwm".iter().all(|wanted| count(*wanted) <= 1)
}
