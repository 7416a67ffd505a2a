//! The statically linked programs of a release.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
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
        // `program::run` has a deadline, which a build on a busy machine may exceed.
        let output = Command::new(program::repository("tests/support/static.sh"))
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .expect("the script can be run");
        assert!(output.status.success(), "the static programs do not build");
        let path = String::from_utf8(output.stdout).expect("the path is text");
        PathBuf::from(path.trim_end())
    })
}

/// Returns the path of a static program.
pub fn program(name: &str) -> PathBuf {
    directory().join(name)
}
