//! Reports the limits that a container has reached: processes, memory, disk, CPUs and log. Its removal loses them.

use std::fmt;

use oci_hooks_host::cgroup::{self, LimitEvents};

use super::engine::Engine;
use super::record::ContainerRecord;
use super::{disk, logs};

/// A limit that a container reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitHit {
    /// A process or thread could not be created, this number of times.
    Processes(u64),
    /// Processes were killed for lack of memory, this number of them.
    Memory(u64),
    Disk,
    /// Processes waited because of the CPU limit, for this part of the time.
    Cpus {
        percent: u64,
    },
    /// The container wrote more output than is kept.
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
            LimitHit::Cpus { percent } => {
                write!(f, "was slowed down by its CPU limit in {percent} % of the time")
            }
            LimitHit::Log => f.write_str("exceeded its log limit: the oldest output was dropped"),
        }
    }
}

impl Engine {
    /// Returns the limits that a container has reached so far.
    pub fn limits_hit(&self, record: &ContainerRecord) -> Vec<LimitHit> {
        let LimitEvents { processes, killed_for_memory } = cgroup::events(&record.cgroup);
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
