//! Options about the image, the names, the process and the health check of a container.

use std::time::Duration;

use super::network::host_name;
use super::value::{duration, integer, key_value, natural};
use super::{CreateOptions, EnvOption, PullOption};

pub(super) fn name(value: &str) -> Result<Option<String>, String> {
    host_name(value).map(Some)
}

/// Reads a host name or NIS domain name, whose length the kernel limits (`__NEW_UTS_LEN`).
pub(super) fn kernel_name(value: &str) -> Result<Option<String>, String> {
    match value.len() {
        0 => Ok(None),
        1..=64 => host_name(value).map(Some),
        _ => Err("must be at most 64 characters long".to_owned()),
    }
}

pub(super) fn platform(value: &str) -> Result<Option<String>, String> {
    let valid = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric());
    let parts: Vec<_> = value.split('/').collect();
    if !value.is_empty() && (parts.len() > 3 || !parts.into_iter().all(valid)) {
        return Err("must be OS/ARCHITECTURE[/VARIANT], such as linux/arm64".to_owned());
    }
    non_empty(value)
}

pub(super) fn pull(value: &str) -> Result<Option<PullOption>, String> {
    match value {
        "always" => Ok(Some(PullOption::Always)),
        "missing" => Ok(Some(PullOption::Missing)),
        "never" => Ok(Some(PullOption::Never)),
        _ => Err("must be always, missing or never".to_owned()),
    }
}

pub(super) fn entrypoint(value: &str) -> Result<Option<String>, String> {
    Ok(Some(value.to_owned()))
}

/// Reads any text; returns none for an empty one, which keeps the image's value.
pub(super) fn non_empty(value: &str) -> Result<Option<String>, String> {
    Ok((!value.is_empty()).then(|| value.to_owned()))
}

pub(super) fn group(value: &str) -> Result<String, String> {
    non_empty(value)?.ok_or_else(|| "must be a group's name or number".to_owned())
}

pub(super) fn workdir(value: &str) -> Result<Option<String>, String> {
    if !value.is_empty() && !value.starts_with('/') {
        return Err("must be an absolute path".to_owned());
    }
    non_empty(value)
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

pub(super) fn sysctl(value: &str) -> Result<(String, String), String> {
    let (name, value) = key_value(value)?;
    if !name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-')) {
        return Err("must be NAME=VALUE, such as net.core.somaxconn=1024".to_owned());
    }
    Ok((name, value))
}

pub(super) fn stop_signal(value: &str) -> Result<Option<String>, String> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-');
    if !value.bytes().all(allowed) {
        return Err("must be a signal, such as SIGINT or 2".to_owned());
    }
    non_empty(value)
}

pub(super) fn stop_timeout(value: &str) -> Result<Option<Duration>, String> {
    let seconds = u64::try_from(integer(value)?)
        .map_err(|_| "an unlimited stop timeout is not supported: it must be 0 or more seconds")?;
    Ok(Some(Duration::from_secs(seconds)))
}

pub(super) fn retries(value: &str) -> Result<Option<u32>, String> {
    let retries: u32 = natural(value)?;
    Ok((retries != 0).then_some(retries))
}

/// Reads a duration; returns none for 0, which keeps the image's value.
pub(super) fn time(text: &str) -> Result<Option<Duration>, String> {
    match duration(text)? {
        Duration::ZERO => Ok(None),
        time if time < Duration::from_millis(1) => Err("must be at least 1ms".to_owned()),
        time => Ok(Some(time)),
    }
}
