//! Options about resource limits.

use super::CreateOptions;
use super::create_options::{Swap, Ulimit};
use super::value::{integer, nano_cpus, natural, size_bytes};

pub(super) fn cpus(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    options.resources.nano_cpus = to_nonzero(nano_cpus(value)?);
    Ok(())
}

pub(super) fn cpu_shares(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    options.resources.cpu_shares = to_nonzero(natural(value)?);
    Ok(())
}

pub(super) fn cpu_period(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    options.resources.cpu_period = match natural(value)? {
        0 => None,
        period @ 1_000..=1_000_000 => Some(period),
        _ => return Err("must be between 1000 and 1000000 (microseconds)".to_owned()),
    };
    Ok(())
}

pub(super) fn cpu_quota(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    options.resources.cpu_quota = match integer(value)? {
        0 => None,
        quota @ (-1 | 1_000..) => Some(quota),
        _ => return Err("must be at least 1000 (microseconds), or -1".to_owned()),
    };
    Ok(())
}

pub(super) fn cpuset_cpus(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    options.resources.cpuset_cpus = set(value)?;
    Ok(())
}

pub(super) fn cpuset_mems(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    options.resources.cpuset_mems = set(value)?;
    Ok(())
}

/// Checks a set of numbers such as `0-2,4`.
fn set(text: &str) -> Result<Option<String>, String> {
    let number = |text: &str| text.parse::<u16>().ok();
    let range = |part: &str| match part.split_once('-') {
        Some((first, last)) => number(first).zip(number(last)).is_some_and(|(a, b)| a <= b),
        None => number(part).is_some(),
    };
    if !text.is_empty() && !text.split(',').all(range) {
        return Err("must be numbers and ranges, such as 0-2,4".to_owned());
    }
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

pub(super) fn memory(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    /// Docker's minimum.
    const MINIMUM: u64 = 6 << 20;
    options.resources.memory_bytes = match size_bytes(value)? {
        0 => None,
        bytes if bytes >= MINIMUM => Some(bytes),
        _ => return Err("must be at least 6m".to_owned()),
    };
    Ok(())
}

pub(super) fn memory_reservation(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    options.resources.memory_reservation_bytes = to_nonzero(size_bytes(value)?);
    Ok(())
}

pub(super) fn memory_swap(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    options.resources.memory_swap = match value {
        "-1" => Some(Swap::Unlimited),
        _ => to_nonzero(size_bytes(value)?).map(Swap::Bytes),
    };
    Ok(())
}

pub(super) fn memory_swappiness(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    options.resources.memory_swappiness = match integer(value)? {
        -1 => None,
        percent @ 0..=100 => Some(percent.cast_unsigned()),
        _ => return Err("must be between 0 and 100".to_owned()),
    };
    Ok(())
}

pub(super) fn pids(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    // Docker treats negative numbers as no limit.
    options.resources.pids = Some(u64::try_from(integer(value)?).unwrap_or(0));
    Ok(())
}

pub(super) fn oom_score_adj(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    let adj = i32::try_from(integer(value)?).ok().filter(|adj| (-1000..=1000).contains(adj));
    options.resources.oom_score_adj = Some(adj.ok_or("must be between -1000 and 1000")?);
    Ok(())
}

pub(super) fn blkio_weight(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    options.resources.blkio_weight = match natural(value)? {
        0 => None,
        weight @ 10..=1000 => Some(weight),
        _ => return Err("must be between 10 and 1000".to_owned()),
    };
    Ok(())
}

/// The resources of `setrlimit(2)`.
pub const ULIMITS: [&str; 15] = [
    "core",
    "cpu",
    "data",
    "fsize",
    "locks",
    "memlock",
    "msgqueue",
    "nice",
    "nofile",
    "nproc",
    "rss",
    "rtprio",
    "rttime",
    "sigpending",
    "stack",
];

pub(super) fn ulimit(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    let (name, limits) = value.split_once('=').ok_or("must be NAME=SOFT[:HARD]")?;
    let name = ULIMITS.into_iter().find(|known| *known == name).ok_or_else(|| {
        format!("unknown resource {name:?}: expected one of {}", ULIMITS.join(", "))
    })?;
    let limit = |text| match integer(text)? {
        -1 => Ok(u64::MAX),
        limit => u64::try_from(limit).map_err(|_| "a limit is a number or -1".to_owned()),
    };
    let (soft, hard) = limits.split_once(':').unwrap_or((limits, limits));
    let ulimit = Ulimit { name, soft: limit(soft)?, hard: limit(hard)? };
    if ulimit.soft > ulimit.hard {
        return Err("the soft limit is above the hard one".to_owned());
    }
    options.ulimits.retain(|other| other.name != name);
    options.ulimits.push(ulimit);
    Ok(())
}

fn to_nonzero(number: u64) -> Option<u64> {
    (number != 0).then_some(number)
}
