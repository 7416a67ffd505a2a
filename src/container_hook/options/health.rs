//! Options about health checks.

use std::time::Duration;

use super::CreateOptions;
use super::value::{duration, natural};

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

/// Reads a duration; 0 leaves the image's.
fn time(text: &str) -> Result<Option<Duration>, String> {
    match duration(text)? {
        Duration::ZERO => Ok(None),
        time if time < Duration::from_millis(1) => Err("must be at least 1ms".to_owned()),
        time => Ok(Some(time)),
    }
}
