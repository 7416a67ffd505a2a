//! Limits of a container's cgroup, and of its processes (rlimits). Also finds the limits that the
//! host cannot enforce.

use std::fs;
use std::path::Path;

use oci_hooks_host::cgroup::AvailableCgroups;
use oci_hooks_host::privilege::Privilege;
use oci_spec::runtime::{
    LinuxBlockIo, LinuxCpu, LinuxMemory, LinuxPids, LinuxResources, PosixRlimit,
    PosixRlimitBuilder, PosixRlimitType,
};
use rustix::process::{Resource, getrlimit};

use super::capabilities::{self, CapabilitySet};

/// Cgroup limits of a container; an unset limit is not applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceLimits {
    pub memory_bytes: Option<u64>,
    /// Soft limit, enforced when memory is short.
    pub memory_reservation_bytes: Option<u64>,
    /// Memory and swap together; -1 for no limit, twice `memory_bytes` if only that is set.
    pub memory_swap_bytes: Option<i64>,
    /// Tendency to swap, 0 to 100.
    pub memory_swappiness: Option<u64>,
    /// If set, processes wait for memory instead of being killed by the OOM killer.
    pub oom_kill_disable: bool,
    pub nano_cpus: Option<u64>,
    /// Relative weight; usually 1024.
    pub cpu_shares: Option<u64>,
    /// Period of the CPU quota, in microseconds.
    pub cpu_period: Option<u64>,
    /// CPU quota: time in each period, in microseconds.
    pub cpu_quota: Option<i64>,
    /// Permitted CPUs, such as `0-2,4`.
    pub cpuset_cpus: Option<String>,
    /// Permitted memory nodes, such as `0,1`.
    pub cpuset_mems: Option<String>,
    /// Weight for block devices, 10 to 1000.
    pub blkio_weight: Option<u16>,
    /// Maximum number of processes and threads; 0 or less for no limit.
    pub pids_limit: Option<i64>,
}

/// Default limit of processes and threads: enough for any build, and far below the host's maximum.
pub const DEFAULT_PIDS_LIMIT: i64 = 32_768;

/// Highest `pids.max` of any kernel, set for an unlimited number of processes.
const MOST_PIDS: i64 = 1 << 22;

impl Default for ResourceLimits {
    fn default() -> Self {
        ResourceLimits {
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

impl ResourceLimits {
    /// Returns `linux.resources`, without the devices.
    pub(super) fn to_spec(&self) -> LinuxResources {
        let block_io = self.blkio_weight.map(|weight| {
            let mut block_io = LinuxBlockIo::default();
            block_io.set_weight(Some(weight));
            block_io
        });
        let pids = self.pids_limit.map(|limit| {
            let mut pids = LinuxPids::default();
            // Some versions of crun write -1 unchanged, which the kernel rejects.
            pids.set_limit(if limit > 0 { limit } else { MOST_PIDS });
            pids
        });
        let mut resources = LinuxResources::default();
        resources
            .set_memory(non_default(self.memory()))
            .set_cpu(non_default(self.cpu()))
            .set_block_io(block_io)
            .set_pids(pids);
        resources
    }

    fn memory(&self) -> LinuxMemory {
        let doubled = || self.memory_bytes.filter(|_| swap_is_counted()).map(double_bytes);
        let mut memory = LinuxMemory::default();
        memory
            .set_limit(self.memory_bytes.map(clamp_to_i64))
            .set_reservation(self.memory_reservation_bytes.map(clamp_to_i64))
            .set_swap(self.memory_swap_bytes.or_else(doubled))
            .set_swappiness(self.memory_swappiness)
            .set_disable_oom_killer(self.oom_kill_disable.then_some(true));
        memory
    }

    fn cpu(&self) -> LinuxCpu {
        let (period, quota) = match self.nano_cpus {
            Some(nano) => (Some(PERIOD), i64::try_from(nano / (1_000_000_000 / PERIOD)).ok()),
            None => (self.cpu_period, self.cpu_quota),
        };
        let mut cpu = LinuxCpu::default();
        cpu.set_period(period)
            .set_quota(quota)
            .set_shares(self.cpu_shares)
            .set_cpus(self.cpuset_cpus.clone())
            .set_mems(self.cpuset_mems.clone());
        cpu
    }
}

/// Period of the quota for `--cpus`, in microseconds, as in Docker.
const PERIOD: u64 = 100_000;

fn non_default<T: Default + PartialEq>(value: T) -> Option<T> {
    (value != T::default()).then_some(value)
}

/// Converts to the specification's type. Larger values exceed any kernel's limit, and are clamped.
fn clamp_to_i64(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn double_bytes(bytes: u64) -> i64 {
    bytes.checked_mul(2).and_then(|bytes| i64::try_from(bytes).ok()).unwrap_or(-1)
}

/// Returns whether swap can be limited; with cgroups v1, the kernel needs a boot parameter for that.
fn swap_is_counted() -> bool {
    let version_1 = Path::new("/sys/fs/cgroup/memory");
    !version_1.is_dir() || version_1.join("memory.memsw.limit_in_bytes").exists()
}

/// A resource limit of each process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessRlimit {
    kind: PosixRlimitType,
    /// `None` for unlimited.
    soft: Option<u64>,
    hard: Option<u64>,
}

/// Names that `--ulimit` accepts.
const RLIMITS: [(&str, PosixRlimitType, Resource); 15] = [
    ("core", PosixRlimitType::RlimitCore, Resource::Core),
    ("cpu", PosixRlimitType::RlimitCpu, Resource::Cpu),
    ("data", PosixRlimitType::RlimitData, Resource::Data),
    ("fsize", PosixRlimitType::RlimitFsize, Resource::Fsize),
    ("locks", PosixRlimitType::RlimitLocks, Resource::Locks),
    ("memlock", PosixRlimitType::RlimitMemlock, Resource::Memlock),
    ("msgqueue", PosixRlimitType::RlimitMsgqueue, Resource::Msgqueue),
    ("nice", PosixRlimitType::RlimitNice, Resource::Nice),
    ("nofile", PosixRlimitType::RlimitNofile, Resource::Nofile),
    ("nproc", PosixRlimitType::RlimitNproc, Resource::Nproc),
    ("rss", PosixRlimitType::RlimitRss, Resource::Rss),
    ("rtprio", PosixRlimitType::RlimitRtprio, Resource::Rtprio),
    ("rttime", PosixRlimitType::RlimitRttime, Resource::Rttime),
    ("sigpending", PosixRlimitType::RlimitSigpending, Resource::Sigpending),
    ("stack", PosixRlimitType::RlimitStack, Resource::Stack),
];

/// Origin of the highest limit that containers can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HighestLimit {
    /// The kernel's maximum.
    Kernel,
    /// The hard limit of this process.
    Process,
}

impl ProcessRlimit {
    /// Returns the limit with a name such as `nofile`; the value `None` is unlimited.
    pub fn new(name: &str, soft: Option<u64>, hard: Option<u64>) -> Option<Self> {
        let &(_, kind, _) = RLIMITS.iter().find(|(known, ..)| *known == name)?;
        Some(ProcessRlimit { kind, soft, hard })
    }

    /// Returns the limit for a container that requests none: this process's own limit of that name,
    /// but at most `most`.
    pub fn with_maximum(name: &str, most: u64) -> Option<Self> {
        let &(_, kind, resource) = RLIMITS.iter().find(|(known, ..)| *known == name)?;
        let own = getrlimit(resource);
        let limit = |own: Option<u64>| Some(own.map_or(most, |own| own.min(most)));
        Some(ProcessRlimit { kind, soft: limit(own.current), hard: limit(own.maximum) })
    }

    /// Returns the highest limit of this name that containers of this process can have, and its origin; `None` for no
    /// limit or an unknown name.
    pub fn highest(name: &str, privilege: Privilege) -> Option<(u64, HighestLimit)> {
        let &(.., resource) = RLIMITS.iter().find(|(known, ..)| *known == name)?;
        let may_raise = may_exceed_limits(privilege, capabilities::grantable_capabilities());
        let limit = if may_raise { HighestLimit::Kernel } else { HighestLimit::Process };
        Some((highest(resource, may_raise)?, limit))
    }

    /// Returns the entry of `process.rlimits`, capped at this process's maximum unless `may_raise` is set.
    pub(super) fn to_spec(&self, may_raise: bool) -> PosixRlimit {
        let resource = RLIMITS.iter().find(|(_, kind, _)| *kind == self.kind);
        let most = resource.and_then(|(.., resource)| highest(*resource, may_raise));
        let hard = self.hard.unwrap_or(UNLIMITED).min(most.unwrap_or(UNLIMITED));
        let soft = self.soft.unwrap_or(UNLIMITED).min(hard);
        let limit = PosixRlimitBuilder::default().typ(self.kind).soft(soft).hard(hard);
        limit.build().expect("every field has a default")
    }
}

fn highest(resource: Resource, may_raise: bool) -> Option<u64> {
    match (may_raise, resource) {
        (false, resource) => getrlimit(resource).maximum,
        // Privileged processes may not exceed the kernel's limit either.
        (true, Resource::Nofile) => nr_open(),
        (true, _) => None,
    }
}

/// Returns whether containers of this process can have limits above its own.
pub fn may_exceed_limits(privilege: Privilege, available: CapabilitySet) -> bool {
    available.contains(CapabilitySet::SYS_RESOURCE) && privilege.can_exceed_limits()
}

/// Returns the kernel's limit of open files per process.
fn nr_open() -> Option<u64> {
    fs::read_to_string("/proc/sys/fs/nr_open").ok()?.trim().parse().ok()
}

/// `RLIM_INFINITY`: no limit.
const UNLIMITED: u64 = u64::MAX;

/// Returns the `oomScoreAdj` to set: `wanted`, or this process's own if that is higher and
/// `may_lower` is not set.
pub fn oom_score_adj(wanted: i32, may_lower: bool) -> i32 {
    let own = fs::read_to_string("/proc/self/oom_score_adj").ok();
    let own = own.and_then(|text| text.trim().parse().ok()).filter(|_| !may_lower);
    own.map_or(wanted, |own: i32| wanted.max(own))
}

impl ResourceLimits {
    /// Removes the limits that these cgroups cannot enforce, and returns the names of their options, such as
    /// `memory` and `cpus`.
    pub fn take_unenforced(&mut self, cgroups: &AvailableCgroups) -> Vec<&'static str> {
        let mut taken = Vec::new();
        let ResourceLimits {
            memory_bytes,
            memory_reservation_bytes,
            memory_swap_bytes,
            memory_swappiness,
            oom_kill_disable,
            nano_cpus,
            cpu_shares,
            cpu_period,
            cpu_quota,
            cpuset_cpus,
            cpuset_mems,
            blkio_weight,
            pids_limit,
        } = self;
        let mut take = |name, is_set: bool| {
            if is_set {
                taken.push(name);
            }
        };
        if !cgroups.has("memory") {
            take("memory", memory_bytes.take().is_some());
            take("memory-reservation", memory_reservation_bytes.take().is_some());
            take("memory-swap", memory_swap_bytes.take().is_some_and(|bytes| bytes >= 0));
            take("memory-swappiness", memory_swappiness.take().is_some());
            take("oom-kill-disable", std::mem::take(oom_kill_disable));
        }
        if !cgroups.has("cpu") {
            take("cpus", nano_cpus.take().is_some());
            take("cpu-shares", cpu_shares.take().is_some());
            let has_quota = cpu_quota.take().is_some_and(|quota| quota > 0);
            take("cpu-quota", has_quota);
            take("cpu-period", cpu_period.take().is_some() && !has_quota);
        }
        if !cgroups.has("cpuset") {
            take("cpuset-cpus", cpuset_cpus.take().is_some());
            take("cpuset-mems", cpuset_mems.take().is_some());
        }
        if !cgroups.has("io") {
            take("blkio-weight", blkio_weight.take().is_some());
        }
        if !cgroups.has("pids") {
            take("pids-limit", pids_limit.take().is_some_and(|limit| limit > 0));
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{json, to_value};

    use super::*;

    #[test]
    fn default_limits_only_the_number_of_processes() {
        let json = to_value(ResourceLimits::default().to_spec()).unwrap();
        assert_eq!(json, json!({"pids": {"limit": 32768}}));
    }

    #[test]
    fn cpus_become_a_cfs_quota() {
        let resources =
            ResourceLimits { nano_cpus: Some(1_500_000_000), ..ResourceLimits::default() };
        let json = to_value(resources.to_spec()).unwrap();
        assert_eq!(json["cpu"], json!({"period": 100_000, "quota": 150_000}));
    }

    #[test]
    fn swap_is_limited_as_requested() {
        let resources = ResourceLimits {
            memory_bytes: Some(1 << 30),
            memory_swap_bytes: Some(-1),
            ..ResourceLimits::default()
        };
        let json = to_value(resources.to_spec()).unwrap();
        assert_eq!(json["memory"], json!({"limit": 1 << 30, "swap": -1}));
        assert_eq!(double_bytes(u64::MAX), -1);
    }

    #[test]
    fn rlimits_do_not_exceed_those_of_this_process() {
        let limit = ProcessRlimit::new("nofile", Some(1024), None).unwrap();
        let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        let expected = json!({"type": "RLIMIT_NOFILE", "soft": 1024, "hard": most});
        assert_eq!(to_value(limit.to_spec(false)).unwrap(), expected);
        assert_eq!(limit.to_spec(true).hard(), nr_open().unwrap());
        assert_eq!(ProcessRlimit::new("core", None, None).unwrap().to_spec(true).hard(), u64::MAX);
        let limit = ProcessRlimit::new("core", None, Some(0)).unwrap();
        let expected = json!({"type": "RLIMIT_CORE", "soft": 0, "hard": 0});
        assert_eq!(to_value(limit.to_spec(false)).unwrap(), expected);
        assert_eq!(ProcessRlimit::new("nonsense", None, None), None);
    }

    #[test]
    fn every_rlimit_has_its_name() {
        for (name, kind, _) in RLIMITS {
            assert_eq!(kind.to_string(), format!("RLIMIT_{}", name.to_uppercase()));
        }
    }

    #[test]
    fn oom_score_adjustment_is_not_below_this_process() {
        let own = oom_score_adj(-1000, false);
        assert_eq!(oom_score_adj(own + 1, false), own + 1);
        assert_eq!(oom_score_adj(-1000, true), -1000);
    }

    fn all_limits() -> ResourceLimits {
        ResourceLimits {
            memory_bytes: Some(1 << 30),
            memory_swap_bytes: Some(-1),
            nano_cpus: Some(1),
            cpu_quota: Some(-1),
            cpuset_cpus: Some("0".to_owned()),
            blkio_weight: Some(10),
            pids_limit: Some(7),
            ..ResourceLimits::default()
        }
    }

    #[test]
    fn limits_require_their_controllers() {
        let mut resources = all_limits();
        assert_eq!(resources.take_unenforced(&AvailableCgroups::Host), [""; 0]);
        assert_eq!(resources, all_limits());
        let some = AvailableCgroups::Delegated(vec!["memory".to_owned(), "pids".to_owned()]);
        assert_eq!(resources.take_unenforced(&some), ["cpus", "cpuset-cpus", "blkio-weight"]);
        assert_eq!((resources.memory_bytes, resources.pids_limit), (Some(1 << 30), Some(7)));
        assert_eq!(all_limits().take_unenforced(&AvailableCgroups::None).len(), 5);
        resources.take_unenforced(&AvailableCgroups::None);
        assert_eq!(resources, ResourceLimits { pids_limit: None, ..ResourceLimits::default() });
    }
}
