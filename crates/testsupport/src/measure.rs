//! Measuring whole processes side by side.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// Cost of one run of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunCost {
    /// User and system time.
    pub cpu: Duration,
    /// Wall-clock time.
    pub wall: Duration,
}

/// Runs a command to its end and returns its cost.
pub fn run(command: &mut Command) -> RunCost {
    let before = children_cpu();
    let start = Instant::now();
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    let cost = RunCost { cpu: children_cpu() - before, wall: start.elapsed() };
    assert!(status.success(), "{command:?}: {status}");
    cost
}

/// Returns the median.
pub fn median<T: Ord + Copy>(values: impl Iterator<Item = T>) -> T {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable();
    values[values.len() / 2]
}

fn children_cpu() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    let micros = (usage.user_time() + usage.system_time()).num_microseconds();
    Duration::from_micros(micros.unsigned_abs())
}
