//! The statically linked programs of a release.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::program;

/// Environment variable with the directory of programs that are built already. Without it, each test process
/// would call cargo.
const BUILT: &str = "OCI_HOOKS_STATIC_PROGRAMS";

/// Returns the directory of the static programs; the first call builds them.
pub fn directory() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        if let Some(built) = std::env::var_os(BUILT) {
            return PathBuf::from(built);
        }
        program::path_made_by("tests/support/static.sh")
    })
}

/// Returns the path of a static program.
pub fn program(name: &str) -> PathBuf {
    directory().join(name)
}
