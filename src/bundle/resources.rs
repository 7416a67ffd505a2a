//! Limits: cgroups and rlimits.

use std::fs;

use rustix::process::{Resource, getrlimit};
use serde_json::{Map, Value, json};

/// What a container may use; what is not said is not limited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resources {
    /// Memory.
    pub memory_bytes: Option<u64>,
    /// Memory it is pushed back to when there is little.
    pub memory_reservation_bytes: Option<u64>,
    /// Memory and swap together; -1 for any. Twice the memory if only that is said.
    pub memory_swap_bytes: Option<i64>,
    /// 0 to 100.
    pub memory_swappiness: Option<u64>,
    /// Whether its processes wait for memory instead of being killed.
    pub oom_kill_disable: bool,
    /// Billionths of processors.
    pub nano_cpus: Option<u64>,
    /// Weight against others, 1024 being usual.
    pub cpu_shares: Option<u64>,
    /// Period of the quota, in microseconds.
    pub cpu_period: Option<u64>,
    /// Time in each period, in microseconds.
    pub cpu_quota: Option<i64>,
    /// Processors, as in `0-2,4`.
    pub cpuset_cpus: Option<String>,
    /// Memory nodes, as in `0,1`.
    pub cpuset_mems: Option<String>,
    /// Weight for block devices, 10 to 1000.
    pub blkio_weight: Option<u16>,
    /// How many processes and threads; -1 for any.
    pub pids_limit: Option<i64>,
}

/// How many processes and threads a container has by default: enough for any build, and far below
/// what the host can have.
pub const DEFAULT_PIDS_LIMIT: i64 = 32_768;

impl Default for Resources {
    fn default() -> Self {
        Resources {
            memory_bytes: None,
            memory_reservation_bytes: None,
            memory_swap_bytes: None,
            memory_swappiness: None,
            oom_kill_disable: false,
            nano_cpus: None,
            cpu_shares: None,
            cpu_period: None,
            cpu_quota: None,
            cpuset_cpus: None,
            cpuset_mems: None,
            blkio_weight: None,
            pids_limit: Some(DEFAULT_PIDS_LIMIT),
        }
    }
}

impl Resources {
    /// Returns `linux.resources`, without the devices.
    pub(super) fn to_json(&self) -> Map<String, Value> {
        let mut memory = Map::new();
        let mut set = |object: &mut Map<String, Value>, key: &str, value: Option<Value>| {
            if let Some(value) = value {
                object.insert(key.to_owned(), value);
            }
        };
        set(&mut memory, "limit", self.memory_bytes.map(Value::from));
        set(&mut memory, "reservation", self.memory_reservation_bytes.map(Value::from));
        let doubled = self.memory_bytes.map(|bytes| i64::try_from(bytes * 2).unwrap_or(-1));
        set(&mut memory, "swap", self.memory_swap_bytes.or(doubled).map(Value::from));
        set(&mut memory, "swappiness", self.memory_swappiness.map(Value::from));
        set(&mut memory, "disableOOMKiller", self.oom_kill_disable.then(|| true.into()));

        let mut cpu = Map::new();
        let (period, quota) = match self.nano_cpus {
            // Periods of 100 ms, as Docker makes of `--cpus`.
            Some(nano) => (Some(100_000), i64::try_from(nano / 10_000).ok()),
            None => (self.cpu_period, self.cpu_quota),
        };
        set(&mut cpu, "period", period.map(Value::from));
        set(&mut cpu, "quota", quota.map(Value::from));
        set(&mut cpu, "shares", self.cpu_shares.map(Value::from));
        set(&mut cpu, "cpus", self.cpuset_cpus.clone().map(Value::from));
        set(&mut cpu, "mems", self.cpuset_mems.clone().map(Value::from));

        let mut resources = Map::new();
        set(&mut resources, "memory", (!memory.is_empty()).then_some(memory.into()));
        set(&mut resources, "cpu", (!cpu.is_empty()).then_some(cpu.into()));
        set(&mut resources, "blockIO", self.blkio_weight.map(|weight| json!({"weight": weight})));
        set(&mut resources, "pids", self.pids_limit.map(|limit| json!({"limit": limit})));
        resources
    }
}

/// A limit of each process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rlimit {
    /// As in `RLIMIT_NOFILE`.
    name: &'static str,
    /// `None` for unlimited.
    soft: Option<u64>,
    hard: Option<u64>,
}

/// Names as `--ulimit` takes them.
const RLIMITS: [(&str, &str, Resource); 15] = [
    ("core", "RLIMIT_CORE", Resource::Core),
    ("cpu", "RLIMIT_CPU", Resource::Cpu),
    ("data", "RLIMIT_DATA", Resource::Data),
    ("fsize", "RLIMIT_FSIZE", Resource::Fsize),
    ("locks", "RLIMIT_LOCKS", Resource::Locks),
    ("memlock", "RLIMIT_MEMLOCK", Resource::Memlock),
    ("msgqueue", "RLIMIT_MSGQUEUE", Resource::Msgqueue),
    ("nice", "RLIMIT_NICE", Resource::Nice),
    ("nofile", "RLIMIT_NOFILE", Resource::Nofile),
    ("nproc", "RLIMIT_NPROC", Resource::Nproc),
    ("rss", "RLIMIT_RSS", Resource::Rss),
    ("rtprio", "RLIMIT_RTPRIO", Resource::Rtprio),
    ("rttime", "RLIMIT_RTTIME", Resource::Rttime),
    ("sigpending", "RLIMIT_SIGPENDING", Resource::Sigpending),
    ("stack", "RLIMIT_STACK", Resource::Stack),
];

impl Rlimit {
    /// Returns the limit of a name as in `nofile`; `None` as a value is unlimited.
    pub fn new(name: &str, soft: Option<u64>, hard: Option<u64>) -> Option<Self> {
        let &(_, name, _) = RLIMITS.iter().find(|(short, ..)| *short == name)?;
        Some(Rlimit { name, soft, hard })
    }
}
