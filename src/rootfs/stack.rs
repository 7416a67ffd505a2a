//! Looking into layers without mounting them: what an overlay of them would show.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, readlinkat, statat};
use rustix::io::Errno;

use crate::sys::beneath::Beneath;
use crate::sys::fs::{PathContext as _, PathError};
use crate::sys::tree;

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
