//! The files of a layer: found below the job's directory, sorted by name.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use oci_hooks_files::beneath::ConfinedRoot;
use oci_hooks_files::fs::{PathContext as _, PathError, READ_FLAGS};
use rustix::fd::AsFd as _;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstat, readlinkat, statat};
use rustix::io::Errno;

use super::super::resolve::ARCHIVE;
use super::error::FunctionError;
use super::inputs::CopiedFile;

/// Maximum number of files and directories of an image, whose names are held in memory.
const MAX_ENTRIES: usize = 100_000;

/// Name of git's data, which is left out of copied directories: it is not part of a function, and
/// may contain the job's token.
const GIT: &str = ".git";

/// Inputs that list the files of an image, as errors name them.
pub const FILES: &str = "common.files or platforms";

/// The files of a layer by their paths in the image, parents first.
#[derive(Debug, Default)]
pub struct LayerTree {
    pub entries: BTreeMap<PathBuf, LayerEntry>,
    /// Paths of `.git` in the job's directory, which are not copied. The log names them.
    pub left_out: Vec<PathBuf>,
}

/// An entry of a layer, without its path in the layer.
#[derive(Debug, PartialEq, Eq)]
pub enum LayerEntry {
    Directory,
    /// A file; contains its path in the job's directory.
    File(PathBuf),
    /// A symbolic link; contains its target.
    Link(PathBuf),
}

/// An open file, with the size and mode that `fstat` returned for it.
#[derive(Debug)]
pub struct OpenFile {
    pub file: File,
    pub size: u64,
    pub is_executable: bool,
}

/// The working directory of a job; paths and symlinks that lead out of it are errors.
#[derive(Debug)]
pub struct JobDirectory {
    root: ConfinedRoot,
}

impl JobDirectory {
    /// Opens the directory; `path` must be absolute.
    pub fn open(path: &Path) -> Result<Self, FunctionError> {
        Ok(JobDirectory { root: ConfinedRoot::new(path)? })
    }

    pub(super) fn root(&self) -> &ConfinedRoot {
        &self.root
    }

    /// Finds the files to copy. Directories are copied with all their content, except for `.git`.
    pub fn collect(
        &self,
        copied: &[CopiedFile],
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<LayerTree, FunctionError> {
        let mut tree = LayerTree::default();
        for CopiedFile { destination, source } in copied {
            let source = self.relative_path(source)?;
            let file = self.open_within(&source, OFlags::empty())?;
            let stat = fstat(&file).with_path("read the status of", &self.path(&source))?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile if destination.as_os_str().is_empty() => {
                    let path = FILES.to_owned();
                    let problem = format!(
                        "{} is a file: its path in the image must end in a file name",
                        source.display()
                    );
                    return Err(FunctionError::Input { path, problem });
                }
                FileType::RegularFile => tree.add(destination, LayerEntry::File(source))?,
                FileType::Directory => self.walk(&mut tree, destination, source, is_cancelled)?,
                other => return Err(self.kind_error(&source, other)),
            }
        }
        Ok(tree)
    }

    /// Opens a file for reading. A symlink that leads out of the directory is an error.
    pub fn open_file(&self, path: &Path) -> Result<OpenFile, FunctionError> {
        let path = self.relative_path(path)?;
        let file = self.open_within(&path, OFlags::empty())?;
        let stat = fstat(&file).with_path("read the status of", &self.path(&path))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(OpenFile {
                file,
                size: u64::try_from(stat.st_size).unwrap_or_default(),
                is_executable: stat.st_mode & 0o100 != 0,
            }),
            other => Err(self.kind_error(&path, other)),
        }
    }

    /// Adds a directory and its content to `tree`. A symlink in it is added as a symlink.
    fn walk(
        &self,
        tree: &mut LayerTree,
        destination: &Path,
        source: PathBuf,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<(), FunctionError> {
        let top = destination;
        let mut left = vec![(destination.to_owned(), source)];
        while let Some((destination, source)) = left.pop() {
            if is_cancelled() {
                return Err(FunctionError::Cancelled);
            }
            tree.add(&destination, LayerEntry::Directory)?;
            // The first directory may be named by a symlink; the others were found as directories.
            let flags = if destination == top { OFlags::empty() } else { OFlags::NOFOLLOW };
            let directory = self.open_within(&source, flags | OFlags::DIRECTORY)?;
            for name in names(&directory).with_path("list", &self.path(&source))? {
                let (inside, outside) = (destination.join(&name), source.join(&name));
                if name == GIT {
                    tree.left_out.push(outside);
                    continue;
                }
                // The archive that is being written, or that of the previous build.
                if source == Path::new(".") && name.as_bytes().starts_with(ARCHIVE.as_bytes()) {
                    continue;
                }
                let stat = statat(directory.as_fd(), &name, AtFlags::SYMLINK_NOFOLLOW);
                let stat = stat.with_path("read the status of", &self.path(&outside))?;
                match FileType::from_raw_mode(stat.st_mode) {
                    FileType::RegularFile => tree.add(&inside, LayerEntry::File(outside))?,
                    FileType::Directory => left.push((inside, outside)),
                    FileType::Symlink => {
                        let target = readlinkat(directory.as_fd(), &name, Vec::new());
                        let target = target.with_path("read the link", &self.path(&outside))?;
                        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                        if !stays_within(&inside, top, &target) {
                            return Err(FunctionError::Link { path: outside, target });
                        }
                        tree.add(&inside, LayerEntry::Link(target))?;
                    }
                    other => return Err(self.kind_error(&outside, other)),
                }
            }
        }
        Ok(())
    }

    /// Returns a path relative to the job's directory; `path` may also be an absolute path below
    /// it.
    fn relative_path(&self, path: &Path) -> Result<PathBuf, FunctionError> {
        let relative = match path.strip_prefix(self.root.path()) {
            Ok(relative) => relative,
            Err(_) if path.is_absolute() => {
                return Err(FunctionError::Outside { path: path.to_owned() });
            }
            Err(_) => path,
        };
        // `.` components are removed, as names are compared literally.
        let normal: PathBuf = relative.components().filter(|c| *c != Component::CurDir).collect();
        Ok(if normal.as_os_str().is_empty() { ".".into() } else { normal })
    }

    fn open_within(&self, path: &Path, flags: OFlags) -> Result<File, FunctionError> {
        match self.root.open_within(path, flags | READ_FLAGS, Mode::empty()) {
            Ok(file) => Ok(File::from(file)),
            Err(Errno::XDEV) => Err(FunctionError::Outside { path: path.to_owned() }),
            Err(error) => Err(PathError::new("open", &self.path(path), error).into()),
        }
    }

    fn kind_error(&self, path: &Path, kind: FileType) -> FunctionError {
        let kind = match kind {
            FileType::Directory => "a directory",
            FileType::Symlink => "a symbolic link",
            FileType::Fifo => "a FIFO",
            FileType::Socket => "a socket",
            FileType::CharacterDevice | FileType::BlockDevice => "a device",
            _ => "of an unknown kind",
        };
        FunctionError::Kind { path: path.to_owned(), kind }
    }

    fn path(&self, relative: &Path) -> PathBuf {
        self.root.path().join(relative)
    }
}

impl LayerTree {
    /// Adds an entry, and directories for its missing parents.
    fn add(&mut self, path: &Path, entry: LayerEntry) -> Result<(), FunctionError> {
        let name = path.file_name().unwrap_or_default();
        if name.as_bytes().starts_with(b".wh.") {
            return Err(FunctionError::Whiteout { path: path.to_owned() });
        }
        if let Some(parent) = path.parent() {
            let is_new = !parent.as_os_str().is_empty() && !self.entries.contains_key(parent);
            if is_new {
                self.add(parent, LayerEntry::Directory)?;
            } else if !matches!(self.entries.get(parent), None | Some(LayerEntry::Directory)) {
                return Err(conflict(parent, path));
            }
        }
        if path.as_os_str().is_empty() {
            return Ok(());
        }
        match self.entries.get(path) {
            Some(LayerEntry::Directory) if entry == LayerEntry::Directory => return Ok(()),
            Some(_) => return Err(conflict(path, path)),
            None => self.entries.insert(path.to_owned(), entry),
        };
        if self.entries.len() > MAX_ENTRIES {
            return Err(FunctionError::TooMany { limit: MAX_ENTRIES });
        }
        Ok(())
    }
}

fn conflict(path: &Path, wanted: &Path) -> FunctionError {
    let problem = match path == wanted {
        true => format!("{} in the image has two sources", path.display()),
        false => {
            let (file, below) = (path.display(), wanted.display());
            format!("{file} in the image is a file, but {below} is below it")
        }
    };
    FunctionError::Input { path: FILES.to_owned(), problem }
}

/// Returns the names in a directory, sorted.
fn names(directory: &File) -> rustix::io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Returns whether the target of the symlink `link` is within `top`, the copied directory.
fn stays_within(link: &Path, top: &Path, target: &Path) -> bool {
    let mut depth = link.components().count() - top.components().count() - 1;
    for component in target.components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir if depth > 0 => depth -= 1,
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, mkfifoat};
    use tempfile::TempDir;

    use super::*;

    fn job() -> (TempDir, JobDirectory) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("job");
        fs::create_dir_all(path.join("lib/deep/.git")).unwrap();
        for name in ["func.yml", "lib/b", "lib/a", "lib/deep/c", "lib/deep/.git/config"] {
            fs::write(path.join(name), name).unwrap();
        }
        fs::write(path.join(ARCHIVE), "old").unwrap();
        fs::write(dir.path().join("secret"), "outside").unwrap();
        let job = JobDirectory::open(&path).unwrap();
        (dir, job)
    }

    fn collect(job: &JobDirectory, files: &[(&str, &str)]) -> Result<LayerTree, FunctionError> {
        let copied = files.iter().map(|(destination, source)| CopiedFile {
            destination: destination.into(),
            source: source.into(),
        });
        job.collect(&copied.collect::<Vec<_>>(), &|| false)
    }

    fn paths(tree: &LayerTree) -> Vec<&str> {
        tree.entries.keys().map(|path| path.to_str().unwrap()).collect()
    }

    #[test]
    fn directories_are_copied_without_git() {
        let (dir, job) = job();
        symlink("deep/c", dir.path().join("job/lib/link")).unwrap();
        let tree = collect(&job, &[("x/y", "lib"), ("func.yml", "./func.yml")]).unwrap();
        let expected =
            ["func.yml", "x", "x/y", "x/y/a", "x/y/b", "x/y/deep", "x/y/deep/c", "x/y/link"];
        assert_eq!(paths(&tree), expected);
        assert_eq!(tree.left_out, [Path::new("lib/deep/.git")]);
        let at = |path: &str| &tree.entries[Path::new(path)];
        assert_eq!(*at("x/y/link"), LayerEntry::Link("deep/c".into()));
        assert_eq!(*at("x/y/deep/c"), LayerEntry::File("lib/deep/c".into()));
        // The archive is left out of the directory.
        let tree = collect(&job, &[("", ".")]).unwrap();
        assert_eq!(paths(&tree)[..3], ["func.yml", "lib", "lib/a"]);
        assert!(!paths(&tree).contains(&ARCHIVE));
        let absolute = dir.path().join("job/func.yml");
        collect(&job, &[("f", absolute.to_str().unwrap())]).unwrap();
    }

    #[test]
    fn files_outside_of_the_job_are_not_read() {
        let (dir, job) = job();
        let at = |name: &str| dir.path().join("job").join(name);
        symlink("../secret", at("out")).unwrap();
        symlink(dir.path().join("secret"), at("absolute")).unwrap();
        symlink("..", at("up")).unwrap();
        symlink("func.yml", at("inside")).unwrap();
        let secret = dir.path().join("secret");
        let outside = ["../secret", "out", "absolute", "up/secret", secret.to_str().unwrap()];
        for source in outside {
            let error = collect(&job, &[("x", source)]).unwrap_err();
            assert!(matches!(error, FunctionError::Outside { .. }), "{source}: {error}");
            let error = job.open_file(Path::new(source)).unwrap_err();
            assert!(matches!(error, FunctionError::Outside { .. }), "{source}: {error}");
        }
        collect(&job, &[("x", "inside"), ("y", "lib/../func.yml")]).unwrap();
        symlink("../../secret", at("lib/out")).unwrap();
        let error = collect(&job, &[("x", "lib")]).unwrap_err();
        assert!(matches!(error, FunctionError::Link { .. }), "{error}");
    }

    #[test]
    fn fifo_is_not_waited_for() {
        let (dir, job) = job();
        mkfifoat(CWD, dir.path().join("job/lib/fifo"), Mode::RUSR | Mode::WUSR).unwrap();
        for source in ["lib", "lib/fifo"] {
            let error = collect(&job, &[("x", source)]).unwrap_err();
            assert!(error.to_string().contains("lib/fifo is a FIFO"), "{error}");
        }
    }

    #[test]
    fn duplicate_paths_and_whiteout_names_are_errors() {
        let (dir, job) = job();
        fs::write(dir.path().join("job/.wh.x"), "").unwrap();
        for (files, expected) in [
            (
                &[("x", "func.yml"), ("x/y", "lib/a")][..],
                "x in the image is a file, but x/y is below it",
            ),
            (&[("lib", "lib"), ("lib/a", "func.yml")], ": lib/a in the image has two sources"),
            (&[(".wh.x", "func.yml")], "removed files"),
            (&[("x", ".wh.x"), ("y", ".")], "removed files"),
            (&[("", "func.yml")], "its path in the image must end in a file name"),
        ] {
            let error = collect(&job, files).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
