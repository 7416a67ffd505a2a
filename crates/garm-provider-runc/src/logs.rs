//! Logs of instances, kept after the instances are removed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use oci_hooks_engine::container::cut_marker_path;
use oci_hooks_files::fs::{PathError, entries_in, remove_if_there};

/// Returns the file name of an instance's log. It contains the container id, so a later instance of the same name has
/// another log.
pub(super) fn file_name(name: &str, container: &str) -> String {
    format!("{name}.{}.log", &container[..12])
}

/// Returns the newest log of instances with this name.
pub fn newest_log(directory: &Path, name: &str) -> Result<Option<PathBuf>, PathError> {
    let is_its = |path: &Path| {
        let file = path.file_name().and_then(|file| file.to_str());
        let rest = file.and_then(|file| file.strip_prefix(name)?.strip_prefix('.'));
        let id = rest.and_then(|rest| rest.strip_suffix(".log"));
        id.is_some_and(|id| id.len() == 12 && id.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    let logs = files(directory)?.into_iter().filter(|(path, _)| is_its(path));
    Ok(logs.max_by_key(|(_, written)| *written).map(|(path, _)| path))
}

/// Removes logs not written to for `keep`, unless their instance is running; returns their number.
pub fn prune(directory: &Path, keep: Duration) -> Result<usize, PathError> {
    let now = SystemTime::now();
    let mut removed = 0;
    for (path, written) in files(directory)? {
        let is_ours = path.extension().is_some_and(|end| end == "log" || end == "1");
        let is_old = now.duration_since(written).is_ok_and(|age| age > keep);
        // While the log starts a new file, the older one has the lock.
        if is_ours && is_old && !is_open(&path) && !is_open(&path.with_extension("log")) {
            let is_newest = path.extension().is_some_and(|end| end == "log");
            let marker = is_newest.then(|| cut_marker_path(&path));
            for path in [path].into_iter().chain(marker) {
                // It is missing if the log was not cut, or another process prunes at the same time.
                remove_if_there(&path)?;
            }
            removed += 1;
        }
    }
    Ok(removed)
}

/// Returns whether a process has a log open for writing; [`LogWriter`] locks it.
///
/// [`LogWriter`]: oci_hooks_engine::container::LogWriter
fn is_open(path: &Path) -> bool {
    let tried = fs::File::open(path).map(|file| file.try_lock());
    matches!(tried, Ok(Err(fs::TryLockError::WouldBlock)))
}

/// Returns the files of a directory with their modification times.
fn files(directory: &Path) -> Result<Vec<(PathBuf, SystemTime)>, PathError> {
    let files = entries_in(directory)?.into_iter().filter_map(|entry| {
        let data = entry.metadata().ok().filter(fs::Metadata::is_file)?;
        Some((entry.path(), data.modified().ok()?))
    });
    Ok(files.collect())
}

#[cfg(test)]
mod tests {
    use oci_hooks_engine::container::LogWriter;

    use super::*;

    #[test]
    fn newest_log_is_found_and_old_ones_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let old = SystemTime::now() - Duration::from_secs(3600);
        let files = [
            ("a.000000000001.log", old),
            ("a.000000000002.log", SystemTime::now()),
            ("a.b.000000000003.log", SystemTime::now()),
            ("a.000000000001.1", old),
            ("a.000000000001.cut", SystemTime::now()),
            ("other", old),
            ("b.000000000004.log", old),
            ("b.000000000004.1", old),
        ];
        for (name, written) in files {
            let file = fs::File::create(dir.path().join(name)).unwrap();
            file.set_modified(written).unwrap();
        }
        // Open, as by the supervisor of a running instance.
        let open = LogWriter::open(&dir.path().join("b.000000000004.log"), 1000).unwrap();
        let last = |name| newest_log(dir.path(), name).unwrap();
        assert_eq!(last("a"), Some(dir.path().join("a.000000000002.log")));
        assert_eq!(last("a.b"), Some(dir.path().join("a.b.000000000003.log")));
        assert_eq!(last("c"), None);
        assert_eq!(prune(dir.path(), Duration::from_secs(60)).unwrap(), 2);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 5);
        drop(open);
        assert_eq!(prune(dir.path(), Duration::from_secs(60)).unwrap(), 2);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
        assert!(dir.path().join("other").exists());
    }
}
