//! The stage of a container: a mount namespace in which the runtime finds all mount sources.
//!
//! All sources are opened beforehand and mounted by descriptor. The configuration names only paths on the
//! stage, which no user can change. Nested mounts, such as `/__w/_temp` in `/__w`, are assembled on the stage
//! too: the outer mount may be full of symlinks by then, which the runtime would follow.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use oci_hooks_files::fs::{PathContext as _, PathError, create_if_missing};
use oci_hooks_host::detached::{DetachedMount, MountDepth};
use oci_hooks_host::host_file::HostFile;
use oci_hooks_host::mount::{self, MountNamespace};
use oci_hooks_host::userns::OwnerIds;
use oci_spec::runtime::LinuxDeviceType;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::io::Errno;

use super::BundleError;
use super::devices::DeviceNode;
use super::sources::{ContainerIds, DetachedMounts, PreparedSource};

/// Directory of the mounts on the stage, beside the root file system.
const MOUNTS: &str = "mounts";

#[derive(Debug)]
struct StageItem {
    target: PathBuf,
    source: PreparedSource,
    place: StagePlace,
    /// Index of the item whose mount contains this one, if any.
    above: Option<usize>,
}

/// Location of a mount on the stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StagePlace {
    /// At a path of its own, from which the runtime mounts it.
    Own,
    /// Already mounted in the root file system.
    Rootfs,
    /// Already mounted in the mount that contains it.
    Above,
}

/// Mounts to assemble in the mount namespace of a container, from which the runtime takes all mount sources;
/// `make` creates the namespace.
#[derive(Debug)]
pub struct MountStage {
    /// Mount point of the stage, which hides all other files of that directory.
    root: PathBuf,
    rootfs: PathBuf,
    items: Vec<StageItem>,
}

impl MountStage {
    /// Creates an empty stage for a root file system below the directory `root`.
    pub(super) fn new(root: &Path, rootfs: &Path) -> Self {
        MountStage { root: root.to_owned(), rootfs: rootfs.to_owned(), items: Vec::new() }
    }

    /// Returns whether a mount on the stage contains a path of the container.
    pub(super) fn is_above(&self, target: &Path) -> bool {
        self.parent_index(target).is_some()
    }

    fn parent_index(&self, target: &Path) -> Option<usize> {
        let is_above = |item: &StageItem| item.target != target && target.starts_with(&item.target);
        let above = self.items.iter().enumerate().filter(|(_, item)| is_above(item));
        above.max_by_key(|(_, item)| item.target.components().count()).map(|(at, _)| at)
    }

    /// Adds a mount, after all mounts that contain it, and returns the path where the runtime finds
    /// it.
    pub(super) fn add(
        &mut self,
        target: PathBuf,
        source: PreparedSource,
        place: StagePlace,
    ) -> PathBuf {
        let above = self.parent_index(&target);
        let path = self.path(self.items.len());
        self.items.push(StageItem { target, source, place, above });
        path
    }

    fn path(&self, at: usize) -> PathBuf {
        self.rootfs.with_file_name(MOUNTS).join(at.to_string())
    }

    /// Checks that every user of the host can reach the stage, since root of a user namespace may be any user.
    pub(super) fn check_reachable(&self) -> Result<(), BundleError> {
        for above in self.root.ancestors().skip(1) {
            let mode = fs::metadata(above).with_path("inspect", above)?.permissions().mode();
            if mode & 0o001 == 0 {
                let (path, above) = (self.root.clone(), above.to_owned());
                return Err(BundleError::Unreachable { path, above });
            }
        }
        Ok(())
    }

    /// Creates the stage: a mount namespace with all mounts. Also returns warnings.
    pub(super) fn make(
        &self,
        ids: ContainerIds<'_>,
    ) -> Result<(MountNamespace, Vec<String>), BundleError> {
        let rootfs =
            DetachedMount::copy_of(&HostFile::open_trusted(&self.rootfs)?, MountDepth::Recursive)?;
        let mut trees = DetachedMounts::new(ids);
        let made = self.items.iter().map(|item| match &item.source {
            PreparedSource::File(source) => trees.mount_file(source).map(Some),
            PreparedSource::Memory { words, .. } => Ok(Some(DetachedMount::new_tmpfs(words)?)),
            PreparedSource::Node { .. } | PreparedSource::Program(_) => Ok(None),
        });
        let made: Vec<_> = made.collect::<Result<_, _>>()?;
        let namespace = MountNamespace::new::<BundleError>(|| {
            mount::mount_tmpfs(&self.root, 0o711, None)?;
            for dir in [&self.rootfs, &self.rootfs.with_file_name(MOUNTS)] {
                self.make_dirs(dir)?;
            }
            rootfs.attach(&self.rootfs)?;
            let mut there: Vec<DetachedMount> = Vec::with_capacity(made.len());
            for ((at, item), tree) in self.items.iter().enumerate().zip(made) {
                let path = self.path(at);
                let tree = match tree {
                    Some(tree) => tree,
                    None => make_tree(&path, item)?,
                };
                match (item.place, item.above) {
                    (StagePlace::Above, Some(above)) => {
                        self.mount_into(&tree, item, &self.items[above], &there[above])?;
                    }
                    (StagePlace::Rootfs, _) => {
                        let relative = item.target.strip_prefix("/").unwrap_or(&item.target);
                        let owner = ids.root();
                        let made = rootfs.make_mount_point(relative, tree.is_dir(), Some(owner));
                        made.with_path("create the mount point", &item.target)?;
                        tree.attach_beneath(&rootfs, relative)?;
                    }
                    _ if matches!(
                        item.source,
                        PreparedSource::Node { .. } | PreparedSource::Program(_)
                    ) => {}
                    _ => mount_tree(&tree, &path)?,
                }
                there.push(tree);
            }
            Ok(())
        });
        Ok((namespace?, trees.warnings))
    }

    /// Creates a directory on the stage, and its parents, searchable by all users.
    fn make_dirs(&self, path: &Path) -> Result<(), PathError> {
        let below = path.strip_prefix(&self.root).unwrap_or(path);
        let mut so_far = self.root.clone();
        for name in below {
            so_far.push(name);
            if !create_if_missing(&so_far, 0o711)? {
                continue;
            }
            let mode = Permissions::from_mode(0o711);
            fs::set_permissions(&so_far, mode).with_path("change the mode of", &so_far)?;
        }
        Ok(())
    }

    /// Mounts a tree into another mount of the stage.
    fn mount_into(
        &self,
        tree: &DetachedMount,
        item: &StageItem,
        above: &StageItem,
        under: &DetachedMount,
    ) -> Result<(), BundleError> {
        let relative = item.target.strip_prefix(&above.target).expect("it is above");
        let make = || under.make_mount_point(relative, tree.is_dir(), None);
        let made = match above.source.maker() {
            Some(maker) => maker.run_as_user(make).and_then(|made| made),
            None => make(),
        };
        let made = made.with_path("create the mount point", &item.target);
        let attached = made.and_then(|()| tree.attach_beneath(under, relative));
        attached.map_err(|error| match Errno::from_io_error(&error.source) {
            Some(Errno::LOOP) => BundleError::MountThroughLink {
                path: item.target.clone(),
                above: above.target.clone(),
            },
            _ => error.into(),
        })
    }
}

/// Mounts a tree at its own path on the stage.
fn mount_tree(tree: &DetachedMount, path: &Path) -> Result<(), PathError> {
    if tree.is_dir() {
        fs::create_dir(path).with_path("create the directory", path)?;
    } else {
        File::create_new(path).with_path("create", path)?;
    }
    tree.attach(path)
}

/// Creates a device or copies a program at its path on the stage, and returns it as a mount.
fn make_tree(path: &Path, item: &StageItem) -> Result<DetachedMount, BundleError> {
    match &item.source {
        PreparedSource::Node { node, owner } => make_node(path, node, *owner)?,
        PreparedSource::Program(file) => copy_program(file, path)?,
        PreparedSource::File(_) | PreparedSource::Memory { .. } => {
            unreachable!("these have a mount")
        }
    }
    Ok(DetachedMount::copy_of(&HostFile::open_trusted(path)?, MountDepth::Single)?)
}

fn copy_program(from: &HostFile, path: &Path) -> Result<(), PathError> {
    let mut program = from.reopen()?;
    let mut copy = File::create_new(path).with_path("create", path)?;
    io::copy(&mut program, &mut copy).with_path("write", path)?;
    fs::set_permissions(path, Permissions::from_mode(0o555)).with_path("change the mode of", path)
}

fn make_node(path: &Path, node: &DeviceNode, (uid, gid): OwnerIds) -> Result<(), PathError> {
    let kind = match node.kind {
        LinuxDeviceType::B => FileType::BlockDevice,
        LinuxDeviceType::P => FileType::Fifo,
        _ => FileType::CharacterDevice,
    };
    let mode = Mode::from_raw_mode(node.mode);
    mknodat(CWD, path, kind, mode, makedev(node.major, node.minor))
        .with_path("make the device", path)?;
    chown(path, Some(uid), Some(gid)).with_path("set the owner of", path)?;
    fs::set_permissions(path, Permissions::from_mode(node.mode))
        .with_path("change the mode of", path)
}
