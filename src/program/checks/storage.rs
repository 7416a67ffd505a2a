//! Where images and containers are: permissions, space, and whether layers can be mounted there.

mod layer;

use std::fs;
use std::path::{Path, PathBuf};

use super::super::host::Host;
use super::super::sections::Store;
use super::Check;
use crate::hooks::trust::{self, TrustOptions};
use crate::rootfs::{self, Backing};
use crate::runtime::DEFAULT_PATH;
use crate::sys::error::chain;
use crate::sys::fs::{PathContext as _, random_u64};
use crate::sys::mount;
use crate::sys::privilege::Privilege;
use crate::sys::quantity::{counted, human};
use crate::sys::removal::remove_tree;
use crate::sys::rollback::Rollback;
use crate::sys::trash::Trash;

/// Less than this is filled by a few images.
const LITTLE_BYTES: u64 = 10_000_000_000;
/// Less than this is filled by one.
const TOO_LITTLE_BYTES: u64 = 1_000_000_000;

/// Checks the directories of the store, and mounts something in it.
pub fn checks(host: Host<'_>) -> Vec<Check> {
    let mut checks = directories(host);
    checks.push(overlay(host.store, host.store.place.privilege));
    let roots = [&host.store.root, &host.store.run];
    checks.extend(roots.into_iter().filter_map(|root| set_aside(root, host.program)));
    checks
}

/// Checks the directories of the store.
pub fn directories(host: Host<'_>) -> Vec<Check> {
    let store = host.store;
    vec![
        permissions("store", &store.root),
        permissions("run directory", &store.run),
        space(&existing(&store.root), host.program),
    ]
}

/// Reports what could not be removed, if there is anything.
pub fn set_aside(root: &Path, program: &str) -> Option<Check> {
    let hint = format!("{program} prune tries again, and prints what keeps them");
    let trash = Trash::of(root);
    let (count, bytes) = match trash.contents().map(|contents| contents.len()) {
        Ok(0) => return None,
        Ok(count) => (count, trash.disk_bytes().map_or_else(|error| chain(&error), human)),
        Err(error) => return Some(Check::warn("set aside", chain(&error), hint)),
    };
    let trees = counted(count, "tree");
    let found = format!("{trees} in {} could not be removed: {bytes}", root.display());
    Some(Check::warn("set aside", found, hint))
}

/// Returns the nearest directory above that exists: what is not there yet will be on its disk.
pub(super) fn existing(path: &Path) -> PathBuf {
    path.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/")).to_owned()
}

/// Checks that nobody but root and the user who runs this can change a directory.
pub fn permissions(name: &'static str, path: &Path) -> Check {
    let there = existing(path);
    let found = if there == path {
        path.display().to_string()
    } else {
        format!("{} will be made", path.display())
    };
    match trust::check_path(&there, &TrustOptions::of_process()) {
        Ok(()) => Check::ok(name, found),
        Err(error) => {
            let hint = error.hint().unwrap_or_else(|| "choose another directory".to_owned());
            Check::fail(name, chain(&error), hint)
        }
    }
}

fn space(path: &Path, program: &str) -> Check {
    let Ok(found) = rustix::fs::statvfs(path) else {
        return Check::warn("disk", "unknown free space", "check it with df");
    };
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    let text = format!("{} free in {}", human(free), path.display());
    let hint =
        format!("{program} prune --size 5GB, or a larger disk for store.root in the settings");
    if found.f_files != 0 && found.f_favail < 100_000 {
        return Check::warn("disk", format!("{} inodes free", found.f_favail), hint);
    }
    match free {
        ..TOO_LITTLE_BYTES => Check::fail("disk", text, hint),
        TOO_LITTLE_BYTES..LITTLE_BYTES => Check::warn("disk", text, hint),
        _ => Check::ok("disk", text),
    }
}

/// Checks for what disks of a limited size are made with.
pub fn limited_disks() -> Check {
    let mut directories = std::env::split_paths(DEFAULT_PATH);
    if !directories.any(|dir| dir.join("mkfs.ext4").is_file()) {
        return Check::fail("limited disks", "mkfs.ext4 is not installed", "install e2fsprogs");
    }
    if !Path::new("/dev/loop-control").exists() {
        return Check::fail("limited disks", "there are no loop devices", "modprobe loop");
    }
    Check::ok("limited disks", "can be made")
}

/// Mounts a root file system of two layers, and changes what is in them as steps do.
pub fn overlay(store: &Store, privilege: Privilege) -> Check {
    let hint = "modprobe overlay, or set store.root to a directory on ext4, xfs or btrfs; without \
                an overlay each container copies its image, which takes seconds";
    let mounted = in_trial(store, |trial| {
        let layers = [trial.join("lower"), trial.join("upper-layer")];
        let dir = trial.join("container");
        for path in layers.iter().chain([&dir]) {
            fs::create_dir(path).at("make the directory", path)?;
        }
        layer::write(&layers, privilege)?;
        let request = rootfs::Request { privilege, ..rootfs::Request::new(&layers, &dir) };
        let rootfs = rootfs::mount(&request)?;
        let changed = match rootfs.backing {
            Backing::Overlay => layer::change(&rootfs.path),
            _ => Ok(()),
        };
        rootfs::unmount(&dir)?;
        changed?;
        Ok(rootfs.backing)
    });
    match mounted {
        Ok(Backing::Copy { reason }) => Check::warn("overlay", reason, hint),
        Ok(_) => Check::ok("overlay", "works, and what layers have can be removed and replaced"),
        Err(error) => Check::fail("overlay", chain(&*error), hint),
    }
}

/// Why a trial did not work.
pub type TrialError = Box<dyn std::error::Error>;

/// Runs a trial in a directory of its own, which is removed afterwards.
pub fn in_trial<T>(
    store: &Store,
    run: impl FnOnce(&Path) -> Result<T, TrialError>,
) -> Result<T, TrialError> {
    let trial = &existing(&store.root).join(format!(".doctor-{:016x}", random_u64()));
    fs::create_dir(trial).at("make the directory", trial)?;
    let mut undo = Rollback::new();
    undo.push(|| {
        for mounted in [trial.join("container/merged"), trial.join("target")] {
            let _ = mount::unmount(&mounted);
        }
        let _ = remove_tree(trial);
    });
    run(trial)
}
