//! Limits that do not hold because the controller that they need is not there.

use super::Resources;
use crate::sys::cgroup::Cgroups;

impl Resources {
    /// Takes out the limits that do not hold in these cgroups, and returns their names, as those of options:
    /// `memory`, `cpus`.
    pub fn take_unkept(&mut self, cgroups: &Cgroups) -> Vec<&'static str> {
        let mut taken = Vec::new();
        let Resources {
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
    use super::*;

    fn all() -> Resources {
        Resources {
            memory_bytes: Some(1 << 30),
            memory_swap_bytes: Some(-1),
            nano_cpus: Some(1),
            cpu_quota: Some(-1),
            cpuset_cpus: Some("0".to_owned()),
            blkio_weight: Some(10),
            pids_limit: Some(7),
            ..Resources::default()
        }
    }

    #[test]
    fn limits_go_with_their_controllers() {
        let mut resources = all();
        assert_eq!(resources.take_unkept(&Cgroups::Host), [""; 0]);
        assert_eq!(resources, all());
        let some = Cgroups::Delegated(vec!["memory".to_owned(), "pids".to_owned()]);
        assert_eq!(resources.take_unkept(&some), ["cpus", "cpuset-cpus", "blkio-weight"]);
        assert_eq!((resources.memory_bytes, resources.pids_limit), (Some(1 << 30), Some(7)));
        assert_eq!(all().take_unkept(&Cgroups::None).len(), 5);
        resources.take_unkept(&Cgroups::None);
        assert_eq!(resources, Resources { pids_limit: None, ..Resources::default() });
    }
}
