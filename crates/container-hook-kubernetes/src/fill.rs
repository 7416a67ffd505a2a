//! The work of a pod's init container: it copies the agent and the runner's externals, and creates the job's
//! directories. It needs no program but this one, no privileges, and write access only to the volumes.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use oci_hooks_files::fs::{PathContext as _, PathError, create_if_missing, remove_if_there};
use oci_hooks_init::PROGRAM;
use walkdir::WalkDir;

/// Number of threads that copy files: one waits for the disk while another opens the next file.
const THREADS: usize = 4;

/// Files and directories that a pod needs before its containers start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFiles {
    /// Path at which the agent is installed; `None` installs no agent.
    pub agent: Option<PathBuf>,
    /// Source and destination directories; the contents are copied.
    pub copies: Vec<(PathBuf, PathBuf)>,
    /// Directories that every user of the job may write to, created if missing.
    pub directories: Vec<PathBuf>,
}

impl PodFiles {
    /// Copies and creates everything, replacing files of an earlier attempt.
    ///
    /// # Errors
    ///
    /// Returns the first failure; files copied before it stay.
    pub fn fill(&self) -> Result<(), PathError> {
        if let Some(agent) = &self.agent {
            install(agent)?;
        }
        for directory in &self.directories {
            make_open(directory)?;
        }
        self.copies.iter().try_for_each(|(from, to)| copy(from, to))
    }
}

/// Writes the agent to a temporary file and renames it, so that a starting container sees the complete
/// program.
fn install(path: &Path) -> Result<(), PathError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    if let Some(above) = path.parent() {
        fs::create_dir_all(above).with_path("create the directory", above)?;
    }
    let _ = fs::remove_file(&new);
    fs::write(&new, PROGRAM).with_path("write", &new)?;
    fs::set_permissions(&new, Permissions::from_mode(0o755))
        .with_path("change the mode of", &new)?;
    fs::rename(&new, path).with_path("write", path)
}

/// Returns whether this version of the agent is at a path.
pub fn is_installed(path: &Path) -> bool {
    fs::read(path).is_ok_and(|agent| agent == PROGRAM)
}

/// Creates a directory with mode 0777, and its missing parents.
fn make_open(directory: &Path) -> Result<(), PathError> {
    let mut missing: Vec<_> = directory.ancestors().take_while(|path| !path.exists()).collect();
    while let Some(path) = missing.pop() {
        // Jobs that share a claim may start at the same time.
        if !create_if_missing(path, 0o777)? {
            continue;
        }
        // The umask was applied to the mode at creation.
        let open = Permissions::from_mode(0o777);
        fs::set_permissions(path, open).with_path("change the mode of", path)?;
    }
    Ok(())
}

/// Copies the contents of a directory, with modes and symbolic links; skips special files.
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
            create_if_missing(&target, 0o755)?;
        } else if entry.file_type().is_symlink() {
            let leads_to = fs::read_link(path).with_path("read", path)?;
            remove_if_there(&target)?;
            symlink(leads_to, &target).with_path("make the link", &target)?;
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
            // `fs::copy` uses `copy_file_range`, which some file systems do without copying data, and keeps
            // the mode.
            fs::copy(from, to).with_path("copy", from)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn filling_a_pod_again_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("externals"), dir.path().join("e"));
        fs::create_dir_all(from.join("node20/bin")).unwrap();
        fs::write(from.join("node20/bin/node"), "elf").unwrap();
        let executable = Permissions::from_mode(0o755);
        fs::set_permissions(from.join("node20/bin/node"), executable).unwrap();
        symlink("node", from.join("node20/bin/nodejs")).unwrap();
        fs::create_dir(&to).unwrap();
        let filling = PodFiles {
            agent: Some(dir.path().join("bin/agent")),
            copies: vec![(from, to.clone())],
            directories: vec![dir.path().join("w/repo/repo")],
        };
        for _ in 0..2 {
            filling.fill().unwrap();
            assert_eq!(fs::read(dir.path().join("bin/agent")).unwrap(), PROGRAM);
            assert_eq!(mode(&dir.path().join("bin/agent")), 0o755);
            assert_eq!(mode(&dir.path().join("w/repo")), 0o777);
            assert_eq!(mode(&dir.path().join("w/repo/repo")), 0o777);
            assert_eq!(fs::read(to.join("node20/bin/node")).unwrap(), b"elf");
            assert_eq!(mode(&to.join("node20/bin/node")), 0o755);
            assert_eq!(fs::read_link(to.join("node20/bin/nodejs")).unwrap(), Path::new("node"));
        }
    }

    #[test]
    fn existing_directories_are_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let work = dir.path().join("work");
        fs::create_dir(&work).unwrap();
        fs::set_permissions(&work, Permissions::from_mode(0o750)).unwrap();
        let filling = PodFiles { directories: vec![work.join("repo")], ..PodFiles::default() };
        filling.fill().unwrap();
        assert_eq!((mode(&work), mode(&work.join("repo"))), (0o750, 0o777));
    }

    #[test]
    fn missing_externals_are_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let copies = vec![(dir.path().join("none"), dir.path().to_owned())];
        let error = PodFiles { copies, ..PodFiles::default() }.fill().unwrap_err();
        assert!(error.path.ends_with("none"), "{error}");
    }
}
