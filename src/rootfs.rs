//! Root file systems: the layers of an image put together, with a place for changes.
//!
//! [`mount()`] lays an overlay over the layers. Where the kernel has none to give, the layers are
//! copied, and [`Backing::Copy`] says why. Either way the root file system is `merged` in a directory
//! of the container's own; [`unmount()`] takes it away again, however often. A [`Stack`] looks into
//! layers that are not mounted.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{DirBuilderExt as _, chown};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, readlinkat, statat};
use rustix::io::Errno;

use crate::sys::beneath::Beneath;
use crate::sys::detached::{Attributes, Depth, Detached};
use crate::sys::fs::{PathContext as _, PathError};
use crate::sys::host_file::HostFile;
use crate::sys::mount::{Overlay, Upper, within_new};
use crate::sys::privilege::Privilege;
use crate::sys::removal::remove_tree;
use crate::sys::rollback::Rollback;
use crate::sys::tree::{self, CopyOptions, OwnerShift, Purpose};
use crate::sys::userns::PrivateIds;
use crate::sys::{mount as sys_mount, netns};

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

/// Symbolic links on the way of one path, as many as the kernel follows.
const MAX_LINKS: usize = 40;

/// Unpacked layers, seen as the root file system they make together.
///
/// Layers come from strangers, and nobody changes them any more. Symbolic links lead to where they
/// would lead in a container: nowhere outside.
#[derive(Clone, Copy, Debug)]
pub struct Stack<'a> {
    layers: &'a [PathBuf],
}

/// Something in layers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Found {
    /// What it is; never a symbolic link.
    pub kind: FileType,
    /// The bits of its mode.
    pub mode: u32,
    /// Where it is in the root file system, without symbolic links.
    pub path: PathBuf,
    /// The layer it is in, for a directory the topmost one.
    layer: PathBuf,
}

/// A directory that may be in several layers.
struct Directory {
    /// The layers that have a part of it, the topmost first.
    parts: Vec<usize>,
}

/// What has a name in a directory.
enum Entry {
    Nothing,
    Directory(Directory),
    Symlink(OsString),
    Other(usize, Stat),
}

impl<'a> Stack<'a> {
    /// Returns the view of unpacked layers, bottom to top.
    pub fn new(layers: &'a [PathBuf]) -> Self {
        Stack { layers }
    }

    /// Returns what a path leads to, if it leads to anything.
    pub fn find(&self, path: &Path) -> Result<Option<Found>, PathError> {
        let root = Directory { parts: (0..self.layers.len()).rev().collect() };
        let (mut here, mut above) = (PathBuf::new(), vec![root]);
        let mut left: VecDeque<OsString> = names(path);
        let mut links = 0;
        while let Some(name) = left.pop_front() {
            if name == OsStr::new("..") {
                if here.pop() {
                    above.pop();
                }
                continue;
            }
            let directory = above.last().expect("the root is never left");
            let path = here.join(&name);
            match self.entry(directory, &path)? {
                Entry::Nothing => return Ok(None),
                Entry::Directory(directory) => {
                    above.push(directory);
                    here = path;
                }
                Entry::Symlink(target) => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Ok(None);
                    }
                    let target = Path::new(&target);
                    if target.is_absolute() {
                        above.truncate(1);
                        here.clear();
                    }
                    for name in names(target).into_iter().rev() {
                        left.push_front(name);
                    }
                }
                Entry::Other(layer, stat) => {
                    return Ok(left.is_empty().then(|| self.found(layer, &stat, path)));
                }
            }
        }
        let directory = above.last().expect("the root is never left");
        let Some(&layer) = directory.parts.first() else { return Ok(None) };
        let on_host = self.layers[layer].join(&here);
        let stat = statat(CWD, &on_host, AtFlags::SYMLINK_NOFOLLOW).at("look at", &on_host)?;
        Ok(Some(self.found(layer, &stat, here)))
    }

    /// Returns whether a path leads to a file that may be executed.
    pub fn has_program(&self, path: &Path) -> Result<bool, PathError> {
        let found = self.find(path)?;
        let is_program =
            |found: Found| found.kind == FileType::RegularFile && found.mode & 0o111 != 0;
        Ok(found.is_some_and(is_program))
    }

    /// Reads a file of at most so many bytes; none if there is none.
    pub fn read(&self, path: &Path, limit_bytes: u64) -> Result<Option<Vec<u8>>, PathError> {
        let Some(found) = self.find(path)? else { return Ok(None) };
        let on_host = found.layer.join(found.path.strip_prefix("/").unwrap_or(&found.path));
        let invalid = |what| PathError::new("read", &on_host, io::Error::other(what));
        if found.kind != FileType::RegularFile {
            return Err(invalid("not a regular file"));
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = Beneath::new(&found.layer)?.open(&found.path, flags, Mode::empty())?;
        let mut bytes = Vec::new();
        let limit = limit_bytes.saturating_add(1);
        File::from(file).take(limit).read_to_end(&mut bytes).at("read", &on_host)?;
        if bytes.len() as u64 > limit_bytes {
            return Err(invalid("too large"));
        }
        Ok(Some(bytes))
    }

    fn found(&self, layer: usize, stat: &Stat, path: PathBuf) -> Found {
        Found {
            kind: FileType::from_raw_mode(stat.st_mode),
            mode: stat.st_mode & 0o7777,
            path: Path::new("/").join(path),
            layer: self.layers[layer].clone(),
        }
    }

    /// Looks for a path, relative to the root, whose directory is known to be one.
    fn entry(&self, directory: &Directory, path: &Path) -> Result<Entry, PathError> {
        let mut parts = Vec::new();
        for &layer in &directory.parts {
            let on_host = self.layers[layer].join(path);
            let stat = match statat(CWD, &on_host, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT | Errno::NAMETOOLONG) => continue,
                stat => stat.at("look at", &on_host)?,
            };
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    parts.push(layer);
                    if is_opaque(&self.layers[layer], path)? {
                        break;
                    }
                }
                // Whatever it is, what is below a directory does not show through it.
                _ if !parts.is_empty() => break,
                FileType::CharacterDevice if stat.st_rdev == 0 => break,
                FileType::Symlink => {
                    let target = readlinkat(CWD, &on_host, Vec::new()).at("read", &on_host)?;
                    return Ok(Entry::Symlink(OsString::from_vec(target.into_bytes())));
                }
                _ => return Ok(Entry::Other(layer, stat)),
            }
        }
        Ok(if parts.is_empty() { Entry::Nothing } else { Entry::Directory(Directory { parts }) })
    }
}

fn is_opaque(layer: &Path, path: &Path) -> Result<bool, PathError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let directory = Beneath::new(layer)?.open(path, flags, Mode::empty())?;
    Ok(tree::is_opaque(directory.as_fd()))
}

/// Returns the names a path consists of, `..` among them.
fn names(path: &Path) -> VecDeque<OsString> {
    let parts = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    struct Layers {
        _dir: tempfile::TempDir,
        paths: Vec<PathBuf>,
    }

    impl Layers {
        fn new(count: usize) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let paths: Vec<_> = (0..count).map(|at| dir.path().join(at.to_string())).collect();
            paths.iter().for_each(|path| fs::create_dir(path).unwrap());
            Layers { _dir: dir, paths }
        }

        fn file(&self, layer: usize, path: &str, content: &str) {
            let path = self.paths[layer].join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }

        fn read(&self, path: &str) -> Option<String> {
            let bytes = Stack::new(&self.paths).read(Path::new(path), 100).unwrap();
            bytes.map(|bytes| String::from_utf8(bytes).unwrap())
        }
    }

    #[test]
    fn the_upper_of_two_files_is_seen_and_directories_are_merged() {
        let layers = Layers::new(2);
        layers.file(0, "etc/passwd", "old");
        layers.file(0, "etc/group", "group");
        layers.file(1, "etc/passwd", "new");
        assert_eq!(layers.read("/etc/passwd").as_deref(), Some("new"));
        assert_eq!(layers.read("etc/group").as_deref(), Some("group"));
        assert_eq!(layers.read("/etc/shadow"), None);
        assert_eq!(layers.read("/etc/passwd/x"), None);
        let found = Stack::new(&layers.paths).find(Path::new("/etc/")).unwrap().unwrap();
        assert_eq!((found.kind, found.path), (FileType::Directory, PathBuf::from("/etc")));
    }

    #[test]
    fn a_file_hides_a_directory_and_a_directory_does_not_show_what_a_file_hid() {
        let layers = Layers::new(3);
        layers.file(0, "a/b", "bottom");
        layers.file(1, "a", "file");
        layers.file(2, "a/c", "top");
        assert_eq!(layers.read("/a/b"), None);
        assert_eq!(layers.read("/a/c").as_deref(), Some("top"));
        let lower = Stack::new(&layers.paths[..2]);
        assert_eq!(lower.read(Path::new("/a"), 100).unwrap().unwrap(), b"file");
    }

    #[test]
    fn links_lead_to_files_of_the_layers_only() {
        let layers = Layers::new(2);
        layers.file(0, "real/file", "inside");
        let link = |target: &str, name: &str| symlink(target, layers.paths[1].join(name)).unwrap();
        link("/real", "absolute");
        link("../../../real/file", "up");
        link("absolute/../absolute/file", "many");
        link("/etc/hostname", "out");
        link("loop", "loop");
        for path in ["/absolute/file", "/up", "/many", "/absolute/../../real/./file"] {
            assert_eq!(layers.read(path).as_deref(), Some("inside"), "{path}");
        }
        for path in ["/out", "/loop", "/absolute/none", "/real/file/.."] {
            assert_eq!(layers.read(path), None, "{path}");
        }
        let found = Stack::new(&layers.paths).find(Path::new("/absolute/file")).unwrap().unwrap();
        assert_eq!(found.path, Path::new("/real/file"));
    }

    #[test]
    fn what_is_no_file_or_too_large_is_not_read() {
        let layers = Layers::new(1);
        layers.file(0, "dir/large", &"x".repeat(101));
        rustix::fs::mkfifoat(CWD, layers.paths[0].join("fifo"), Mode::RWXU).unwrap();
        let stack = Stack::new(&layers.paths);
        for path in ["/dir", "/dir/large", "/fifo", "/"] {
            stack.read(Path::new(path), 100).unwrap_err();
        }
    }

    #[test]
    fn a_program_is_a_file_that_may_be_executed() {
        let layers = Layers::new(1);
        layers.file(0, "run", "");
        let stack = Stack::new(&layers.paths);
        assert!(!stack.has_program(Path::new("/run")).unwrap());
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(layers.paths[0].join("run"), mode).unwrap();
        assert!(stack.has_program(Path::new("/run")).unwrap());
        assert!(!stack.has_program(Path::new("/")).unwrap());
    }
}
