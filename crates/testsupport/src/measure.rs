//! Measuring whole processes side by side, and the parts of one.

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

/// Returns the median in milliseconds.
pub fn median_ms(times: &[Duration]) -> f64 {
    median(times.iter().copied()).as_secs_f64() * 1e3
}

/// Durations of consecutive parts of a program.
pub struct LapTimes {
    since: Instant,
    pub times: Vec<Duration>,
}

impl LapTimes {
    /// Begins the first part.
    pub fn start() -> Self {
        LapTimes { since: Instant::now(), times: Vec::new() }
    }

    /// Ends a part, and begins the next one.
    pub fn lap(&mut self) {
        self.times.push(self.since.elapsed());
        self.since = Instant::now();
    }
}

fn children_cpu() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    let micros = (usage.user_time() + usage.system_time()).num_microseconds();
    Duration::from_micros(micros.unsigned_abs())
}
