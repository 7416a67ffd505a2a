//! What the init container of a pod does: it brings the agent and the runner's externals, and makes the
//! directories of the job. It needs no program of an image but ours, no right, and nothing writable but the
//! volumes.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use walkdir::WalkDir;

use crate::sys::fs::{PathContext as _, PathError};
use crate::sys::init::PROGRAM;

/// How many threads copy files: one waits for the disk while another opens the next.
const THREADS: usize = 4;

/// What a pod needs before its containers start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filling {
    /// Where the agent shall be, in an existing directory.
    pub agent: Option<PathBuf>,
    /// Directories whose contents are copied, and where to.
    pub copies: Vec<(PathBuf, PathBuf)>,
    /// Directories that any user of the job may write to, made if they are missing.
    pub directories: Vec<PathBuf>,
    /// Symbolic links: what they lead to, and where they are; what is there already stays.
    pub links: Vec<(PathBuf, PathBuf)>,
}

impl Filling {
    /// Brings everything. What is there of an earlier attempt is replaced.
    ///
    /// # Errors
    ///
    /// Fails with the first thing that cannot be brought; what was brought before stays.
    pub fn fill(&self) -> Result<(), PathError> {
        if let Some(agent) = &self.agent {
            install(agent)?;
        }
        for directory in &self.directories {
            make_open(directory)?;
        }
        for (target, link) in &self.links {
            match symlink(target, link) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(PathError::new("make the link", link, error));
                }
                _ => {}
            }
        }
        self.copies.iter().try_for_each(|(from, to)| copy(from, to))
    }
}

/// Writes the agent beside its place first, so that a container that starts finds all of it.
fn install(path: &Path) -> Result<(), PathError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let _ = fs::remove_file(&new);
    fs::write(&new, PROGRAM).at("write", &new)?;
    fs::set_permissions(&new, Permissions::from_mode(0o755)).at("change the mode of", &new)?;
    fs::rename(&new, path).at("write", path)
}

/// Makes a directory that everybody may write to, and those above it that are missing.
fn make_open(directory: &Path) -> Result<(), PathError> {
    let mut missing: Vec<_> = directory.ancestors().take_while(|path| !path.exists()).collect();
    while let Some(path) = missing.pop() {
        match DirBuilder::new().mode(0o777).create(path) {
            // Jobs of one claim may begin at once.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            made => made.at("make the directory", path)?,
        }
        // The mode that it was made with went through the umask.
        let open = Permissions::from_mode(0o777);
        fs::set_permissions(path, open).at("change the mode of", path)?;
    }
    Ok(())
}

/// Copies what is in a directory, with modes and symbolic links; what is neither file, directory nor link is
/// left out.
fn copy(from: &Path, to: &Path) -> Result<(), PathError> {
    let mut files = Vec::new();
    for entry in WalkDir::new(from).min_depth(1) {
        let entry = entry.map_err(|error| {
            let path = error.path().unwrap_or(from).to_owned();
            PathError::new("read", &path, error)
        })?;
        let path = entry.path();
        let target = to.join(path.strip_prefix(from).expect("it is beneath"));
        if entry.file_type().is_dir() {
            match DirBuilder::new().mode(0o755).create(&target) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => made.at("make the directory", &target)?,
            }
        } else if entry.file_type().is_symlink() {
            let leads_to = fs::read_link(path).at("read", path)?;
            remove_if_there(&target)?;
            symlink(leads_to, &target).at("make the link", &target)?;
        } else if entry.file_type().is_file() {
            files.push((path.to_owned(), target));
        }
    }
    copy_files(&files)
}

fn copy_files(files: &[(PathBuf, PathBuf)]) -> Result<(), PathError> {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some((from, to)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            remove_if_there(to)?;
            // By `copy_file_range`, which some file systems do without copying; with the mode.
            fs::copy(from, to).at("copy", from)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..THREADS).map(|_| scope.spawn(work)).collect();
        let own = work();
        let others = others.into_iter().map(|thread| thread.join().expect("it does not panic"));
        others.fold(own, Result::and)
    })
}

fn remove_if_there(path: &Path) -> Result<(), PathError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(PathError::new("replace", path, error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_pod_is_filled_twice_as_once() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("externals"), dir.path().join("e"));
        fs::create_dir_all(from.join("node20/bin")).unwrap();
        fs::write(from.join("node20/bin/node"), "elf").unwrap();
        let executable = Permissions::from_mode(0o755);
        fs::set_permissions(from.join("node20/bin/node"), executable).unwrap();
        symlink("node", from.join("node20/bin/nodejs")).unwrap();
        fs::create_dir(&to).unwrap();
        let filling = Filling {
            agent: Some(dir.path().join("agent")),
            copies: vec![(from, to.clone())],
            directories: vec![dir.path().join("w/repo/repo")],
            links: vec![("/__w/_temp/_github_home".into(), dir.path().join("home"))],
        };
        for _ in 0..2 {
            filling.fill().unwrap();
            assert_eq!(fs::read(dir.path().join("agent")).unwrap(), PROGRAM);
            assert_eq!(mode(&dir.path().join("agent")), 0o755);
            assert_eq!(mode(&dir.path().join("w/repo")), 0o777);
            assert_eq!(mode(&dir.path().join("w/repo/repo")), 0o777);
            assert_eq!(fs::read(to.join("node20/bin/node")).unwrap(), b"elf");
            assert_eq!(mode(&to.join("node20/bin/node")), 0o755);
            assert_eq!(fs::read_link(to.join("node20/bin/nodejs")).unwrap(), Path::new("node"));
        }
    }

    #[test]
    fn directories_that_are_there_stay_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let work = dir.path().join("work");
        fs::create_dir(&work).unwrap();
        fs::set_permissions(&work, Permissions::from_mode(0o750)).unwrap();
        let filling = Filling { directories: vec![work.join("repo")], ..Filling::default() };
        filling.fill().unwrap();
        assert_eq!((mode(&work), mode(&work.join("repo"))), (0o750, 0o777));
    }

    #[test]
    fn externals_that_are_missing_are_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let copies = vec![(dir.path().join("none"), dir.path().to_owned())];
        let error = Filling { copies, ..Filling::default() }.fill().unwrap_err();
        assert!(error.path.ends_with("none"), "{error}");
    }
}
