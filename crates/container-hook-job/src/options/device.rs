//! Options about devices.

use std::fmt;
use std::path::PathBuf;

use oci_hooks::cdi::is_device_name;
use oci_hooks_engine::bundle::{DeviceAccess, DeviceRule};

use super::CreateOptions;
use super::create_options::{DeviceOption, GpuOption};
use super::value::natural;

const EXPECTED: &str = "must be HOST[:CONTAINER][:rwm] with absolute paths, or a CDI device such as vendor.com/class=name";

impl DeviceOption {
    /// Reads `--device`: `HOST[:CONTAINER][:ACCESS]`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let invalid = || EXPECTED.to_owned();
        if !text.starts_with('/') {
            return Err(invalid());
        }
        let parts: Vec<&str> = text.split(':').collect();
        let (host, container, access) = match parts[..] {
            [host] => (host, host, DeviceAccess::all()),
            [host, last] => match last.parse() {
                Ok(access) => (host, host, access),
                Err(_) => (host, last, DeviceAccess::all()),
            },
            [host, container, access] => (host, container, access.parse().map_err(|_| invalid())?),
            _ => return Err(invalid()),
        };
        if !container.starts_with('/') {
            return Err(invalid());
        }
        let (host, container) = (PathBuf::from(host), container.to_owned());
        Ok(DeviceOption { host, container, access })
    }
}

pub(super) fn device(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    if is_device_name(value) {
        options.cdi_devices.push(value.to_owned());
    } else {
        options.devices.push(DeviceOption::parse(value)?);
    }
    Ok(())
}

impl GpuOption {
    /// Reads `--gpus`: `all`, a number, or `device=ID,ID`, also in the quotes that Docker requires.
    fn parse(text: &str) -> Result<Self, String> {
        let invalid = || "must be `all`, a number, or `device=ID,ID`".to_owned();
        let bare = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
        if bare == "all" {
            return Ok(GpuOption::All);
        }
        let Some(list) = bare.strip_prefix("device=") else {
            let count = natural(bare).ok().filter(|count: &u32| (1..=1024).contains(count));
            return count.map(GpuOption::Count).ok_or_else(invalid);
        };
        let devices = GpuOption::Devices(list.split(',').map(str::to_owned).collect());
        let is_valid = devices.cdi_devices().iter().all(|name| is_device_name(name));
        if is_valid { Ok(devices) } else { Err(invalid()) }
    }

    /// Returns the names of the CDI devices. A number means that many devices, from 0 on.
    pub(crate) fn cdi_devices(&self) -> Vec<String> {
        let names = match self {
            GpuOption::All => vec!["all".to_owned()],
            GpuOption::Count(count) => (0..*count).map(|index| index.to_string()).collect(),
            GpuOption::Devices(names) => names.clone(),
        };
        names.into_iter().map(|name| format!("nvidia.com/gpu={name}")).collect()
    }
}

impl fmt::Display for GpuOption {
    /// Formats the option with its value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuOption::All => f.write_str("--gpus all"),
            GpuOption::Count(count) => write!(f, "--gpus {count}"),
            GpuOption::Devices(names) => write!(f, "--gpus device={}", names.join(",")),
        }
    }
}

pub(super) fn rule(value: &str) -> Result<DeviceRule, String> {
    let expected = "must be `KIND MAJOR:MINOR ACCESS`, such as `c 189:* rwm`";
    value.parse().map_err(|_| expected.to_owned())
}

pub(super) fn gpus(value: &str) -> Result<Option<GpuOption>, String> {
    GpuOption::parse(value).map(Some)
}
