//! Search for programs in the directories of `PATH`.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Directories to search if `PATH` is unset or empty: containerd's shim and GARM clear it.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Error of [`find`]: no program was found.
#[derive(Debug, thiserror::Error)]
#[error("no executable {names}{place}")]
pub struct FindError {
    names: String,
    /// Clause with the searched directories; empty if all names are paths.
    place: String,
}

/// Returns the path of the first of these programs that is found in the directories of `PATH`.
///
/// A name with a slash is a path and is not searched for. The file `not` is skipped: a wrapper that is
/// installed as `runc` must not find itself.
pub fn find(
    names: &[&OsStr],
    path: Option<&OsStr>,
    not: Option<&Path>,
) -> Result<PathBuf, FindError> {
    let path = path.filter(|path| !path.is_empty()).unwrap_or(OsStr::new(DEFAULT_PATH));
    let not = not.and_then(|not| fs::metadata(not).ok()).map(|file| (file.dev(), file.ino()));
    let usable = |candidate: &PathBuf| {
        fs::metadata(candidate).is_ok_and(|file| {
            file.is_file()
                && file.permissions().mode() & 0o111 != 0
                && not != Some((file.dev(), file.ino()))
        })
    };
    for name in names {
        let found = if name.as_bytes().contains(&b'/') {
            Some(PathBuf::from(name)).filter(usable)
        } else {
            std::env::split_paths(path).map(|dir| dir.join(name)).find(usable)
        };
        if let Some(found) = found {
            return Ok(found);
        }
    }
    let is_searched = names.iter().any(|name| !name.as_bytes().contains(&b'/'));
    let place = is_searched.then(|| format!(" in {}", path.to_string_lossy()));
    let names: Vec<_> = names.iter().map(|name| name.to_string_lossy()).collect();
    Err(FindError { names: names.join(" or "), place: place.unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_skips_the_calling_program() {
        let temp = tempfile::tempdir().unwrap();
        let dirs = ["a", "b", "c"].map(|name| temp.path().join(name));
        for dir in &dirs {
            fs::create_dir(dir).unwrap();
            fs::write(dir.join("runc"), "").unwrap();
        }
        for dir in &dirs[1..] {
            fs::set_permissions(dir.join("runc"), fs::Permissions::from_mode(0o755)).unwrap();
        }
        let path = std::env::join_paths(&dirs).unwrap();
        let found = find(&[OsStr::new("runc")], Some(&path), None).unwrap();
        assert_eq!(found, dirs[1].join("runc"));
        let next = find(&[OsStr::new("runc")], Some(&path), Some(&found)).unwrap();
        assert_eq!(next, dirs[2].join("runc"));
        let error = find(&[OsStr::new("nothing")], Some(&path), None).unwrap_err();
        assert!(error.to_string().starts_with("no executable nothing in"), "{error}");
        let error = find(&[OsStr::new("/nonexistent/runc")], Some(&path), None).unwrap_err();
        assert_eq!(error.to_string(), "no executable /nonexistent/runc");
    }
}
