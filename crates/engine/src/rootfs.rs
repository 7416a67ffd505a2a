//! Root file systems: the layers of an image, with a directory for changes.
//!
//! [`mount()`] mounts an overlay of the layers. If the kernel cannot, the layers are copied, and
//! [`RootfsBacking::Copy`] has the reason. Either way the root file system is `merged` in a directory of the
//! container; [`unmount()`] removes it, and may be called repeatedly. A [`LayerStack`] reads layers that are not
//! mounted.

mod overlay;

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{DirBuilderExt as _, chown};
use std::path::{Component, Path, PathBuf};

use oci_hooks_files::beneath::ConfinedRoot;
use oci_hooks_files::fs::{MAX_SYMLINKS, PathContext as _, PathError, READ_FLAGS};
use oci_hooks_files::rollback::Rollback;
use oci_hooks_host::detached::{DetachedMount, MountAttributes, MountDepth};
use oci_hooks_host::host_file::HostFile;
use oci_hooks_host::mount::run_in_new_namespace;
use oci_hooks_host::privilege::Privilege;
use oci_hooks_host::removal::remove_tree;
use oci_hooks_host::tree::{self, CopyOptions, CopyPurpose, OwnerShift};
use oci_hooks_host::userns::PrivateIds;
use oci_hooks_host::{mount as sys_mount, netns};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, readlinkat, statat};
use rustix::io::Errno;

use overlay::{OverlayMount, UpperLayer, attach_overlay};

/// A root file system to make.
#[derive(Clone, Copy, Debug)]
pub struct RootfsRequest<'a> {
    /// The unpacked layers, bottom to top.
    pub layers: &'a [PathBuf],
    /// Existing directory of the container, in which `merged` and auxiliary directories are created.
    pub dir: &'a Path,
    /// If set, there is no directory for changes. Runtimes need one for mount points even if the container
    /// must not write.
    pub read_only: bool,
    /// User namespace of the container, if any: owners in the layers, from 0 on, appear as its ids.
    pub user_namespace: Option<UserNamespace<'a>>,
    /// Privileges with which the layers were unpacked.
    pub privilege: Privilege,
}

/// A user namespace that maps ids from 0 on to private ids of the host.
#[derive(Clone, Copy, Debug)]
pub struct UserNamespace<'a> {
    pub path: &'a Path,
    pub ids: PrivateIds,
}

impl<'a> RootfsRequest<'a> {
    /// Creates the request for a writable root file system of root.
    pub fn new(layers: &'a [PathBuf], dir: &'a Path) -> Self {
        RootfsRequest {
            layers,
            dir,
            read_only: false,
            user_namespace: None,
            privilege: Privilege::Root,
        }
    }
}

/// A mounted or copied root file system.
#[derive(Clone, Debug)]
pub struct Rootfs {
    pub path: PathBuf,
    pub backing: RootfsBacking,
}

/// Implementation of a root file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootfsBacking {
    /// An overlay mount of the layers and a directory for changes.
    Overlay,
    /// A copy of the layers, which takes time and space.
    Copy {
        /// Reason for the missing overlay.
        reason: String,
    },
}

/// Errors of making a root file system.
#[derive(Debug, thiserror::Error)]
pub enum RootfsError {
    /// The image has no layers, and so no files.
    #[error("the image has no layers, and so no files: use another image")]
    NoLayers,
    /// A file or directory cannot be created or mounted.
    #[error(transparent)]
    Path(#[from] PathError),
}

const MERGED: &str = "merged";
const UPPER: &str = "upper";
const WORK: &str = "work";
const MAPPED: &str = "mapped";
const EMPTY: &str = "empty";

/// Makes a root file system from layers.
///
/// Fails if the root file system already exists.
pub fn mount(request: &RootfsRequest<'_>) -> Result<Rootfs, RootfsError> {
    if request.layers.is_empty() {
        return Err(RootfsError::NoLayers);
    }
    let merged = request.dir.join(MERGED);
    let mut undo = Rollback::new();
    make_dir(&merged, &mut undo)?;
    let backing = match mount_overlay(request, &merged) {
        Ok(()) => RootfsBacking::Overlay,
        Err(error) if has_no_overlay(&error) => {
            let reason = reason(&error, request.privilege);
            undo.push(|| drop(remove_tree(&merged)));
            for layer in request.layers {
                let shift =
                    |ids: PrivateIds| OwnerShift { from: 0, to: ids.first, count: ids.count };
                let owners = request.user_namespace.map(|users| shift(users.ids));
                tree::copy(layer, &merged, CopyOptions { purpose: CopyPurpose::Layer, owners })?;
            }
            RootfsBacking::Copy { reason }
        }
        Err(error) => return Err(error.into()),
    };
    undo.disarm();
    Ok(Rootfs { path: merged, backing })
}

/// Unmounts the root file system in a directory, if it is mounted.
///
/// All other files stay in the directory, which can then be removed.
pub fn unmount(dir: &Path) -> Result<(), RootfsError> {
    Ok(sys_mount::unmount(&dir.join(MERGED))?)
}

/// Returns whether overlays are unavailable: the kernel does not support or permit them, or the directories
/// are on an overlay themselves.
fn has_no_overlay(error: &PathError) -> bool {
    let reasons = [Errno::NODEV, Errno::PERM, Errno::INVAL, Errno::NOSYS, Errno::TOOBIG];
    reasons.iter().any(|reason| error.source.raw_os_error() == Some(reason.raw_os_error()))
}

/// Returns the reason for the missing overlay; the kernel mostly reports "invalid argument".
fn reason(error: &PathError, privilege: Privilege) -> String {
    match error.source.raw_os_error() {
        Some(NODEV) => "this kernel has no overlay file system".to_owned(),
        Some(TOOBIG) => "this kernel does not support overlays of so many layers".to_owned(),
        Some(INVAL | PERM) if privilege != Privilege::Root => "this kernel does not permit overlays to ordinary \
             users (Linux before 5.11), or not on the file systems of the layers and the container's files, \
             such as an overlay or NFS"
            .to_owned(),
        Some(INVAL) => "this kernel does not support overlays on the file systems of the layers and \
             the container's files, which may be overlays themselves"
            .to_owned(),
        _ => error.source.to_string(),
    }
}

const NODEV: i32 = Errno::NODEV.raw_os_error();
const TOOBIG: i32 = Errno::TOOBIG.raw_os_error();
const PERM: i32 = Errno::PERM.raw_os_error();
const INVAL: i32 = Errno::INVAL.raw_os_error();

fn mount_overlay(request: &RootfsRequest<'_>, merged: &Path) -> Result<(), PathError> {
    let [upper, work] = [UPPER, WORK].map(|name| request.dir.join(name));
    let mut undo = Rollback::new();
    let upper = if request.read_only {
        None
    } else {
        for dir in [&upper, &work] {
            make_dir(dir, &mut undo)?;
            // The kernel leaves its own directories in these.
            undo.push(move || drop(remove_tree(dir)));
        }
        if let Some(UserNamespace { ids: PrivateIds { first, .. }, .. }) = request.user_namespace {
            chown(&upper, Some(first), Some(first)).with_path("change the owner of", &upper)?;
        }
        Some(UpperLayer { dir: &upper, work: &work })
    };
    let mut lowers = remove_repetitions(request.layers);
    if upper.is_none() && lowers.len() == 1 {
        // Without an upper directory, the kernel requires two lower ones.
        let empty = request.dir.join(EMPTY);
        make_dir(&empty, &mut undo)?;
        lowers.insert(0, empty);
    }
    let attributes = request.privilege.overlay_attributes();
    match request.user_namespace {
        None => OverlayMount { lowers: &lowers, upper, attributes }.mount(merged)?,
        Some(users) => {
            let dir = request.dir.join(MAPPED);
            make_dir(&dir, &mut undo)?;
            let overlay = run_in_new_namespace(|| {
                let lowers = map_layers(&lowers, users, &dir)?;
                OverlayMount { lowers: &lowers, upper, attributes }.make(merged)
            })?;
            attach_overlay(overlay.as_fd(), merged)?;
        }
    }
    undo.disarm();
    Ok(())
}

/// Returns the layers without repetitions, each where it is topmost: the kernel accepts each
/// directory once (`ELOOP`), and the topmost one has and hides the same files as the lower ones.
/// Build steps that change nothing make equal layers.
fn remove_repetitions(layers: &[PathBuf]) -> Vec<PathBuf> {
    let is_last = |(at, layer): &(usize, &PathBuf)| !layers[at + 1..].contains(layer);
    layers.iter().enumerate().filter(is_last).map(|(_, layer)| layer.clone()).collect()
}

/// Mounts each layer below `dir`, with owners mapped to the container's ids. The overlay has its
/// own copies of these mounts, so they are made in a private mount namespace.
fn map_layers(
    layers: &[PathBuf],
    users: UserNamespace<'_>,
    dir: &Path,
) -> Result<Vec<PathBuf>, PathError> {
    let namespace = netns::open(users.path)?;
    sys_mount::mount_tmpfs(dir, 0o700, None)?;
    let mut lowers = Vec::with_capacity(layers.len());
    for (at, layer) in layers.iter().enumerate() {
        let target = dir.join(at.to_string());
        fs::create_dir(&target).with_path("create", &target)?;
        let layer = DetachedMount::copy_of(&HostFile::open_trusted(layer)?, MountDepth::Single)?;
        layer.set(&MountAttributes {
            owners: Some(namespace.as_fd()),
            ..MountAttributes::default()
        })?;
        layer.attach(&target)?;
        lowers.push(target);
    }
    Ok(lowers)
}

fn make_dir(path: &Path, undo: &mut Rollback<'_>) -> Result<(), PathError> {
    // Every user of the container may enter it: this is its `/`.
    DirBuilder::new().mode(0o755).create(path).with_path("create", path)?;
    let path = path.to_owned();
    undo.push(move || drop(fs::remove_dir(path)));
    Ok(())
}

/// Unpacked layers, seen as one root file system.
///
/// Layers are untrusted, but no longer change. Symlinks resolve as in a container, never outside of it.
#[derive(Clone, Copy, Debug)]
pub struct LayerStack<'a> {
    layers: &'a [PathBuf],
}

/// A file or directory in layers.
#[derive(Clone, Debug)]
pub struct StackFile {
    /// File type; never a symlink.
    pub kind: FileType,
    /// Permission bits of the mode.
    pub mode: u32,
    /// Path in the root file system, without symlinks.
    pub path: PathBuf,
    /// Layer of the file; for a directory the topmost one.
    layer: PathBuf,
}

/// A directory that may be in several layers.
struct StackDirectory {
    /// Layers that contain the directory, the topmost first.
    parts: Vec<usize>,
}

/// Result of looking up a name in a directory.
enum StackEntry {
    Nothing,
    Directory(StackDirectory),
    Symlink(OsString),
    Other(usize, Stat),
}

impl<'a> LayerStack<'a> {
    /// Creates the view of unpacked layers, bottom to top.
    pub fn new(layers: &'a [PathBuf]) -> Self {
        LayerStack { layers }
    }

    /// Returns the file or directory that a path leads to, if any.
    pub fn find(&self, path: &Path) -> Result<Option<StackFile>, PathError> {
        let root = StackDirectory { parts: (0..self.layers.len()).rev().collect() };
        let (mut here, mut above) = (PathBuf::new(), vec![root]);
        let mut left: VecDeque<OsString> = names(path).collect();
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
                StackEntry::Nothing => return Ok(None),
                StackEntry::Directory(directory) => {
                    above.push(directory);
                    here = path;
                }
                StackEntry::Symlink(target) => {
                    links += 1;
                    if links > MAX_SYMLINKS {
                        return Ok(None);
                    }
                    let target = Path::new(&target);
                    if target.is_absolute() {
                        above.truncate(1);
                        here.clear();
                    }
                    for name in names(target).rev() {
                        left.push_front(name);
                    }
                }
                StackEntry::Other(layer, stat) => {
                    return Ok(left.is_empty().then(|| self.new_stack_file(layer, &stat, path)));
                }
            }
        }
        let directory = above.last().expect("the root is never left");
        let Some(&layer) = directory.parts.first() else { return Ok(None) };
        let on_host = self.layers[layer].join(&here);
        let stat =
            statat(CWD, &on_host, AtFlags::SYMLINK_NOFOLLOW).with_path("inspect", &on_host)?;
        Ok(Some(self.new_stack_file(layer, &stat, here)))
    }

    /// Returns whether a path leads to an executable file.
    pub fn has_program(&self, path: &Path) -> Result<bool, PathError> {
        let found = self.find(path)?;
        let is_program =
            |found: StackFile| found.kind == FileType::RegularFile && found.mode & 0o111 != 0;
        Ok(found.is_some_and(is_program))
    }

    /// Reads a file of at most `limit_bytes`; `None` if it does not exist.
    pub fn read(&self, path: &Path, limit_bytes: u64) -> Result<Option<Vec<u8>>, PathError> {
        let Some(found) = self.find(path)? else { return Ok(None) };
        let on_host = found.layer.join(found.path.strip_prefix("/").unwrap_or(&found.path));
        let invalid = |what: &str| PathError::new("read", &on_host, io::Error::other(what));
        if found.kind != FileType::RegularFile {
            return Err(invalid("not a regular file"));
        }
        let file = ConfinedRoot::new(&found.layer)?.open(&found.path, READ_FLAGS, Mode::empty())?;
        let mut bytes = Vec::new();
        let limit = limit_bytes.saturating_add(1);
        File::from(file).take(limit).read_to_end(&mut bytes).with_path("read", &on_host)?;
        if bytes.len() as u64 > limit_bytes {
            return Err(invalid(&format!("it has more than {limit_bytes} bytes")));
        }
        Ok(Some(bytes))
    }

    fn new_stack_file(&self, layer: usize, stat: &Stat, path: PathBuf) -> StackFile {
        StackFile {
            kind: FileType::from_raw_mode(stat.st_mode),
            mode: stat.st_mode & 0o7777,
            path: Path::new("/").join(path),
            layer: self.layers[layer].clone(),
        }
    }

    /// Looks up a path relative to the root, given its parent directory.
    fn entry(&self, directory: &StackDirectory, path: &Path) -> Result<StackEntry, PathError> {
        let mut parts = Vec::new();
        for &layer in &directory.parts {
            let on_host = self.layers[layer].join(path);
            let stat = match statat(CWD, &on_host, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT | Errno::NAMETOOLONG) => continue,
                stat => stat.with_path("inspect", &on_host)?,
            };
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    parts.push(layer);
                    if is_opaque(&self.layers[layer], path)? {
                        break;
                    }
                }
                // A directory hides a non-directory in a lower layer, which in turn hides the layers below it.
                _ if !parts.is_empty() => break,
                FileType::CharacterDevice if stat.st_rdev == 0 => break,
                FileType::Symlink => {
                    let target =
                        readlinkat(CWD, &on_host, Vec::new()).with_path("read", &on_host)?;
                    return Ok(StackEntry::Symlink(OsString::from_vec(target.into_bytes())));
                }
                _ => return Ok(StackEntry::Other(layer, stat)),
            }
        }
        Ok(if parts.is_empty() {
            StackEntry::Nothing
        } else {
            StackEntry::Directory(StackDirectory { parts })
        })
    }
}

fn is_opaque(layer: &Path, path: &Path) -> Result<bool, PathError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let directory = ConfinedRoot::new(layer)?.open(path, flags, Mode::empty())?;
    Ok(tree::is_opaque(directory.as_fd()))
}

/// Returns the names in a path, `..` included.
pub(crate) fn names(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    struct TestLayers {
        _dir: tempfile::TempDir,
        paths: Vec<PathBuf>,
    }

    impl TestLayers {
        fn new(count: usize) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let paths: Vec<_> = (0..count).map(|at| dir.path().join(at.to_string())).collect();
            paths.iter().for_each(|path| fs::create_dir(path).unwrap());
            TestLayers { _dir: dir, paths }
        }

        fn file(&self, layer: usize, path: &str, content: &str) {
            let path = self.paths[layer].join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }

        fn read(&self, path: &str) -> Option<String> {
            let bytes = LayerStack::new(&self.paths).read(Path::new(path), 100).unwrap();
            bytes.map(|bytes| String::from_utf8(bytes).unwrap())
        }
    }

    #[test]
    fn upper_file_hides_lower_one_and_directories_are_merged() {
        let layers = TestLayers::new(2);
        layers.file(0, "etc/passwd", "old");
        layers.file(0, "etc/group", "group");
        layers.file(1, "etc/passwd", "new");
        assert_eq!(layers.read("/etc/passwd").as_deref(), Some("new"));
        assert_eq!(layers.read("etc/group").as_deref(), Some("group"));
        assert_eq!(layers.read("/etc/shadow"), None);
        assert_eq!(layers.read("/etc/passwd/x"), None);
        let found = LayerStack::new(&layers.paths).find(Path::new("/etc/")).unwrap().unwrap();
        assert_eq!((found.kind, found.path), (FileType::Directory, PathBuf::from("/etc")));
    }

    #[test]
    fn file_hides_a_directory_even_below_a_later_directory() {
        let layers = TestLayers::new(3);
        layers.file(0, "a/b", "bottom");
        layers.file(1, "a", "file");
        layers.file(2, "a/c", "top");
        assert_eq!(layers.read("/a/b"), None);
        assert_eq!(layers.read("/a/c").as_deref(), Some("top"));
        let lower = LayerStack::new(&layers.paths[..2]);
        assert_eq!(lower.read(Path::new("/a"), 100).unwrap().unwrap(), b"file");
    }

    #[test]
    fn links_are_resolved_within_the_layers() {
        let layers = TestLayers::new(2);
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
        let found =
            LayerStack::new(&layers.paths).find(Path::new("/absolute/file")).unwrap().unwrap();
        assert_eq!(found.path, Path::new("/real/file"));
    }

    #[test]
    fn special_and_too_large_files_are_not_read() {
        let layers = TestLayers::new(1);
        layers.file(0, "dir/large", &"x".repeat(101));
        rustix::fs::mkfifoat(CWD, layers.paths[0].join("fifo"), Mode::RWXU).unwrap();
        let stack = LayerStack::new(&layers.paths);
        for path in ["/dir", "/dir/large", "/fifo", "/"] {
            stack.read(Path::new(path), 100).unwrap_err();
        }
    }

    #[test]
    fn program_must_be_an_executable_file() {
        let layers = TestLayers::new(1);
        layers.file(0, "run", "");
        let stack = LayerStack::new(&layers.paths);
        assert!(!stack.has_program(Path::new("/run")).unwrap());
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(layers.paths[0].join("run"), mode).unwrap();
        assert!(stack.has_program(Path::new("/run")).unwrap());
        assert!(!stack.has_program(Path::new("/")).unwrap());
    }
}
