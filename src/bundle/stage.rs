//! The stage of a container: a mount namespace in which its runtime finds all that is mounted.
//!
//! Everything on it was opened before and is mounted by descriptor. The configuration names only
//! places on the stage, which nobody can change. What is mounted into something else that is mounted,
//! as `/__w/_temp` in `/__w`, is put there on the stage too: the one that is above may be full of
//! symbolic links by then, and the runtime would follow them.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use oci_spec::runtime::LinuxDeviceType;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::io::Errno;

use super::BundleError;
use super::devices::Node;
use super::sources::{ContainerIds, Source, Trees};
use crate::sys::detached::{Depth, Detached};
use crate::sys::fs::{PathContext as _, PathError};
use crate::sys::host_file::HostFile;
use crate::sys::mount::{self, MountNamespace};
use crate::sys::userns::Ids;

/// Where mounts are on the stage, beside the root file system.
const MOUNTS: &str = "mounts";

#[derive(Debug)]
struct Item {
    /// Where it is in the container.
    target: PathBuf,
    source: Source,
    place: Place,
    /// What it is mounted into, if that is on the stage too.
    above: Option<usize>,
}

/// Where something is mounted on the stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At a place of its own, from which the runtime mounts it.
    Own,
    /// In the root file system.
    Rootfs,
    /// In what is mounted above it.
    Above,
}

/// What is to be on the stage.
#[derive(Debug)]
pub struct Stage {
    /// Where it is made: nothing else of that directory is seen there.
    root: PathBuf,
    rootfs: PathBuf,
    items: Vec<Item>,
}

impl Stage {
    /// Returns an empty one for a root file system, which is below a directory.
    pub(super) fn new(root: &Path, rootfs: &Path) -> Self {
        Stage { root: root.to_owned(), rootfs: rootfs.to_owned(), items: Vec::new() }
    }

    /// Returns whether something on the stage is mounted above a path of the container.
    pub(super) fn is_above(&self, target: &Path) -> bool {
        self.above(target).is_some()
    }

    fn above(&self, target: &Path) -> Option<usize> {
        let is_above = |item: &Item| item.target != target && target.starts_with(&item.target);
        let above = self.items.iter().enumerate().filter(|(_, item)| is_above(item));
        above.max_by_key(|(_, item)| item.target.components().count()).map(|(at, _)| at)
    }

    /// Adds something, after all that is mounted above it; returns where the runtime finds it.
    pub(super) fn add(&mut self, target: PathBuf, source: Source, place: Place) -> PathBuf {
        let above = self.above(&target);
        let path = self.path(self.items.len());
        self.items.push(Item { target, source, place, above });
        path
    }

    fn path(&self, at: usize) -> PathBuf {
        self.rootfs.with_file_name(MOUNTS).join(at.to_string())
    }

    /// Checks that every user of the host can get to the stage: root of a user namespace is any user.
    pub(super) fn check_reachable(&self) -> Result<(), BundleError> {
        for above in self.root.ancestors().skip(1) {
            let mode = fs::metadata(above).at("look at", above)?.permissions().mode();
            if mode & 0o001 == 0 {
                let (path, above) = (self.root.clone(), above.to_owned());
                return Err(BundleError::Unreachable { path, above });
            }
        }
        Ok(())
    }

    /// Makes the stage; returns warnings too.
    pub(super) fn make(
        &self,
        ids: ContainerIds<'_>,
    ) -> Result<(MountNamespace, Vec<String>), BundleError> {
        let rootfs = Detached::copy_of(&HostFile::open_trusted(&self.rootfs)?, Depth::Recursive)?;
        let mut trees = Trees::new(ids);
        let made = self.items.iter().map(|item| match &item.source {
            Source::File(source) => trees.of_file(source).map(Some),
            Source::Memory { words, .. } => Ok(Some(Detached::memory(words)?)),
            Source::Node { .. } | Source::Program(_) => Ok(None),
        });
        let made: Vec<_> = made.collect::<Result<_, _>>()?;
        let namespace = MountNamespace::new::<BundleError>(|| {
            mount::memory(&self.root, 0o711, None)?;
            for dir in [&self.rootfs, &self.rootfs.with_file_name(MOUNTS)] {
                self.make_dirs(dir)?;
            }
            rootfs.attach(&self.rootfs)?;
            let mut there: Vec<Detached> = Vec::with_capacity(made.len());
            for ((at, item), tree) in self.items.iter().enumerate().zip(made) {
                let path = self.path(at);
                let tree = match tree {
                    Some(tree) => tree,
                    None => made_tree(&path, item)?,
                };
                match (item.place, item.above) {
                    (Place::Above, Some(above)) => {
                        self.put_into(&tree, item, &self.items[above], &there[above])?;
                    }
                    (Place::Rootfs, _) => {
                        let relative = item.target.strip_prefix("/").unwrap_or(&item.target);
                        let owner = ids.root();
                        let made = rootfs.make_mount_point(relative, tree.is_dir(), Some(owner));
                        made.at("make a place to mount on at", &item.target)?;
                        tree.attach_beneath(&rootfs, relative)?;
                    }
                    _ if matches!(item.source, Source::Node { .. } | Source::Program(_)) => {}
                    _ => put(&tree, &path)?,
                }
                there.push(tree);
            }
            Ok(())
        });
        Ok((namespace?, trees.warnings))
    }

    /// Makes a directory on the stage, and those above it, for anybody to pass through.
    fn make_dirs(&self, path: &Path) -> Result<(), PathError> {
        let below = path.strip_prefix(&self.root).unwrap_or(path);
        let mut so_far = self.root.clone();
        for name in below {
            so_far.push(name);
            match DirBuilder::new().mode(0o711).create(&so_far) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                made => made.at("make the directory", &so_far)?,
            }
            let mode = Permissions::from_mode(0o711);
            fs::set_permissions(&so_far, mode).at("change the mode of", &so_far)?;
        }
        Ok(())
    }

    /// Mounts something into something else of the stage.
    fn put_into(
        &self,
        tree: &Detached,
        item: &Item,
        above: &Item,
        under: &Detached,
    ) -> Result<(), BundleError> {
        let relative = item.target.strip_prefix(&above.target).expect("it is above");
        let make = || under.make_mount_point(relative, tree.is_dir(), None);
        let made = match above.source.maker() {
            Some(maker) => maker.act(make).and_then(|made| made),
            None => make(),
        };
        let made = made.at("make a place to mount on at", &item.target);
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

/// Mounts something at its own place on the stage.
fn put(tree: &Detached, path: &Path) -> Result<(), PathError> {
    if tree.is_dir() {
        fs::create_dir(path).at("make the directory", path)?;
    } else {
        File::create_new(path).at("make", path)?;
    }
    tree.attach(path)
}

/// Makes a device or a program at its place on the stage, and returns it as a mount.
fn made_tree(path: &Path, item: &Item) -> Result<Detached, BundleError> {
    match &item.source {
        Source::Node { node, owner } => make_node(path, node, *owner)?,
        Source::Program(file) => copy_program(file, path)?,
        Source::File(_) | Source::Memory { .. } => unreachable!("these have a mount"),
    }
    Ok(Detached::copy_of(&HostFile::open_trusted(path)?, Depth::Single)?)
}

fn copy_program(from: &HostFile, path: &Path) -> Result<(), PathError> {
    let mut program = from.reopen()?;
    let mut copy = File::create_new(path).at("make", path)?;
    io::copy(&mut program, &mut copy).at("write", path)?;
    fs::set_permissions(path, Permissions::from_mode(0o555)).at("change the mode of", path)
}

fn make_node(path: &Path, node: &Node, (uid, gid): Ids) -> Result<(), PathError> {
    let kind = if node.kind == LinuxDeviceType::B {
        FileType::BlockDevice
    } else {
        FileType::CharacterDevice
    };
    let mode = Mode::from_raw_mode(node.mode);
    mknodat(CWD, path, kind, mode, makedev(node.major, node.minor)).at("make the device", path)?;
    chown(path, Some(uid), Some(gid)).at("set the owner of", path)?;
    fs::set_permissions(path, Permissions::from_mode(node.mode)).at("change the mode of", path)
}
