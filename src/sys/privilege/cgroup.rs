//! The cgroup of a job of an ordinary user: below one that whoever started the user's service gave to it, as systemd
//! does for `Delegate=yes`. Version 2 alone: in version 1 nobody but root may give limits.
//!
//! ```text
//! the service          what was delegated; it hands out its controllers, so no process may be in it
//! ├ runner             what was in the service: the runner, and whatever else it starts
//! └ oci-hooks-JOB      root of the job's cgroup namespace
//!   ├ init             the holder, and what enters it
//!   └ oci-hooks/…      containers, as on a host of one's own
//! ```

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, accessat, getxattr, mkdirat, open, openat};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use tracing::debug;

use crate::sys::cgroup::{of_process, own, remove_mounted};
use crate::sys::fs::{PathContext as _, PathError};

/// What the processes of the service are moved to, named as in `DelegateSubgroup=` of the unit that comes
/// with us: systemd starts them there by itself since version 254.
const PROCESSES: &str = "runner";

/// What names of jobs' cgroups begin with.
const PREFIX: &str = "oci-hooks-";

/// What of a job is in no container.
const INIT: &str = "init";

/// Where systemd, as any user has one, keeps itself. What is delegated to it is its to divide.
const MANAGER: &str = "init.scope";

/// Where cgroups are mounted.
const MOUNT: &str = "/sys/fs/cgroup";

/// The controllers that limits of containers take.
const CONTROLLERS: [&str; 5] = ["cpu", "cpuset", "io", "memory", "pids"];

/// How often it is tried to leave a cgroup without processes: each time those that its processes made
/// meanwhile are left.
const MOVES: usize = 100;

/// How long killed processes may take to leave a cgroup.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A cgroup that belongs to this user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delegated {
    dir: PathBuf,
}

/// The cgroup of a job.
#[derive(Debug)]
pub struct JobCgroup {
    dir: PathBuf,
    /// It is found by this in a mount namespace, too, that has other cgroups at its path.
    handle: OwnedFd,
}

impl Delegated {
    /// Returns the cgroup that was delegated to whoever started this process; none if none was. Nothing is
    /// changed.
    pub fn find() -> Option<Self> {
        let (own, mount) = own()?;
        Delegated::of(&own, &mount)
    }

    /// Returns the cgroup that was delegated to whoever started a process of this user, as its runner.
    pub fn of_process(pid: u32) -> Option<Self> {
        let (own, mount) = of_process(&PathBuf::from(format!("/proc/{pid}")))?;
        Delegated::of(&own, &mount)
    }

    /// Returns the one that a cgroup is in.
    fn of(own: &Path, mount: &Path) -> Option<Self> {
        let all = own.ancestors().take_while(|dir| dir.starts_with(mount) && is_ours(dir));
        let all: Vec<&Path> = all.collect();
        // Who may write above what he was given, as in a user's own service manager, was not given that.
        // systemd marks what it gives since version 251.
        let dir = all.iter().find(|dir| is_marked(dir)).or(all.last())?;
        (!dir.join(MANAGER).exists()).then(|| Delegated { dir: dir.to_path_buf() })
    }

    /// Returns its directory.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Returns the controllers that limits take and it has, in the order of their names.
    pub fn controllers(&self) -> Vec<&'static str> {
        let list = std::fs::read_to_string(self.dir.join("cgroup.controllers")).unwrap_or_default();
        let has = |name: &&str| list.split_whitespace().any(|found| found == *name);
        CONTROLLERS.into_iter().filter(has).collect()
    }

    /// Makes the cgroup of a job, named by letters, digits, `.`, `_` and `-`. What an earlier one of this name
    /// left is killed and removed.
    ///
    /// Before, all processes are moved out of what was delegated, and its controllers handed out: a
    /// controller for which that is not possible is left out, and limits that need it do not hold. Any
    /// number of processes may do so at once.
    pub fn prepare(&self, job: &str) -> Result<JobCgroup, PathError> {
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        let dir = self.dir.join(format!("{PREFIX}{job}"));
        if job.is_empty() || !job.bytes().all(is_plain) {
            return Err(PathError::new("make the cgroup", &dir, Errno::INVAL));
        }
        self.vacate()?;
        for controller in self.controllers() {
            if let Err(error) = enable(&self.dir, controller) {
                debug!(controller, %error, "a controller of the delegated cgroup cannot be handed out");
            }
        }
        if dir.exists() {
            remove(&dir).at("remove the cgroup of an earlier job", &dir)?;
        }
        make(&dir)?;
        JobCgroup::open(&dir)
    }

    /// Moves all processes to a cgroup below, as one that has processes cannot hand out controllers.
    fn vacate(&self) -> Result<(), PathError> {
        let list = self.dir.join("cgroup.procs");
        let target = self.dir.join(PROCESSES);
        for _ in 0..MOVES {
            let processes = std::fs::read_to_string(&list).at("read", &list)?;
            // 0 is one that we cannot see, and cannot move.
            let mut processes = processes.lines().filter(|pid| *pid != "0").peekable();
            if processes.peek().is_none() {
                return Ok(());
            }
            make(&target)?;
            let procs = target.join("cgroup.procs");
            for pid in processes {
                match std::fs::write(&procs, pid) {
                    // It ended meanwhile.
                    Err(error) if Errno::from_io_error(&error) == Some(Errno::SRCH) => {}
                    moved => moved.at("move processes of the service to", &procs)?,
                }
            }
        }
        let busy = io::Error::other("its processes make others faster than they can be moved");
        Err(PathError::new("move the processes out of", &self.dir, busy))
    }
}

impl JobCgroup {
    /// Opens the cgroup of a job at the path that [`path`](Self::path) once said.
    pub fn open(dir: &Path) -> Result<Self, PathError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = open(dir, flags, Mode::empty()).at("open the cgroup", dir)?;
        Ok(JobCgroup { dir: dir.to_owned(), handle })
    }

    /// Returns its directory, as the host sees it.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Makes it the root of all cgroups for this process, the job's first, which must have one thread, its
    /// user ids, and a mount namespace of its own: moves it there, gives it a cgroup namespace, hands the
    /// controllers out, and mounts the cgroups where they are looked for.
    pub fn settle(&self) -> Result<(), PathError> {
        self.write("cgroup.procs", "0")?;
        unshare_cgroup().at("make a cgroup namespace in", &self.dir)?;
        match mkdirat(&self.handle, INIT, Mode::from_raw_mode(0o755)) {
            Err(Errno::EXIST) => {}
            made => made.at("make the first cgroup in", &self.dir)?,
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
        // The same file system cannot be mounted on itself.
        mount("tmpfs", at, "tmpfs", flags, c"mode=755").at("mount memory on", at)?;
        mount("cgroup2", at, "cgroup2", flags, None).at("mount the job's cgroups on", at)
    }

    fn read(&self, file: &str) -> Result<String, PathError> {
        let context = || self.dir.join(file);
        let file = openat(&self.handle, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let text = file
            .map_err(io::Error::from)
            .and_then(|file| io::read_to_string(std::fs::File::from(file)));
        Ok(text.at("read", &context())?.trim().to_owned())
    }

    fn write(&self, file: &str, value: &str) -> Result<(), PathError> {
        let path = self.dir.join(file);
        let file = openat(&self.handle, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
        let written = file.and_then(|file| rustix::io::write(&file, value.as_bytes()));
        written.at("write to", &path)?;
        Ok(())
    }
}

/// Moves this process to the cgroup of a job, before it enters the job's namespaces: from within, what is
/// outside cannot be moved.
///
/// # Errors
///
/// `PermissionDenied` if this process was started elsewhere than in the service whose job it is, as in an
/// admin's own session. Whatever it starts then is outside of the job's limits.
pub fn enter(dir: &Path) -> io::Result<()> {
    std::fs::write(dir.join(INIT).join("cgroup.procs"), "0")
}

/// Returns the cgroup of a job in which a process is outside of containers, whose directory in `/proc` this is.
pub(super) fn of_first(process: &Path) -> Option<PathBuf> {
    let (dir, _) = of_process(process)?;
    let job = dir.parent().filter(|_| dir.ends_with(INIT))?;
    job.file_name()?.to_str()?.starts_with(PREFIX).then(|| job.to_owned())
}

/// Kills all that is in the cgroup of a job, and removes it, if it is there. From outside.
///
/// # Errors
///
/// `InvalidInput` if the path is not that of a job's cgroup; `TimedOut` if something in it does not end.
pub fn remove(dir: &Path) -> io::Result<()> {
    let name = dir.file_name().and_then(|name| name.to_str()?.strip_prefix(PREFIX));
    if name.is_none_or(str::is_empty) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    if remove_mounted(dir, TIMEOUT)? { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
}

/// Returns whether this user may divide a cgroup.
fn is_ours(dir: &Path) -> bool {
    ["", "cgroup.procs", "cgroup.subtree_control"]
        .iter()
        .all(|file| accessat(CWD, dir.join(file), Access::WRITE_OK, AtFlags::EACCESS).is_ok())
}

/// Returns whether systemd says that it has delegated a cgroup.
fn is_marked(dir: &Path) -> bool {
    let mut value = [0; 1];
    getxattr(dir, c"user.delegate", &mut value).is_ok_and(|size| &value[..size] == b"1")
}

fn make(dir: &Path) -> Result<(), PathError> {
    match std::fs::create_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.at("make the cgroup", dir),
    }
}

fn unshare_cgroup() -> Result<(), Errno> {
    #[expect(unsafe_code, reason = "rustix calls it unsafe for what other flags do")]
    // SAFETY: no open files are parted from.
    unsafe {
        unshare_unsafe(UnshareFlags::NEWCGROUP)
    }
}

/// Hands a controller out, if that is not done yet.
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

    /// Makes directories as if they were cgroups of this user.
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

    fn found(mount: &Path, own: &str) -> Option<PathBuf> {
        let found = Delegated::of(&mount.join(own), mount)?;
        Some(found.path().strip_prefix(mount).unwrap().to_owned())
    }

    fn mark(dir: &Path) {
        setxattr(dir, c"user.delegate", b"1", XattrFlags::empty()).unwrap();
    }

    #[test]
    fn what_was_delegated_is_the_highest_that_may_be_written_or_the_nearest_that_systemd_marks() {
        let mount = tempfile::tempdir().unwrap();
        let mount = mount.path();
        fs::create_dir(mount.join("system.slice")).unwrap();
        cgroups(mount, &["system.slice/a.service", "system.slice/a.service/runner"]);
        let service = Some("system.slice/a.service".into());
        // `system.slice` has no files that this user could write.
        assert_eq!(found(mount, "system.slice/a.service"), service);
        assert_eq!(found(mount, "system.slice/a.service/runner"), service);
        assert_eq!(found(mount, "system.slice"), None);
        cgroups(
            mount,
            &["user@1.service", "user@1.service/app.slice/", "user@1.service/app.slice/a.service"],
        );
        let own = "user@1.service/app.slice/a.service";
        mark(&mount.join(own));
        assert_eq!(found(mount, own), Some(own.into()));
    }

    #[test]
    fn what_a_user_s_own_service_manager_was_given_is_its_to_divide() {
        let mount = tempfile::tempdir().unwrap();
        let mount = mount.path();
        let own = "user@1.service/app.slice/a.service";
        cgroups(
            mount,
            &["user@1.service", "user@1.service/init.scope", "user@1.service/app.slice", own],
        );
        assert_eq!(found(mount, own), None);
        mark(&mount.join("user@1.service"));
        assert_eq!(found(mount, own), None);
    }

    #[test]
    fn a_job_has_a_cgroup_of_its_own_and_the_controllers_are_handed_out() {
        let mount = tempfile::tempdir().unwrap();
        cgroups(mount.path(), &["a.service"]);
        let delegated = Delegated::of(&mount.path().join("a.service"), mount.path()).unwrap();
        assert_eq!(delegated.controllers(), ["cpu", "cpuset", "io", "memory", "pids"]);
        let job = delegated.prepare("1a-b_c.d").unwrap();
        assert_eq!(job.path(), mount.path().join("a.service/oci-hooks-1a-b_c.d"));
        assert!(job.path().is_dir());
        // Here each write replaces the last.
        let enabled = fs::read_to_string(mount.path().join("a.service/cgroup.subtree_control"));
        assert_eq!(enabled.unwrap(), "+pids");
        for name in ["", "..", "a/b", "../b", "a b", "a\n"] {
            assert_eq!(delegated.prepare(name).is_ok(), name == "..", "{name:?}");
        }
    }

    #[test]
    fn no_cgroup_but_a_job_s_is_removed() {
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
