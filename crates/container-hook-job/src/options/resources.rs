//! Options about resource limits.

use super::CreateOptions;
use super::create_options::{SwapLimit, Ulimit};
use super::value::{integer, nano_cpus, natural, size_bytes};

pub(super) fn cpus(value: &str) -> Result<Option<u64>, String> {
    nano_cpus(value).map(to_nonzero)
}

pub(super) fn cpu_shares(value: &str) -> Result<Option<u64>, String> {
    natural(value).map(to_nonzero)
}

pub(super) fn cpu_period(value: &str) -> Result<Option<u64>, String> {
    match natural(value)? {
        0 => Ok(None),
        period @ 1_000..=1_000_000 => Ok(Some(period)),
        _ => Err("must be between 1000 and 1000000 (microseconds)".to_owned()),
    }
}

pub(super) fn cpu_quota(value: &str) -> Result<Option<i64>, String> {
    match integer(value)? {
        0 => Ok(None),
        quota @ (-1 | 1_000..) => Ok(Some(quota)),
        _ => Err("must be at least 1000 (microseconds), or -1".to_owned()),
    }
}

/// Checks a set of numbers such as `0-2,4`.
pub(super) fn cpuset(text: &str) -> Result<Option<String>, String> {
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

pub(super) fn memory(value: &str) -> Result<Option<u64>, String> {
    /// Docker's minimum memory limit, in bytes.
    const MINIMUM: u64 = 6 << 20;
    match size(value)? {
        Some(..MINIMUM) => Err("must be at least 6m".to_owned()),
        bytes => Ok(bytes),
    }
}

/// Reads a size; 0 keeps the default.
pub(super) fn size(value: &str) -> Result<Option<u64>, String> {
    size_bytes(value).map(to_nonzero)
}

pub(super) fn memory_swap(value: &str) -> Result<Option<SwapLimit>, String> {
    match value {
        "-1" => Ok(Some(SwapLimit::Unlimited)),
        _ => Ok(size(value)?.map(SwapLimit::Bytes)),
    }
}

pub(super) fn memory_swappiness(value: &str) -> Result<Option<u64>, String> {
    match integer(value)? {
        -1 => Ok(None),
        percent @ 0..=100 => Ok(Some(percent.cast_unsigned())),
        _ => Err("must be between 0 and 100".to_owned()),
    }
}

pub(super) fn pids(value: &str) -> Result<Option<u64>, String> {
    // Docker treats negative numbers as no limit.
    Ok(Some(u64::try_from(integer(value)?).unwrap_or(0)))
}

pub(super) fn oom_score_adj(value: &str) -> Result<Option<i32>, String> {
    let adj = i32::try_from(integer(value)?).ok().filter(|adj| (-1000..=1000).contains(adj));
    Ok(Some(adj.ok_or("must be between -1000 and 1000")?))
}

pub(super) fn blkio_weight(value: &str) -> Result<Option<u16>, String> {
    match natural(value)? {
        0 => Ok(None),
        weight @ 10..=1000 => Ok(Some(weight)),
        _ => Err("must be between 10 and 1000".to_owned()),
    }
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
        limit => u64::try_from(limit)
            .map_err(|_| "a limit must be 0 or more, or -1 for no limit".to_owned()),
    };
    let (soft, hard) = limits.split_once(':').unwrap_or((limits, limits));
    let ulimit = Ulimit { name, soft: limit(soft)?, hard: limit(hard)? };
    if ulimit.soft > ulimit.hard {
        return Err("the soft limit is above the hard limit".to_owned());
    }
    options.ulimits.retain(|other| other.name != name);
    options.ulimits.push(ulimit);
    Ok(())
}

fn to_nonzero(number: u64) -> Option<u64> {
    (number != 0).then_some(number)
}
