//! The limits that a container met, as far as it can be told while it is there.

use std::fmt;

use super::engine::Engine;
use super::record::Record;
use super::{disk, logs};
use crate::sys::cgroup::{self, Events};

/// A limit that a container met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitHit {
    /// Processes or threads were not made, so often.
    Processes(u64),
    /// Processes were killed for want of memory, so many.
    Memory(u64),
    Disk,
    /// It wrote more than is kept of its output.
    Log,
}

impl fmt::Display for LimitHit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LimitHit::Processes(count) => {
                write!(f, "reached its limit of processes and threads {count} times")
            }
            LimitHit::Memory(count) => {
                write!(f, "ran out of memory: {count} of its processes were killed")
            }
            LimitHit::Disk => f.write_str("filled its disk"),
            LimitHit::Log => {
                f.write_str("wrote more than is kept: the oldest of its output is gone")
            }
        }
    }
}

impl Engine {
    /// Returns the limits that a container met so far.
    pub fn limits_hit(&self, record: &Record) -> Vec<LimitHit> {
        let Events { processes, killed_for_memory } = cgroup::events(&record.cgroup);
        let log = self.directory(&record.id).log();
        let hits = [
            (processes > 0, LimitHit::Processes(processes)),
            (killed_for_memory > 0, LimitHit::Memory(killed_for_memory)),
            (disk::file(&record.disk).exists() && disk::is_full(&record.disk), LimitHit::Disk),
            (logs::is_cut(&log), LimitHit::Log),
        ];
        hits.into_iter().filter(|(is_hit, _)| *is_hit).map(|(_, hit)| hit).collect()
    }
}
