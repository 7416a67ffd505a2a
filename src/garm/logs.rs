//! Where what instances write is kept, also when they are gone.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::sys::fs::{PathContext as _, PathError};

/// Returns the name of an instance's log. An instance of the same name that comes later has another.
pub(super) fn file_name(name: &str, container: &str) -> String {
    format!("{name}.{}.log", &container[..12])
}

/// Returns the log of the last instance that had this name, if any is kept.
pub fn last(directory: &Path, name: &str) -> Result<Option<PathBuf>, PathError> {
    let is_its = |path: &Path| {
        let file = path.file_name().and_then(|file| file.to_str());
        let rest = file.and_then(|file| file.strip_prefix(name)?.strip_prefix('.'));
        let id = rest.and_then(|rest| rest.strip_suffix(".log"));
        id.is_some_and(|id| id.len() == 12 && id.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    let logs = files(directory)?.into_iter().filter(|(path, _)| is_its(path));
    Ok(logs.max_by_key(|(_, written)| *written).map(|(path, _)| path))
}

/// Removes the logs that nothing was written to for so long; returns how many.
pub fn prune(directory: &Path, keep: Duration) -> Result<usize, PathError> {
    let now = SystemTime::now();
    let mut removed = 0;
    for (path, written) in files(directory)? {
        let is_ours = path.extension().is_some_and(|end| end == "log" || end == "1");
        if is_ours && now.duration_since(written).is_ok_and(|age| age > keep) {
            match fs::remove_file(&path) {
                // Another process prunes as well.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                result => result.at("remove", &path)?,
            }
            removed += 1;
        }
    }
    Ok(removed)
}

/// Returns the files of a directory with the times when they were written.
fn files(directory: &Path) -> Result<Vec<(PathBuf, SystemTime)>, PathError> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.at("list", directory)?,
    };
    let files = entries.flatten().filter_map(|entry| {
        let data = entry.metadata().ok().filter(fs::Metadata::is_file)?;
        Some((entry.path(), data.modified().ok()?))
    });
    Ok(files.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_log_of_a_name_is_found_and_old_ones_go() {
        let dir = tempfile::tempdir().unwrap();
        let old = SystemTime::now() - Duration::from_secs(3600);
        let files = [
            ("a.000000000001.log", old),
            ("a.000000000002.log", SystemTime::now()),
            ("a.b.000000000003.log", SystemTime::now()),
            ("a.000000000001.1", old),
            ("other", old),
        ];
        for (name, written) in files {
            let file = fs::File::create(dir.path().join(name)).unwrap();
            file.set_modified(written).unwrap();
        }
        let last = |name| last(dir.path(), name).unwrap();
        assert_eq!(last("a"), Some(dir.path().join("a.000000000002.log")));
        assert_eq!(last("a.b"), Some(dir.path().join("a.b.000000000003.log")));
        assert_eq!(last("b"), None);
        assert_eq!(prune(dir.path(), Duration::from_secs(60)).unwrap(), 2);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
        assert!(dir.path().join("other").exists());
    }
}
