//! Looking up programs.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Returns the executable file that a name leads to: in `path`, a PATH, or relative to the working
/// directory if it has a slash.
pub fn find_program(name: &str, work_dir: &Path, path: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(work_dir.join(name)).filter(|path| is_executable(path));
    }
    // An empty entry means the working directory to a shell; here, as in Go, it is ignored.
    let mut candidates = std::env::split_paths(path)
        .filter(|directory| !directory.as_os_str().is_empty())
        .map(|directory| work_dir.join(directory).join(name));
    candidates.find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}
