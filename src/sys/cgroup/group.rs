//! Cgroups that all containers of a job are in, with limits for all of them together.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tracing::debug;

use super::Cgroups;
use super::hierarchy::{MOUNT, PARENT, hierarchies, keep_parents};
use super::remove;
use super::slice::{self, GroupLimits};
use crate::sys::fs::{PathContext as _, PathError};

/// What names of groups begin with, below [`PARENT`].
const PREFIX: &str = "job-";

/// The period of CPU quotas, in microseconds.
const PERIOD: u64 = 100_000;

/// A cgroup that several containers are in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Letters and digits that no other group has.
    pub id: String,
    pub limits: GroupLimits,
}

impl Group {
    /// Returns the cgroup of a container in the group, as in `linux.cgroupsPath`.
    pub fn cgroup_of(&self, container: &str, is_of_systemd: bool) -> String {
        match is_of_systemd {
            true => format!("{}:oci-hooks:{container}", slice::name(&self.id)),
            false => format!("{}/{container}", path(&self.id)),
        }
    }

    /// Makes the group if it is not there, and sets its limits: all of them, or it fails.
    pub fn make(&self, is_of_systemd: bool) -> Result<(), PathError> {
        debug!(id = self.id, limits = ?self.limits, "make a cgroup for all containers of a job");
        if is_of_systemd {
            return slice::make(&slice::name(&self.id), &self.limits);
        }
        // Nobody takes away what is above it meanwhile.
        let _kept = keep_parents();
        self.limits.set(Path::new(MOUNT), &path(&self.id))
    }
}

/// Returns the cgroup of a group.
fn path(id: &str) -> String {
    format!("{PARENT}/{PREFIX}{id}")
}

/// Kills everything in a group, and removes it, if there is one.
pub fn remove_group(id: &str) -> bool {
    let is_gone = remove(&path(id));
    slice::remove(&slice::name(id)) && is_gone
}

/// Returns the names of all groups, whosever they are.
pub fn all(mount: &Path) -> BTreeSet<String> {
    let dirs = hierarchies(mount).into_iter().map(|root| root.join(PARENT.trim_start_matches('/')));
    let entries = dirs.filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with(PREFIX)).collect()
}

/// A file of a cgroup, and what is written to it.
type Setting = (&'static str, String);

impl GroupLimits {
    /// Takes out the limits that do not hold in these cgroups, and returns their names, as in the settings.
    pub fn take_unkept(&mut self, cgroups: &Cgroups) -> Vec<&'static str> {
        let GroupLimits { memory_bytes, nano_cpus, pids } = self;
        let limits = [
            ("memory", "memory", memory_bytes),
            ("cpus", "cpu", nano_cpus),
            ("pids", "pids", pids),
        ];
        let lost = limits.into_iter().filter(|(_, controller, _)| !cgroups.has(controller));
        lost.filter_map(|(name, _, limit)| limit.take().map(|_| name)).collect()
    }

    /// Returns the controllers that are needed.
    fn controllers(&self) -> impl Iterator<Item = &'static str> {
        let all = [
            (self.memory_bytes.is_some(), "memory"),
            (self.nano_cpus.is_some(), "cpu"),
            (self.pids.is_some(), "pids"),
        ];
        all.into_iter().filter_map(|(is_needed, name)| is_needed.then_some(name))
    }

    fn set(&self, mount: &Path, path: &str) -> Result<(), PathError> {
        let path = path.trim_start_matches('/');
        if mount.join("cgroup.controllers").exists() {
            return self.set_unified(mount, path);
        }
        for controller in self.controllers() {
            let root = mount.join(controller);
            if !root.is_dir() {
                return Err(missing(&root));
            }
            let dir = root.join(path);
            fs::create_dir_all(&dir).at("make the cgroup", &dir)?;
            self.set_version_1(controller, &dir)?;
        }
        Ok(())
    }

    fn set_version_1(&self, controller: &str, dir: &Path) -> Result<(), PathError> {
        match (controller, self.memory_bytes, self.nano_cpus, self.pids) {
            ("memory", Some(bytes), ..) => {
                let both = bytes.saturating_mul(2).to_string();
                // Neither may be on the wrong side of the other at any time, and there may be no second.
                let swap = dir.join("memory.memsw.limit_in_bytes");
                let _ = swap.exists().then(|| fs::write(&swap, &both));
                write(dir, &("memory.limit_in_bytes", bytes.to_string()))?;
                if swap.exists() {
                    write(dir, &("memory.memsw.limit_in_bytes", both))
                } else {
                    Ok(())
                }
            }
            ("cpu", _, Some(nanos), _) => {
                write(dir, &("cpu.cfs_period_us", PERIOD.to_string()))?;
                write(dir, &("cpu.cfs_quota_us", quota(nanos).to_string()))
            }
            ("pids", .., Some(pids)) => write(dir, &("pids.max", pids.to_string())),
            _ => Ok(()),
        }
    }

    fn set_unified(&self, mount: &Path, path: &str) -> Result<(), PathError> {
        let mut dir = mount.to_owned();
        for part in path.split('/') {
            self.enable(&dir)?;
            dir.push(part);
            match fs::create_dir(&dir) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => made.at("make the cgroup", &dir)?,
            }
        }
        let settings = [
            self.memory_bytes.map(|bytes| ("memory.max", bytes.to_string())),
            self.nano_cpus.map(|nanos| ("cpu.max", format!("{} {PERIOD}", quota(nanos)))),
            self.pids.map(|pids| ("pids.max", pids.to_string())),
        ];
        for setting in settings.iter().flatten() {
            write(&dir, setting)?;
        }
        match self.memory_bytes {
            // It is there only where the kernel counts swap.
            Some(bytes) if dir.join("memory.swap.max").exists() => {
                write(&dir, &("memory.swap.max", bytes.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// Lets what is below a directory have the controllers.
    fn enable(&self, dir: &Path) -> Result<(), PathError> {
        let list = |name| fs::read_to_string(dir.join(name)).unwrap_or_default();
        let (available, enabled) = (list("cgroup.controllers"), list("cgroup.subtree_control"));
        let has = |list: &str, name| list.split_whitespace().any(|found| found == name);
        for controller in self.controllers() {
            if !has(&available, controller) {
                return Err(missing(&dir.join(controller)));
            }
            if !has(&enabled, controller) {
                write(dir, &("cgroup.subtree_control", format!("+{controller}")))?;
            }
        }
        Ok(())
    }
}

/// Returns the time that some CPUs have in each period, in microseconds.
pub fn quota(nano_cpus: u64) -> u64 {
    nano_cpus / (1_000_000_000 / PERIOD)
}

fn write(dir: &Path, (file, value): &Setting) -> Result<(), PathError> {
    let path: PathBuf = dir.join(file);
    fs::write(&path, value).at("set a limit of all containers of a job in", &path)
}

fn missing(controller: &Path) -> PathError {
    let error = io::Error::other("the kernel has no such cgroup controller here");
    PathError::new("limit all containers of a job by", controller, error)
}

/// Kills everything in the cgroup that is a container's alone, whichever group that was in, and removes
/// it. Cgroups that systemd makes go with their last process.
pub fn remove_of(id: &str) {
    remove(&format!("{PARENT}/{id}"));
    for group in all(Path::new(MOUNT)) {
        remove(&format!("{PARENT}/{group}/{id}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: GroupLimits =
        GroupLimits { memory_bytes: Some(1 << 30), nano_cpus: Some(1_500_000_000), pids: Some(77) };

    #[test]
    fn in_version_1_each_controller_has_a_directory() {
        let mount = tempfile::tempdir().unwrap();
        for name in ["memory", "cpu", "pids"] {
            fs::create_dir(mount.path().join(name)).unwrap();
        }
        LIMITS.set(mount.path(), &path("1a")).unwrap();
        let read = |name: &str| fs::read_to_string(mount.path().join(name)).unwrap();
        assert_eq!(read("memory/oci-hooks/job-1a/memory.limit_in_bytes"), "1073741824");
        assert_eq!(read("cpu/oci-hooks/job-1a/cpu.cfs_quota_us"), "150000");
        assert_eq!(read("pids/oci-hooks/job-1a/pids.max"), "77");
        assert_eq!(all(mount.path()).into_iter().collect::<Vec<_>>(), ["job-1a"]);
    }

    #[test]
    fn in_version_2_controllers_are_turned_on_from_above() {
        let mount = tempfile::tempdir().unwrap();
        let dirs = ["", "oci-hooks", "oci-hooks/job-1a"].map(|dir| mount.path().join(dir));
        for dir in &dirs {
            fs::create_dir_all(dir).unwrap();
            fs::write(dir.join("cgroup.controllers"), "cpu memory pids\n").unwrap();
            fs::write(dir.join("cgroup.subtree_control"), "cpu memory\n").unwrap();
        }
        fs::write(dirs[2].join("memory.swap.max"), "max\n").unwrap();
        LIMITS.set(mount.path(), &path("1a")).unwrap();
        let read = |name: &str| fs::read_to_string(dirs[2].join(name)).unwrap();
        assert_eq!(read("memory.max"), "1073741824");
        assert_eq!(read("memory.swap.max"), "1073741824");
        assert_eq!(read("cpu.max"), "150000 100000");
        assert_eq!(read("pids.max"), "77");
        for dir in &dirs[..2] {
            assert_eq!(fs::read_to_string(dir.join("cgroup.subtree_control")).unwrap(), "+pids");
        }
    }

    #[test]
    fn a_controller_that_is_missing_is_an_error() {
        let mount = tempfile::tempdir().unwrap();
        let error = LIMITS.set(mount.path(), &path("1a")).unwrap_err().to_string();
        assert!(error.contains("memory"), "{error}");
        fs::write(mount.path().join("cgroup.controllers"), "cpu\n").unwrap();
        let error = LIMITS.set(mount.path(), &path("1a")).unwrap_err().to_string();
        assert!(error.contains("memory"), "{error}");
    }

    #[test]
    fn a_container_is_below_its_group() {
        let group = Group { id: "1b".into(), limits: LIMITS };
        assert_eq!(group.cgroup_of("1a", false), "/oci-hooks/job-1b/1a");
        assert_eq!(group.cgroup_of("1a", true), "ocihooks-1b.slice:oci-hooks:1a");
    }
}
