//! Mounting the layers, or copying them.

use std::fs::{self, DirBuilder};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{DirBuilderExt as _, chown};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::sys::detached::{Attributes, Depth, Detached};
use crate::sys::fs::{PathContext, PathError};
use crate::sys::host_file::HostFile;
use crate::sys::mount::{self as sys_mount, Overlay, Upper};
use crate::sys::mount_namespace::within_new;
use crate::sys::netns;
use crate::sys::privilege::Privilege;
use crate::sys::removal::remove_tree;
use crate::sys::rollback::Rollback;
use crate::sys::tree::{self, CopyOptions, OwnerShift, Purpose};
use crate::sys::userns::PrivateIds;

/// A root file system to make.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The unpacked layers, bottom to top.
    pub layers: &'a [PathBuf],
    /// An existing directory of the container's own, in which `merged` and what it needs are made.
    pub dir: &'a Path,
    /// Whether there is no place for changes. Runtimes need one for mount points even if the
    /// container is not to write.
    pub read_only: bool,
    /// The user namespace of the container, if it has one: owners in the layers, from 0 on, are seen as
    /// its ids.
    pub user_namespace: Option<UserNamespace<'a>>,
    /// As what the layers were unpacked.
    pub privilege: Privilege,
}

/// A user namespace in which ids from 0 on are private ids of the host.
#[derive(Clone, Copy, Debug)]
pub struct UserNamespace<'a> {
    pub path: &'a Path,
    pub ids: PrivateIds,
}

impl<'a> Request<'a> {
    /// Returns the request for a root file system that takes changes, of root.
    pub fn new(layers: &'a [PathBuf], dir: &'a Path) -> Self {
        Request { layers, dir, read_only: false, user_namespace: None, privilege: Privilege::Root }
    }
}

/// A root file system.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Rootfs {
    pub path: PathBuf,
    /// What it is made of.
    pub backing: Backing,
}

/// What a root file system is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backing {
    /// The layers themselves, and a directory that takes the changes.
    Overlay,
    /// A copy of the layers, which takes time and space.
    Copy {
        /// Why there is no overlay.
        reason: String,
    },
}

/// Why there is no root file system.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RootfsError {
    /// An image without layers has no files.
    #[error("the image has no layers")]
    NoLayers,
    /// Something cannot be made or mounted.
    #[error(transparent)]
    Path(#[from] PathError),
}

const MERGED: &str = "merged";
const UPPER: &str = "upper";
const WORK: &str = "work";
const MAPPED: &str = "mapped";
const EMPTY: &str = "empty";

/// Makes a root file system of layers.
///
/// It is made once: where one is already, that is an error.
pub fn mount(request: &Request<'_>) -> Result<Rootfs, RootfsError> {
    if request.layers.is_empty() {
        return Err(RootfsError::NoLayers);
    }
    let merged = request.dir.join(MERGED);
    let mut undo = Rollback::new();
    make_dir(&merged, &mut undo)?;
    let backing = match mount_overlay(request, &merged) {
        Ok(()) => Backing::Overlay,
        Err(error) if has_no_overlay(&error) => {
            let reason = reason(&error, request.privilege);
            undo.push(|| drop(remove_tree(&merged)));
            for layer in request.layers {
                let shift =
                    |ids: PrivateIds| OwnerShift { from: 0, to: ids.first, count: ids.count };
                let owners = request.user_namespace.map(|users| shift(users.ids));
                tree::copy(layer, &merged, CopyOptions { purpose: Purpose::Layer, owners })?;
            }
            Backing::Copy { reason }
        }
        Err(error) => return Err(error.into()),
    };
    undo.disarm();
    Ok(Rootfs { path: merged, backing })
}

/// Takes the root file system in a directory away, if there is one.
///
/// What it was made of stays in the directory, which can then be removed.
pub fn unmount(dir: &Path) -> Result<(), RootfsError> {
    Ok(sys_mount::unmount(&dir.join(MERGED))?)
}

/// Returns whether overlays are unavailable here: no such file system, no permission, or directories
/// that are on an overlay themselves.
fn has_no_overlay(error: &PathError) -> bool {
    let reasons = [Errno::NODEV, Errno::PERM, Errno::INVAL, Errno::NOSYS, Errno::TOOBIG];
    reasons.iter().any(|reason| error.source.raw_os_error() == Some(reason.raw_os_error()))
}

/// Says why there is no overlay; the kernel's own words for most of it are "invalid argument".
fn reason(error: &PathError, privilege: Privilege) -> String {
    match error.source.raw_os_error() {
        Some(NODEV) => "this kernel has no overlay file system".to_owned(),
        Some(TOOBIG) => "this kernel cannot lay so many layers over each other".to_owned(),
        Some(INVAL | PERM) if privilege != Privilege::Root => "this kernel has no overlays for ordinary users \
             (Linux before 5.11), or cannot lay one over the file systems that hold the layers and the \
             container's files, as over an overlay or NFS"
            .to_owned(),
        Some(INVAL) => "this kernel cannot lay one over the file systems that hold the layers and \
             the container's files, as when they are an overlay themselves"
            .to_owned(),
        _ => error.source.to_string(),
    }
}

const NODEV: i32 = Errno::NODEV.raw_os_error();
const TOOBIG: i32 = Errno::TOOBIG.raw_os_error();
const PERM: i32 = Errno::PERM.raw_os_error();
const INVAL: i32 = Errno::INVAL.raw_os_error();

fn mount_overlay(request: &Request<'_>, merged: &Path) -> Result<(), PathError> {
    let [upper, work] = [UPPER, WORK].map(|name| request.dir.join(name));
    let mut undo = Rollback::new();
    let upper = if request.read_only {
        None
    } else {
        for dir in [&upper, &work] {
            make_dir(dir, &mut undo)?;
            // The kernel leaves directories of its own in these.
            undo.push(move || drop(remove_tree(dir)));
        }
        if let Some(UserNamespace { ids: PrivateIds { first, .. }, .. }) = request.user_namespace {
            chown(&upper, Some(first), Some(first)).at("change the owner of", &upper)?;
        }
        Some(Upper { dir: &upper, work: &work })
    };
    let mut lowers = without_repetitions(request.layers);
    if upper.is_none() && lowers.len() == 1 {
        // The kernel wants two where nothing takes changes.
        let empty = request.dir.join(EMPTY);
        make_dir(&empty, &mut undo)?;
        lowers.insert(0, empty);
    }
    let attributes = request.privilege.overlay_attributes();
    match request.user_namespace {
        None => Overlay { lowers: &lowers, upper, attributes }.mount(merged)?,
        Some(users) => {
            let dir = request.dir.join(MAPPED);
            make_dir(&dir, &mut undo)?;
            let overlay = within_new(|| {
                let lowers = map_layers(&lowers, users, &dir)?;
                Overlay { lowers: &lowers, upper, attributes }.make(merged)
            })?;
            sys_mount::attach_overlay(overlay.as_fd(), merged)?;
        }
    }
    undo.disarm();
    Ok(())
}

/// Returns layers without those that come again above: the kernel takes each directory once (`ELOOP`). What the upper
/// one has and hides, the lower one would have and hide too. Steps of a build that change nothing make equal layers.
fn without_repetitions(layers: &[PathBuf]) -> Vec<PathBuf> {
    let is_last = |(at, layer): &(usize, &PathBuf)| !layers[at + 1..].contains(layer);
    layers.iter().enumerate().filter(is_last).map(|(_, layer)| layer.clone()).collect()
}

/// Mounts each layer in the directory with its owners mapped: the overlay has copies of its own of
/// these mounts, so they are made where nobody else sees them.
fn map_layers(
    layers: &[PathBuf],
    users: UserNamespace<'_>,
    dir: &Path,
) -> Result<Vec<PathBuf>, PathError> {
    let namespace = netns::open(users.path)?;
    sys_mount::memory(dir, 0o700, None)?;
    let mut lowers = Vec::with_capacity(layers.len());
    for (at, layer) in layers.iter().enumerate() {
        let target = dir.join(at.to_string());
        fs::create_dir(&target).at("create", &target)?;
        let layer = Detached::copy_of(&HostFile::open_trusted(layer)?, Depth::Single)?;
        layer.set(&Attributes { owners: Some(namespace.as_fd()), ..Attributes::default() })?;
        layer.attach(&target)?;
        lowers.push(target);
    }
    Ok(lowers)
}

fn make_dir(path: &Path, undo: &mut Rollback<'_>) -> Result<(), PathError> {
    // Every user of the container may be in it: this is its `/`.
    DirBuilder::new().mode(0o755).create(path).at("create", path)?;
    let path = path.to_owned();
    undo.push(move || drop(fs::remove_dir(path)));
    Ok(())
}
