//! Options about the image, the names, the process and the health check of a container.

use std::time::Duration;

use super::network::host_name;
use super::value::{duration, integer, key_value, natural};
use super::{CreateOptions, EnvOption, PullOption};

pub(super) fn name(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    options.name = Some(host_name(value)?);
    Ok(())
}

pub(super) fn hostname(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    options.hostname = read_non_empty(value, kernel_name)?;
    Ok(())
}

pub(super) fn domainname(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    options.domainname = read_non_empty(value, kernel_name)?;
    Ok(())
}

/// Reads a host name or NIS domain name, whose length the kernel limits (`__NEW_UTS_LEN`).
fn kernel_name(value: &str) -> Result<String, String> {
    match value.len() {
        ..=64 => host_name(value),
        _ => Err("must be at most 64 characters long".to_owned()),
    }
}

pub(super) fn platform(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    let valid = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric());
    let parts: Vec<_> = value.split('/').collect();
    if !value.is_empty() && (parts.len() > 3 || !parts.into_iter().all(valid)) {
        return Err("must be OS/ARCHITECTURE[/VARIANT], such as linux/arm64".to_owned());
    }
    options.platform = read_non_empty(value, |value| Ok(value.to_owned()))?;
    Ok(())
}

pub(super) fn pull(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    options.pull = Some(match value {
        "always" => PullOption::Always,
        "missing" => PullOption::Missing,
        "never" => PullOption::Never,
        _ => return Err("must be always, missing or never".to_owned()),
    });
    Ok(())
}

pub(super) fn entrypoint(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    options.entrypoint = Some(value.to_owned());
    Ok(())
}

pub(super) fn user(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    options.user = read_non_empty(value, |value| Ok(value.to_owned()))?;
    Ok(())
}

pub(super) fn group(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    if value.is_empty() {
        return Err("must be a group's name or number".to_owned());
    }
    options.groups.push(value.to_owned());
    Ok(())
}

pub(super) fn workdir(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    if !value.is_empty() && !value.starts_with('/') {
        return Err("must be an absolute path".to_owned());
    }
    options.workdir = read_non_empty(value, |value| Ok(value.to_owned()))?;
    Ok(())
}

pub(super) fn env(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    let (name, value) = match value.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (value, None),
    };
    if name.is_empty() {
        return Err("must be NAME=VALUE".to_owned());
    }
    match options.env.iter_mut().find(|variable| variable.name == name) {
        Some(variable) => variable.value = value,
        None => options.env.push(EnvOption { name: name.to_owned(), value }),
    }
    Ok(())
}

pub(super) fn label(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    options.labels.extend([key_value(value)?]);
    Ok(())
}

pub(super) fn annotation(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    options.annotations.extend([key_value(value)?]);
    Ok(())
}

pub(super) fn sysctl(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    let (name, value) = key_value(value)?;
    if !name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-')) {
        return Err("must be NAME=VALUE, such as net.core.somaxconn=1024".to_owned());
    }
    options.sysctls.insert(name, value);
    Ok(())
}

pub(super) fn stop_signal(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-');
    if !value.bytes().all(allowed) {
        return Err("must be a signal, such as SIGINT or 2".to_owned());
    }
    options.stop_signal = read_non_empty(value, |value| Ok(value.to_owned()))?;
    Ok(())
}

pub(super) fn stop_timeout(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    let seconds = u64::try_from(integer(value)?)
        .map_err(|_| "an unlimited stop timeout is not supported: it must be 0 or more seconds")?;
    options.stop_timeout = Some(Duration::from_secs(seconds));
    Ok(())
}

pub(super) fn shm_size(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    let bytes = super::value::size_bytes(value)?;
    options.shm_size_bytes = (bytes != 0).then_some(bytes);
    Ok(())
}

fn read_non_empty(
    value: &str,
    read: impl FnOnce(&str) -> Result<String, String>,
) -> Result<Option<String>, String> {
    if value.is_empty() { Ok(None) } else { read(value).map(Some) }
}

pub(super) fn command(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    options.health.command = (!value.is_empty()).then(|| value.to_owned());
    Ok(())
}

pub(super) fn interval(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    options.health.interval = time(value)?;
    Ok(())
}

pub(super) fn timeout(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    options.health.timeout = time(value)?;
    Ok(())
}

pub(super) fn start_period(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    options.health.start_period = time(value)?;
    Ok(())
}

pub(super) fn start_interval(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    options.health.start_interval = time(value)?;
    Ok(())
}

pub(super) fn retries(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    options.health.retries = Some(natural(value)?).filter(|retries| *retries != 0);
    Ok(())
}

/// Reads a duration; 0 keeps the image's.
fn time(text: &str) -> Result<Option<Duration>, String> {
    match duration(text)? {
        Duration::ZERO => Ok(None),
        time if time < Duration::from_millis(1) => Err("must be at least 1ms".to_owned()),
        time => Ok(Some(time)),
    }
}
