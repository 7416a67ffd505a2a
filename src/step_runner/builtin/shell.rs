//! Finding a shell.

use std::path::{Path, PathBuf};

use super::error::BuiltinError;
use super::program::find_program;

/// Where GitLab's runner looks for the shell of a script, the first one first.
const SHELLS: [&str; 9] = [
    "bash",
    "/bin/bash",
    "/usr/bin/bash",
    "/usr/local/bin/bash",
    "sh",
    "/bin/sh",
    "/usr/bin/sh",
    "/usr/local/bin/sh",
    "/busybox/sh",
];

/// Returns the path of a shell; `path` is the PATH of the step.
pub(super) fn find_shell(work_dir: &Path, path: &str) -> Result<PathBuf, BuiltinError> {
    SHELLS
        .iter()
        .find_map(|name| find_program(name, work_dir, path))
        .ok_or_else(|| BuiltinError::NoShell(SHELLS.join(", ")))
}
