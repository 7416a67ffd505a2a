//! The common cgroup of all containers of a job, with limits for all of them together.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use oci_hooks_files::fs::{PathContext as _, PathError};
use tracing::debug;

use super::AvailableCgroups;
use super::hierarchy::{MOUNT, PARENT, hierarchies, keep_parents};
use super::remove;
use super::slice::{self, GroupLimits};

/// Prefix of the names of groups below [`PARENT`].
const PREFIX: &str = "job-";

/// The period of CPU quotas, in microseconds.
const PERIOD: u64 = 100_000;

/// The common cgroup of several containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerGroup {
    /// Unique id of letters and digits.
    pub id: String,
    pub limits: GroupLimits,
}

impl ContainerGroup {
    /// Returns the cgroup of a container in the group, as in `linux.cgroupsPath`: in the form for
    /// the runtime's systemd cgroup driver if `is_of_systemd` is set, else as a path.
    pub fn cgroup_of(&self, container: &str, is_of_systemd: bool) -> String {
        match is_of_systemd {
            true => format!("{}:oci-hooks:{container}", slice::name(&self.id)),
            false => format!("{}/{container}", path(&self.id)),
        }
    }

    /// Creates the group if it is missing, and sets its limits; fails if any limit cannot be set.
    pub fn make(&self, is_of_systemd: bool) -> Result<(), PathError> {
        debug!(id = self.id, limits = ?self.limits, "make a cgroup for all containers of a job");
        if is_of_systemd {
            return slice::make(&slice::name(&self.id), &self.limits);
        }
        // No process may remove the parent meanwhile.
        let _kept = keep_parents();
        self.limits.set(Path::new(MOUNT), &path(&self.id))
    }
}

/// Returns the path of a group's cgroup.
fn path(id: &str) -> String {
    format!("{PARENT}/{PREFIX}{id}")
}

/// Kills all processes in a group, and removes it. Returns whether it is gone.
pub fn remove_group(id: &str) -> bool {
    let is_gone = remove(&path(id));
    slice::remove(&slice::name(id)) && is_gone
}

/// Returns the names of the cgroups of all groups (`job-ID`) below the parent cgroup. Groups that
/// are systemd slices are not included.
pub fn group_names(mount: &Path) -> BTreeSet<String> {
    let dirs = hierarchies(mount).into_iter().map(|root| root.join(PARENT.trim_start_matches('/')));
    let entries = dirs.filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with(PREFIX)).collect()
}

/// A file of a cgroup, and the value to write.
type CgroupSetting = (&'static str, String);

impl GroupLimits {
    /// Removes the limits that `cgroups` cannot enforce, and returns their names as in the
    /// settings.
    pub fn take_unenforced(&mut self, cgroups: &AvailableCgroups) -> Vec<&'static str> {
        let GroupLimits { memory_bytes, nano_cpus, pids } = self;
        let limits = [
            ("memory", "memory", memory_bytes),
            ("cpus", "cpu", nano_cpus),
            ("pids", "pids", pids),
        ];
        let lost = limits.into_iter().filter(|(_, controller, _)| !cgroups.has(controller));
        lost.filter_map(|(name, _, limit)| limit.take().map(|_| name)).collect()
    }

    /// Returns the controllers that the limits need.
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
            fs::create_dir_all(&dir).with_path("make the cgroup", &dir)?;
            self.set_version_1(controller, &dir)?;
        }
        Ok(())
    }

    fn set_version_1(&self, controller: &str, dir: &Path) -> Result<(), PathError> {
        match (controller, self.memory_bytes, self.nano_cpus, self.pids) {
            ("memory", Some(bytes), ..) => {
                let both = bytes.saturating_mul(2).to_string();
                // The limit of memory and swap may never be below that of memory; it needs swap accounting.
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
                made => made.with_path("make the cgroup", &dir)?,
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
            // The file exists only with swap accounting.
            Some(bytes) if dir.join("memory.swap.max").exists() => {
                write(&dir, &("memory.swap.max", bytes.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// Enables the controllers that the limits need for the children of a cgroup.
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

/// Returns the CPU quota per period, in microseconds.
pub fn quota(nano_cpus: u64) -> u64 {
    nano_cpus / (1_000_000_000 / PERIOD)
}

fn write(dir: &Path, (file, value): &CgroupSetting) -> Result<(), PathError> {
    let path: PathBuf = dir.join(file);
    fs::write(&path, value).with_path("limit the job's containers by writing to", &path)
}

fn missing(controller: &Path) -> PathError {
    let error = io::Error::other(
        "the cgroup controller is not available: leave the limit out, or enable the controller as `doctor` \
         describes",
    );
    PathError::new("limit the job's containers with", controller, error)
}

/// Kills all processes in a container's own cgroup, and removes the cgroup, whether it is below [`PARENT`] or
/// in the common cgroup of a job. systemd removes scopes with their last process.
pub fn remove_container_cgroup(id: &str) {
    remove(&format!("{PARENT}/{id}"));
    for group in group_names(Path::new(MOUNT)) {
        remove(&format!("{PARENT}/{group}/{id}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: GroupLimits =
        GroupLimits { memory_bytes: Some(1 << 30), nano_cpus: Some(1_500_000_000), pids: Some(77) };

    #[test]
    fn cgroup_v1_has_a_directory_per_controller() {
        let mount = tempfile::tempdir().unwrap();
        for name in ["memory", "cpu", "pids"] {
            fs::create_dir(mount.path().join(name)).unwrap();
        }
        LIMITS.set(mount.path(), &path("1a")).unwrap();
        let read = |name: &str| fs::read_to_string(mount.path().join(name)).unwrap();
        assert_eq!(read("memory/oci-hooks/job-1a/memory.limit_in_bytes"), "1073741824");
        assert_eq!(read("cpu/oci-hooks/job-1a/cpu.cfs_quota_us"), "150000");
        assert_eq!(read("pids/oci-hooks/job-1a/pids.max"), "77");
        assert_eq!(group_names(mount.path()).into_iter().collect::<Vec<_>>(), ["job-1a"]);
    }

    #[test]
    fn cgroup_v2_controllers_are_enabled_from_above() {
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
    fn missing_controller_is_an_error() {
        let mount = tempfile::tempdir().unwrap();
        let error = LIMITS.set(mount.path(), &path("1a")).unwrap_err().to_string();
        assert!(error.contains("memory"), "{error}");
        fs::write(mount.path().join("cgroup.controllers"), "cpu\n").unwrap();
        let error = LIMITS.set(mount.path(), &path("1a")).unwrap_err().to_string();
        assert!(error.contains("memory"), "{error}");
    }

    #[test]
    fn container_cgroup_is_below_its_group() {
        let group = ContainerGroup { id: "1b".into(), limits: LIMITS };
        assert_eq!(group.cgroup_of("1a", false), "/oci-hooks/job-1b/1a");
        assert_eq!(group.cgroup_of("1a", true), "ocihooks-1b.slice:oci-hooks:1a");
    }
}
