//! Directories of images and containers: permissions, free space, and mounting of layers.

mod layer;

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oci_hooks::hooks::trust::{self, TrustOptions};
use oci_hooks_engine::rootfs::{self, RootfsBacking};
use oci_hooks_files::error::chain;
use oci_hooks_files::find::DEFAULT_PATH;
use oci_hooks_files::fs::{PathContext as _, random_u64};
use oci_hooks_files::lock::lock_open;
use oci_hooks_files::quantity::{format_count, format_size};
use oci_hooks_files::rollback::Rollback;
use oci_hooks_host::privilege::Privilege;
use oci_hooks_host::removal::remove_tree;
use oci_hooks_host::trash::Trash;
use oci_hooks_host::{cgroup, mount};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::geteuid;

use super::super::host::HostSections;
use super::super::paths::is_private;
use super::super::sections::StoreSection;
use super::HostCheck;

/// Free space that a few images can fill; less is a warning.
const LITTLE_BYTES: u64 = 10_000_000_000;
/// Free space that one image can fill; less is a failure.
const TOO_LITTLE_BYTES: u64 = 1_000_000_000;

/// Checks the directories of the store, mounts an overlay in it, and reports its trash.
pub fn checks(host: HostSections<'_>) -> Vec<HostCheck> {
    let mut checks = directories(host);
    checks.push(overlay(host.store, host.store.place.privilege));
    let roots = [&host.store.root, &host.store.run];
    checks.extend(roots.into_iter().filter_map(|root| set_aside(root, host.program)));
    checks
}

/// Checks the permissions of the image store and the run directory, and the store's free space.
pub fn directories(host: HostSections<'_>) -> Vec<HostCheck> {
    let store = host.store;
    vec![
        permissions("store", &store.root),
        run_directory(&store.run),
        space(&existing_ancestor(&store.root), host.program),
    ]
}

/// Reports directory trees in the trash, which could not be removed.
pub fn set_aside(root: &Path, program: &str) -> Option<HostCheck> {
    let hint = format!("{program} prune tries again, and prints the reasons");
    let trash = Trash::of(root);
    let (count, bytes) = match trash.contents().map(|contents| contents.len()) {
        Ok(0) => return None,
        Ok(count) => (count, trash.disk_bytes().map_or_else(|error| chain(&error), format_size)),
        Err(error) => return Some(HostCheck::warn("set aside", chain(&error), hint)),
    };
    let trees = format_count(count, "tree");
    let found = format!("{trees} in {} could not be removed: {bytes}", root.display());
    Some(HostCheck::warn("set aside", found, hint))
}

/// Returns the nearest existing ancestor: a missing directory will be created on the same file system.
pub(super) fn existing_ancestor(path: &Path) -> PathBuf {
    path.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/")).to_owned()
}

/// Checks the run directory, which must be private to an ordinary user.
fn run_directory(run: &Path) -> HostCheck {
    const NAME: &str = "run directory";
    let uid = geteuid();
    let is_missing = run.symlink_metadata().is_err();
    if uid.is_root() || is_missing || is_private(run, uid.as_raw()) {
        return permissions(NAME, run);
    }
    let found = format!("{} is not private to this user", run.display());
    let hint = format!(
        "chmod 700 {}, if it is a directory of this user; else name another one as `run` under [store]",
        run.display()
    );
    HostCheck::fail(NAME, found, hint)
}

/// Checks that only root and the current user can write to a directory.
pub fn permissions(name: &'static str, path: &Path) -> HostCheck {
    let there = existing_ancestor(path);
    let found = if there == path {
        path.display().to_string()
    } else {
        format!("{} will be created", path.display())
    };
    match trust::check_path(&there, &TrustOptions::of_process()) {
        Ok(()) => HostCheck::ok(name, found),
        Err(error) => {
            let hint = error.hint().unwrap_or_else(|| "choose another directory".to_owned());
            HostCheck::fail(name, chain(&error), hint)
        }
    }
}

fn space(path: &Path, program: &str) -> HostCheck {
    let Ok(found) = rustix::fs::statvfs(path) else {
        return HostCheck::warn("disk", "unknown free space", "check it with df");
    };
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    let text = format!("{} free in {}", format_size(free), path.display());
    let hint =
        format!("{program} prune --size 5GB, or a larger disk for store.root in the settings");
    if found.f_files != 0 && found.f_favail < 100_000 {
        return HostCheck::warn(
            "disk",
            format!("{} inodes free in {}", found.f_favail, path.display()),
            hint,
        );
    }
    match free {
        ..TOO_LITTLE_BYTES => HostCheck::fail("disk", text, hint),
        TOO_LITTLE_BYTES..LITTLE_BYTES => HostCheck::warn("disk", text, hint),
        _ => HostCheck::ok("disk", text),
    }
}

/// Checks that disks of limited size can be created: needs mkfs.ext4 and loop devices.
pub fn limited_disks() -> HostCheck {
    let mut directories = std::env::split_paths(DEFAULT_PATH);
    if !directories.any(|dir| dir.join("mkfs.ext4").is_file()) {
        return HostCheck::fail("limited disks", "mkfs.ext4 is not installed", "install e2fsprogs");
    }
    if !Path::new("/dev/loop-control").exists() {
        return HostCheck::fail("limited disks", "there are no loop devices", "modprobe loop");
    }
    HostCheck::ok("limited disks", "can be created")
}

/// Checks overlays: mounts a root file system of two layers, and changes files of both as steps do.
pub fn overlay(store: &StoreSection, privilege: Privilege) -> HostCheck {
    let hint = "modprobe overlay, or set store.root to a directory on ext4, xfs or btrfs; without \
                an overlay each container copies its image, which takes seconds";
    let mounted = run_trial(store, |trial| {
        let layers = [trial.join("lower"), trial.join("upper-layer")];
        let dir = trial.join("container");
        for path in layers.iter().chain([&dir]) {
            fs::create_dir(path).with_path("create the directory", path)?;
        }
        layer::write(&layers, privilege)?;
        let request =
            rootfs::RootfsRequest { privilege, ..rootfs::RootfsRequest::new(&layers, &dir) };
        let rootfs = rootfs::mount(&request)?;
        let changed = match rootfs.backing {
            RootfsBacking::Overlay => layer::change(&rootfs.path),
            _ => Ok(()),
        };
        rootfs::unmount(&dir)?;
        changed?;
        Ok(rootfs.backing)
    });
    match mounted {
        Ok(RootfsBacking::Copy { reason }) => HostCheck::warn("overlay", reason, hint),
        Ok(_) => HostCheck::ok("overlay", "works: files of layers can be removed and replaced"),
        Err(error) => HostCheck::fail("overlay", chain(&*error), hint),
    }
}

/// Error of a test that [`run_trial`] runs.
pub type TrialError = Box<dyn std::error::Error>;

/// Name prefix of the temporary directories of [`run_trial`].
const TRIAL: &str = ".doctor-";

/// Timeout for the lock that another process holds while it creates its temporary directory.
const CREATION: Duration = Duration::from_secs(2);

/// Runs a test of `doctor` in a new temporary directory on the store's file system, and removes the
/// directory afterwards. Also removes the temporary directories of killed processes.
pub fn run_trial<T>(
    store: &StoreSection,
    run: impl FnOnce(&Path) -> Result<T, TrialError>,
) -> Result<T, TrialError> {
    let parent = &existing_ancestor(&store.root);
    // A process holds the lock of its trial until it ends, and the lock of the parent until it holds the first.
    let creation = File::open(parent).with_path("open", parent)?;
    // Any user who can read the parent can hold its lock: then old trials are kept.
    if lock_open(&creation, parent, CREATION).is_ok() {
        remove_trials_of_killed_processes(parent).with_path("read", parent)?;
    }
    let trial = &parent.join(format!("{TRIAL}{:016x}", random_u64()));
    fs::create_dir(trial).with_path("create the directory", trial)?;
    let own = open_own(trial).with_path("open", trial)?;
    let mut undo = Rollback::new();
    undo.push(|| remove_trial(trial, &own));
    own.try_lock().map_err(io::Error::from).with_path("lock", trial)?;
    drop(creation);
    run(trial)
}

fn remove_trials_of_killed_processes(parent: &Path) -> io::Result<()> {
    for entry in fs::read_dir(parent)? {
        let trial = entry?.path();
        let name = trial.file_name().unwrap_or_default();
        if name.as_bytes().starts_with(TRIAL.as_bytes())
            && let Ok(own) = open_own(&trial)
            && own.try_lock().is_ok()
        {
            remove_trial(&trial, &own);
        }
    }
    Ok(())
}

/// Opens a temporary directory of [`run_trial`], which must belong to this user: in a parent like
/// `/tmp`, other users can create directories with such a name.
fn open_own(trial: &Path) -> io::Result<File> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let own = File::from(open(trial, flags, Mode::empty())?);
    match own.metadata()?.uid() == geteuid().as_raw() {
        true => Ok(own),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// Removes a temporary directory of [`run_trial`], with the mounts in it and the cgroups of its
/// containers. `own` is its open descriptor.
fn remove_trial(trial: &Path, own: &File) {
    let below = PathBuf::from(format!("/proc/self/fd/{}", own.as_raw_fd()));
    let containers = fs::read_dir(below.join("run/containers")).into_iter().flatten().flatten();
    for id in containers.filter_map(|entry| entry.file_name().into_string().ok()) {
        if id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            cgroup::remove_container_cgroup(&id);
        }
    }
    for mounted in ["container/merged", "target"] {
        let _ = mount::unmount(&below.join(mounted));
    }
    let _ = mount::unmount_below(&below);
    let _ = remove_tree(trial);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_trials_of_killed_processes_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let [killed, running] =
            ["killed", "running"].map(|name| parent.path().join(TRIAL.to_owned() + name));
        for trial in [&killed, &running] {
            fs::create_dir_all(trial.join("container/merged")).unwrap();
        }
        let lock = File::open(&running).unwrap();
        lock.try_lock().unwrap();
        remove_trials_of_killed_processes(parent.path()).unwrap();
        assert!(!killed.exists() && running.exists());
        drop(lock);
        remove_trials_of_killed_processes(parent.path()).unwrap();
        assert!(!running.exists());
    }
}
