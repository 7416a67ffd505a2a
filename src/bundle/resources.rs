//! Limits: cgroups and rlimits.

use std::fs;
use std::path::Path;

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
    /// How many processes and threads; 0 or less for any.
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
        let doubled = || self.memory_bytes.filter(|_| swap_is_counted()).map(twice);
        let memory = present([
            ("limit", self.memory_bytes.map(Value::from)),
            ("reservation", self.memory_reservation_bytes.map(Value::from)),
            ("swap", self.memory_swap_bytes.or_else(doubled).map(Value::from)),
            ("swappiness", self.memory_swappiness.map(Value::from)),
            ("disableOOMKiller", self.oom_kill_disable.then_some(Value::Bool(true))),
        ]);
        let (period, quota) = match self.nano_cpus {
            Some(nano) => (Some(PERIOD), i64::try_from(nano / (1_000_000_000 / PERIOD)).ok()),
            None => (self.cpu_period, self.cpu_quota),
        };
        let cpu = present([
            ("period", period.map(Value::from)),
            ("quota", quota.map(Value::from)),
            ("shares", self.cpu_shares.map(Value::from)),
            ("cpus", self.cpuset_cpus.clone().map(Value::from)),
            ("mems", self.cpuset_mems.clone().map(Value::from)),
        ]);
        present([
            ("memory", (!memory.is_empty()).then_some(memory.into())),
            ("cpu", (!cpu.is_empty()).then_some(cpu.into())),
            ("blockIO", self.blkio_weight.map(|weight| json!({"weight": weight}))),
            (
                "pids",
                self.pids_limit.map(|limit| json!({"limit": if limit > 0 { limit } else { -1 }})),
            ),
        ])
    }
}

/// The period of what `--cpus` limits, in microseconds, as in Docker.
const PERIOD: u64 = 100_000;

fn present<const N: usize>(members: [(&str, Option<Value>); N]) -> Map<String, Value> {
    members.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}

fn twice(bytes: u64) -> i64 {
    bytes.checked_mul(2).and_then(|bytes| i64::try_from(bytes).ok()).unwrap_or(-1)
}

/// Tells if swap can be limited, which a kernel with cgroups of version 1 has to be told at its boot.
fn swap_is_counted() -> bool {
    let version_1 = Path::new("/sys/fs/cgroup/memory");
    !version_1.is_dir() || version_1.join("memory.memsw.limit_in_bytes").exists()
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

    /// Returns the entry of `process.rlimits`, with no more than this process may give.
    pub(super) fn to_json(&self, may_raise: bool) -> Value {
        let resource = RLIMITS.iter().find(|(_, name, _)| *name == self.name);
        let most = resource.and_then(|(.., resource)| match (may_raise, resource) {
            (false, resource) => getrlimit(*resource).maximum,
            // No process may give more, whatever else it may.
            (true, Resource::Nofile) => nr_open(),
            (true, _) => None,
        });
        let hard = self.hard.unwrap_or(UNLIMITED).min(most.unwrap_or(UNLIMITED));
        let soft = self.soft.unwrap_or(UNLIMITED).min(hard);
        json!({"type": self.name, "soft": soft, "hard": hard})
    }
}

/// Returns how many files the kernel lets any process have open.
fn nr_open() -> Option<u64> {
    fs::read_to_string("/proc/sys/fs/nr_open").ok()?.trim().parse().ok()
}

/// `RLIM_INFINITY`.
const UNLIMITED: u64 = u64::MAX;

/// Returns an `oomScoreAdj` that this process may set.
pub(super) fn oom_score_adj(wanted: i32, may_lower: bool) -> i32 {
    let own = fs::read_to_string("/proc/self/oom_score_adj").ok();
    let own = own.and_then(|text| text.trim().parse().ok()).filter(|_| !may_lower);
    own.map_or(wanted, |own: i32| wanted.max(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_said_limits_only_processes() {
        let json = Value::Object(Resources::default().to_json());
        assert_eq!(json, json!({"pids": {"limit": 32768}}));
    }

    #[test]
    fn processors_become_a_quota() {
        let resources = Resources { nano_cpus: Some(1_500_000_000), ..Resources::default() };
        let json = Value::Object(resources.to_json());
        assert_eq!(json["cpu"], json!({"period": 100_000, "quota": 150_000}));
    }

    #[test]
    fn swap_said_is_swap_given() {
        let resources = Resources {
            memory_bytes: Some(1 << 30),
            memory_swap_bytes: Some(-1),
            ..Resources::default()
        };
        let json = Value::Object(resources.to_json());
        assert_eq!(json["memory"], json!({"limit": 1 << 30, "swap": -1}));
        assert_eq!(twice(u64::MAX), -1);
    }

    #[test]
    fn limits_are_what_this_process_may_give() {
        let limit = Rlimit::new("nofile", Some(1024), None).unwrap();
        let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        let expected = json!({"type": "RLIMIT_NOFILE", "soft": 1024, "hard": most});
        assert_eq!(limit.to_json(false), expected);
        assert_eq!(limit.to_json(true)["hard"], nr_open().unwrap());
        assert_eq!(Rlimit::new("core", None, None).unwrap().to_json(true)["hard"], u64::MAX);
        let limit = Rlimit::new("core", None, Some(0)).unwrap();
        assert_eq!(limit.to_json(false), json!({"type": "RLIMIT_CORE", "soft": 0, "hard": 0}));
        assert_eq!(Rlimit::new("nonsense", None, None), None);
    }

    #[test]
    fn the_score_is_not_below_our_own() {
        let own = oom_score_adj(-1000, false);
        assert_eq!(oom_score_adj(own + 1, false), own + 1);
        assert_eq!(oom_score_adj(-1000, true), -1000);
    }
}
