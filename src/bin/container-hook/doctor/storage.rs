//! Where images and containers are: permissions, space, and whether layers can be mounted there.

use std::fs;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use oci_hooks::hooks::trust::{self, TrustOptions};
use oci_hooks::rootfs::{self, Backing};
use oci_hooks::sys::error::chain;
use oci_hooks::sys::fs::{PathContext as _, unpredictable};
use oci_hooks::sys::mount::{self, Depth};
use oci_hooks::sys::rollback::Rollback;
use oci_hooks::sys::userns::Mapping;

use super::Check;
use crate::settings::{Settings, human};

/// Less than this is filled by a few images.
const LITTLE_BYTES: u64 = 10_000_000_000;
/// Less than this is filled by one.
const TOO_LITTLE_BYTES: u64 = 1_000_000_000;

pub(super) fn checks(settings: &Settings) -> Vec<Check> {
    let store = &settings.store;
    let mut checks =
        vec![permissions("store", &store.root), permissions("run directory", &store.run)];
    checks.push(space(&existing(&store.root)));
    if rustix::process::geteuid().is_root() {
        let trial = existing(&store.root).join(format!(".doctor-{:016x}", unpredictable()));
        checks.push(overlay(&trial));
        checks.push(idmap(&trial));
    }
    checks
}

/// Returns the nearest directory above that exists: what is not there yet will be on its disk.
fn existing(path: &Path) -> PathBuf {
    path.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/")).to_owned()
}

fn permissions(name: &'static str, path: &Path) -> Check {
    let there = existing(path);
    let found = if there == path {
        path.display().to_string()
    } else {
        format!("{} will be made", path.display())
    };
    match trust::check_path(&there, &TrustOptions::of_process()) {
        Ok(()) => Check::ok(name, found),
        Err(error) => {
            let mend = error.hint().unwrap_or_else(|| "choose another directory".to_owned());
            Check::fail(name, chain(&error), mend)
        }
    }
}

fn space(path: &Path) -> Check {
    let Ok(found) = rustix::fs::statvfs(path) else {
        return Check::warn("disk", "its free space is not known", "look at it with df");
    };
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    let text = format!("{} free in {}", human(free), path.display());
    let mend = "container-hook prune --size 5GB, or a larger disk for store.root in the settings";
    if found.f_files != 0 && found.f_favail < 100_000 {
        return Check::warn("disk", format!("{} inodes free", found.f_favail), mend);
    }
    match free {
        ..TOO_LITTLE_BYTES => Check::fail("disk", text, mend),
        TOO_LITTLE_BYTES..LITTLE_BYTES => Check::warn("disk", text, mend),
        _ => Check::ok("disk", text),
    }
}

/// Mounts a root file system of two empty layers.
fn overlay(trial: &Path) -> Check {
    let mend = "modprobe overlay, or set store.root to a directory on ext4, xfs or btrfs; without \
                an overlay each container copies its image, which takes seconds";
    let mounted = in_trial(trial, || {
        let layers = [trial.join("lower"), trial.join("upper-layer")];
        let dir = trial.join("container");
        for path in layers.iter().chain([&dir]) {
            fs::create_dir(path).at("make the directory", path)?;
        }
        let rootfs = rootfs::mount(&rootfs::Request::new(&layers, &dir))?;
        rootfs::unmount(&dir)?;
        Ok(rootfs.backing)
    });
    match mounted {
        Ok(Backing::Copy { reason }) => Check::warn("overlay", reason, mend),
        Ok(_) => Check::ok("overlay", "works"),
        Err(error) => Check::fail("overlay", chain(&*error), mend),
    }
}

/// Mounts a directory with its owners mapped, as the runner's directories are in containers.
fn idmap(trial: &Path) -> Check {
    let mounted = in_trial(trial, || {
        let (source, target) = (trial.join("source"), trial.join("target"));
        for path in [&source, &target] {
            fs::create_dir(path).at("make the directory", path)?;
        }
        let namespace = Mapping::one((1000, 1000), (0, 0)).namespace()?;
        mount::idmapped_bind(&source, &target, namespace.as_fd(), Depth::Single)?;
        Ok(mount::unmount(&target)?)
    });
    match mounted {
        Ok(()) => Check::ok("idmapped mounts", "work"),
        Err(error) => Check::warn(
            "idmapped mounts",
            chain(&*error),
            "files that containers make in the runner's directories belong to root; set \
             mounts.ownership = \"keep\" if that is meant, or update the kernel",
        ),
    }
}

type TrialError = Box<dyn std::error::Error>;

/// Does something in a directory that is gone afterwards.
fn in_trial<T>(trial: &Path, run: impl FnOnce() -> Result<T, TrialError>) -> Result<T, TrialError> {
    fs::create_dir(trial).at("make the directory", trial)?;
    let mut undo = Rollback::new();
    undo.push(|| {
        for mounted in [trial.join("container/merged"), trial.join("target")] {
            let _ = mount::unmount(&mounted);
        }
        let _ = fs::remove_dir_all(trial);
    });
    run()
}
