//! The cgroup of a rootless job: below a delegated cgroup, as systemd provides it with `Delegate=yes`. Version 2 only:
//! in version 1 only root may set limits.
//!
//! ```text
//! the service          delegated cgroup; enables its controllers for children, so no process may be in it
//! ├ runner             processes of the service: the runner, and others that it starts
//! └ oci-hooks-JOB      root of the job's cgroup namespace
//!   ├ init             the pause process, and processes that enter it
//!   └ oci-hooks/…      containers, as on a host
//! ```

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oci_hooks_files::fs::{PathContext as _, PathError};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, accessat, getxattr, mkdirat, open, openat};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use tracing::debug;

use crate::cgroup::{MOUNT, own_cgroup, process_cgroup, remove_mounted};

/// Cgroup to which the processes of the service are moved, as in `DelegateSubgroup=` of the packaged unit, with which
/// systemd starts them there since version 254.
const PROCESSES: &str = "runner";

/// Prefix of the names of jobs' cgroups.
const PREFIX: &str = "oci-hooks-";

/// Cgroup of a job's processes outside of containers.
const INIT: &str = "init";

/// Cgroup of a systemd user manager itself. A cgroup with such a child is delegated to systemd, not to jobs.
const MANAGER: &str = "init.scope";

/// The controllers that limits of containers need.
const CONTROLLERS: [&str; 5] = ["cpu", "cpuset", "io", "memory", "pids"];

/// Number of tries to move all processes out of a cgroup: processes may fork meanwhile.
const MOVES: usize = 100;

/// Time that killed processes may take to leave a cgroup.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A cgroup that was delegated to this user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelegatedCgroup {
    dir: PathBuf,
}

/// The cgroup of a job.
#[derive(Debug)]
pub struct JobCgroup {
    dir: PathBuf,
    /// Descriptor of the directory, valid even in a mount namespace with other cgroups at its path.
    handle: OwnedFd,
}

impl DelegatedCgroup {
    /// Returns the delegated cgroup that contains this process, if any. Changes nothing.
    pub fn find() -> Option<Self> {
        let (own, mount) = own_cgroup()?;
        DelegatedCgroup::of(&own, &mount)
    }

    /// Returns the delegated cgroup that contains another process of this user, such as a runner.
    pub fn of_process(pid: u32) -> Option<Self> {
        let (own, mount) = process_cgroup(&PathBuf::from(format!("/proc/{pid}")))?;
        DelegatedCgroup::of(&own, &mount)
    }

    /// Returns the delegated cgroup that contains another cgroup.
    fn of(own: &Path, mount: &Path) -> Option<Self> {
        let all = own.ancestors().take_while(|dir| dir.starts_with(mount) && is_ours(dir));
        let all: Vec<&Path> = all.collect();
        // Write access alone does not mean delegation: a user may write to all cgroups of the user manager.
        // systemd marks delegated cgroups since version 251.
        let dir = all.iter().find(|dir| is_marked(dir)).or(all.last())?;
        (!dir.join(MANAGER).exists()).then(|| DelegatedCgroup { dir: dir.to_path_buf() })
    }

    /// Returns the directory of the cgroup.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Returns the available controllers that limits of containers need, sorted by name.
    pub fn controllers(&self) -> Vec<&'static str> {
        let list = std::fs::read_to_string(self.dir.join("cgroup.controllers")).unwrap_or_default();
        let has = |name: &&str| list.split_whitespace().any(|found| found == *name);
        CONTROLLERS.into_iter().filter(has).collect()
    }

    /// Creates the cgroup of a job, named by letters, digits, `.`, `_` and `-`. An earlier cgroup of this name is
    /// removed, and its processes are killed.
    ///
    /// Before, all processes are moved out of the delegated cgroup, and its controllers are enabled for children: a
    /// controller that cannot be enabled is skipped, and its limits are not enforced. Any number of processes may call
    /// this function at once.
    pub fn prepare(&self, job: &str) -> Result<JobCgroup, PathError> {
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        let dir = self.dir.join(format!("{PREFIX}{job}"));
        if job.is_empty() || !job.bytes().all(is_plain) {
            return Err(PathError::new("make the cgroup", &dir, Errno::INVAL));
        }
        self.move_processes_to_child()?;
        for controller in self.controllers() {
            if let Err(error) = enable(&self.dir, controller) {
                debug!(controller, %error, "cannot enable a controller for the children of the delegated cgroup");
            }
        }
        if dir.exists() {
            remove(&dir).with_path("remove the cgroup of an earlier job", &dir)?;
        }
        make(&dir)?;
        JobCgroup::open(&dir)
    }

    /// Moves all processes to a child cgroup, as a cgroup with processes cannot enable controllers for children.
    fn move_processes_to_child(&self) -> Result<(), PathError> {
        let list = self.dir.join("cgroup.procs");
        let target = self.dir.join(PROCESSES);
        for _ in 0..MOVES {
            let processes = std::fs::read_to_string(&list).with_path("read", &list)?;
            // 0 is a process in another PID namespace, which cannot be moved.
            let mut processes = processes.lines().filter(|pid| *pid != "0").peekable();
            if processes.peek().is_none() {
                return Ok(());
            }
            make(&target)?;
            let procs = target.join("cgroup.procs");
            for pid in processes {
                match std::fs::write(&procs, pid) {
                    // The process ended meanwhile.
                    Err(error) if Errno::from_io_error(&error) == Some(Errno::SRCH) => {}
                    moved => moved.with_path("move processes of the service to", &procs)?,
                }
            }
        }
        let busy = io::Error::other("its processes fork faster than they can be moved");
        Err(PathError::new("move the processes out of", &self.dir, busy))
    }
}

impl JobCgroup {
    /// Opens the cgroup of a job, given the result of [`path`](Self::path).
    pub fn open(dir: &Path) -> Result<Self, PathError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = open(dir, flags, Mode::empty()).with_path("open the cgroup", dir)?;
        Ok(JobCgroup { dir: dir.to_owned(), handle })
    }

    /// Returns the directory of the cgroup in the host's namespaces.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Makes the cgroup the root of the cgroup namespace of this process, the job's first: moves the process there,
    /// creates a cgroup namespace, enables the controllers for children, and mounts the cgroups at their usual path.
    /// The process must have one thread, its final user ids, and its own mount namespace.
    pub fn set_up_as_root(&self) -> Result<(), PathError> {
        self.write("cgroup.procs", "0")?;
        unshare_cgroup().with_path("make a cgroup namespace in", &self.dir)?;
        match mkdirat(&self.handle, INIT, Mode::from_raw_mode(0o755)) {
            Err(Errno::EXIST) => {}
            made => made.with_path("make the cgroup `init` in", &self.dir)?,
        }
        self.write(&format!("{INIT}/cgroup.procs"), "0")?;
        let has = self.read("cgroup.controllers")?;
        for controller in CONTROLLERS.iter().filter(|name| has.split(' ').any(|it| it == **name)) {
            self.write("cgroup.subtree_control", &format!("+{controller}"))?;
        }
        self.mount()
    }

    fn mount(&self) -> Result<(), PathError> {
        let at = Path::new(MOUNT);
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        // A tmpfs in between: cgroup2 cannot be mounted on itself.
        mount("tmpfs", at, "tmpfs", flags, c"mode=755").with_path("mount a tmpfs on", at)?;
        mount("cgroup2", at, "cgroup2", flags, None).with_path("mount the job's cgroups on", at)
    }

    fn read(&self, file: &str) -> Result<String, PathError> {
        let context = || self.dir.join(file);
        let file = openat(&self.handle, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let text = file
            .map_err(io::Error::from)
            .and_then(|file| io::read_to_string(std::fs::File::from(file)));
        Ok(text.with_path("read", &context())?.trim().to_owned())
    }

    fn write(&self, file: &str, value: &str) -> Result<(), PathError> {
        let path = self.dir.join(file);
        let file = openat(&self.handle, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
        let written = file.and_then(|file| rustix::io::write(&file, value.as_bytes()));
        written.with_path("write to", &path)?;
        Ok(())
    }
}

/// Moves this process to the cgroup of a job. To be called before it enters the job's namespaces, from which processes
/// outside cannot be moved.
///
/// # Errors
///
/// `PermissionDenied` if this process was started outside of the job's service, as in an administrator's session.
/// Processes that it starts are then not subject to the job's limits.
pub fn enter(dir: &Path) -> io::Result<()> {
    std::fs::write(dir.join(INIT).join("cgroup.procs"), "0")
}

/// Returns the cgroup of a job, given the directory in `/proc` of a process in the job's `init` cgroup.
pub(super) fn job_cgroup(process: &Path) -> Option<PathBuf> {
    let (dir, _) = process_cgroup(process)?;
    let job = dir.parent().filter(|_| dir.ends_with(INIT))?;
    job.file_name()?.to_str()?.starts_with(PREFIX).then(|| job.to_owned())
}

/// Kills all processes in the cgroup of a job, and removes it if it exists. To be called outside of the job's
/// namespaces.
///
/// # Errors
///
/// `InvalidInput` if the path is no job's cgroup; `TimedOut` if a process in it does not end.
pub fn remove(dir: &Path) -> io::Result<()> {
    let name = dir.file_name().and_then(|name| name.to_str()?.strip_prefix(PREFIX));
    if name.is_none_or(str::is_empty) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    if remove_mounted(dir, TIMEOUT)? { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
}

/// Returns whether this user may create children of a cgroup and enable their controllers.
fn is_ours(dir: &Path) -> bool {
    ["", "cgroup.procs", "cgroup.subtree_control"]
        .iter()
        .all(|file| accessat(CWD, dir.join(file), Access::WRITE_OK, AtFlags::EACCESS).is_ok())
}

/// Returns whether systemd marked a cgroup as delegated.
fn is_marked(dir: &Path) -> bool {
    let mut value = [0; 1];
    getxattr(dir, c"user.delegate", &mut value).is_ok_and(|size| &value[..size] == b"1")
}

fn make(dir: &Path) -> Result<(), PathError> {
    match std::fs::create_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.with_path("make the cgroup", dir),
    }
}

fn unshare_cgroup() -> Result<(), Errno> {
    #[expect(unsafe_code, reason = "rustix calls it unsafe for what other flags do")]
    // SAFETY: unsharing a cgroup namespace does not affect open files.
    unsafe {
        unshare_unsafe(UnshareFlags::NEWCGROUP)
    }
}

/// Enables a controller for the children of a cgroup, if it is not enabled yet.
fn enable(dir: &Path, controller: &str) -> io::Result<()> {
    let file = dir.join("cgroup.subtree_control");
    let enabled = std::fs::read_to_string(&file)?;
    if enabled.split_whitespace().any(|name| name == controller) {
        return Ok(());
    }
    std::fs::write(file, format!("+{controller}"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::{XattrFlags, setxattr};

    use super::*;

    /// Creates directories that look like cgroups of this user.
    fn cgroups(mount: &Path, dirs: &[&str]) {
        for dir in dirs {
            let dir = mount.join(dir);
            fs::create_dir_all(&dir).unwrap();
            for (file, text) in [
                ("cgroup.procs", ""),
                ("cgroup.controllers", "cpuset cpu io memory hugetlb pids rdma\n"),
                ("cgroup.subtree_control", "cpu memory\n"),
            ] {
                fs::write(dir.join(file), text).unwrap();
            }
        }
    }

    fn find_delegated(mount: &Path, own: &str) -> Option<PathBuf> {
        let found = DelegatedCgroup::of(&mount.join(own), mount)?;
        Some(found.path().strip_prefix(mount).unwrap().to_owned())
    }

    fn mark(dir: &Path) {
        setxattr(dir, c"user.delegate", b"1", XattrFlags::empty()).unwrap();
    }

    #[test]
    fn delegated_cgroup_is_the_highest_writable_or_marked_one() {
        let mount = tempfile::tempdir().unwrap();
        let mount = mount.path();
        fs::create_dir(mount.join("system.slice")).unwrap();
        cgroups(mount, &["system.slice/a.service", "system.slice/a.service/runner"]);
        let service = Some("system.slice/a.service".into());
        // `system.slice` has no files that this user can write.
        assert_eq!(find_delegated(mount, "system.slice/a.service"), service);
        assert_eq!(find_delegated(mount, "system.slice/a.service/runner"), service);
        assert_eq!(find_delegated(mount, "system.slice"), None);
        cgroups(
            mount,
            &["user@1.service", "user@1.service/app.slice/", "user@1.service/app.slice/a.service"],
        );
        let own = "user@1.service/app.slice/a.service";
        mark(&mount.join(own));
        assert_eq!(find_delegated(mount, own), Some(own.into()));
    }

    #[test]
    fn cgroup_of_the_users_service_manager_is_not_used() {
        let mount = tempfile::tempdir().unwrap();
        let mount = mount.path();
        let own = "user@1.service/app.slice/a.service";
        cgroups(
            mount,
            &["user@1.service", "user@1.service/init.scope", "user@1.service/app.slice", own],
        );
        assert_eq!(find_delegated(mount, own), None);
        mark(&mount.join("user@1.service"));
        assert_eq!(find_delegated(mount, own), None);
    }

    #[test]
    fn job_gets_its_own_cgroup_with_controllers() {
        let mount = tempfile::tempdir().unwrap();
        cgroups(mount.path(), &["a.service"]);
        let delegated = DelegatedCgroup::of(&mount.path().join("a.service"), mount.path()).unwrap();
        assert_eq!(delegated.controllers(), ["cpu", "cpuset", "io", "memory", "pids"]);
        let job = delegated.prepare("1a-b_c.d").unwrap();
        assert_eq!(job.path(), mount.path().join("a.service/oci-hooks-1a-b_c.d"));
        assert!(job.path().is_dir());
        // In this regular file each write replaces the last one.
        let enabled = fs::read_to_string(mount.path().join("a.service/cgroup.subtree_control"));
        assert_eq!(enabled.unwrap(), "+pids");
        for name in ["", "..", "a/b", "../b", "a b", "a\n"] {
            assert_eq!(delegated.prepare(name).is_ok(), name == "..", "{name:?}");
        }
    }

    #[test]
    fn only_cgroups_of_jobs_are_removed() {
        let mount = tempfile::tempdir().unwrap();
        let job = mount.path().join("oci-hooks-1a");
        fs::create_dir(&job).unwrap();
        for path in ["/sys/fs/cgroup/oci-hooks", "/sys/fs/cgroup/oci-hooks-", "oci-hooks-1a", "/"] {
            let error = remove(Path::new(path)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{path}");
        }
        remove(&job).unwrap_err();
        assert!(job.exists(), "it is in no mount of cgroups");
    }
}
