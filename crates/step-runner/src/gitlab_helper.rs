//! Finds GitLab's helper program, which users rename to install this program under its name.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Suffix of the name of GitLab's helper program once this program has taken the name itself.
pub const SUFFIX: &str = ".gitlab";

/// Names under which GitLab Runner executes its helper program.
pub const NAMES: [&str; 2] = ["gitlab-runner-helper", "gitlab-runner"];

/// Returns GitLab's helper program beside `exe`, the path at which this program was executed:
/// `EXE.gitlab`, or else `gitlab-runner-helper.gitlab` or `gitlab-runner.gitlab` in the same
/// directory.
///
/// Returns only an executable regular file or a symlink to one, and never this program, which would
/// execute itself in an endless loop.
pub fn original_program(exe: &Path) -> Option<PathBuf> {
    // A copy of this program under the name of the original is not the original.
    if exe.as_os_str().as_encoded_bytes().ends_with(SUFFIX.as_bytes()) {
        return None;
    }
    let ours = [file_id(exe), file_id(Path::new("/proc/self/exe"))];
    candidates(exe).into_iter().find(|path| {
        let Ok(meta) = fs::metadata(path) else { return false };
        let is_program = meta.is_file() && meta.permissions().mode() & 0o111 != 0;
        is_program && !ours.contains(&Some((meta.dev(), meta.ino())))
    })
}

/// Returns the paths at which [`original_program`] looks for GitLab's helper program, the preferred
/// one first.
pub fn candidates(exe: &Path) -> Vec<PathBuf> {
    let with_suffix = |name: OsString| {
        let mut name = name;
        name.push(SUFFIX);
        exe.with_file_name(name)
    };
    let own = exe.file_name().map(OsString::from);
    let names = own.into_iter().chain(NAMES.map(OsString::from));
    let mut paths: Vec<PathBuf> = Vec::new();
    for path in names.map(with_suffix) {
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    paths
}

/// Returns device and inode of a file.
fn file_id(path: &Path) -> Option<(u64, u64)> {
    let meta = fs::metadata(path).ok()?;
    Some((meta.dev(), meta.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn program(path: &Path, mode: u32) {
        fs::write(path, "x").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn original_of_the_same_name_is_preferred() {
        let dir = tempfile::tempdir().unwrap();
        let exe = dir.path().join("gitlab-runner");
        program(&exe, 0o755);
        assert_eq!(original_program(&exe), None);
        let runner = dir.path().join("gitlab-runner.gitlab");
        let helper = dir.path().join("gitlab-runner-helper.gitlab");
        program(&helper, 0o755);
        assert_eq!(original_program(&exe), Some(helper.clone()));
        program(&runner, 0o755);
        assert_eq!(original_program(&exe), Some(runner.clone()));
        assert_eq!(
            original_program(&dir.path().join("gitlab-runner-helper")),
            Some(helper.clone())
        );
        assert_eq!(original_program(&dir.path().join("step-runner")), Some(helper));
    }

    #[test]
    fn own_program_and_non_executables_are_not_the_original() {
        let dir = tempfile::tempdir().unwrap();
        let exe = dir.path().join("gitlab-runner-helper");
        let named = dir.path().join("gitlab-runner-helper.gitlab");
        program(&exe, 0o755);
        symlink(&exe, &named).unwrap();
        assert_eq!(original_program(&exe), None);
        fs::remove_file(&named).unwrap();
        fs::hard_link(&exe, &named).unwrap();
        assert_eq!(original_program(&exe), None);
        fs::remove_file(&named).unwrap();
        // A copy of this program, executed under the name of the original.
        fs::copy(&exe, &named).unwrap();
        assert_eq!(original_program(&exe), Some(named.clone()));
        assert_eq!(original_program(&named), None);
        program(&named, 0o644);
        assert_eq!(original_program(&exe), None);
        fs::remove_file(&named).unwrap();
        fs::create_dir(&named).unwrap();
        assert_eq!(original_program(&exe), None);
    }
}
