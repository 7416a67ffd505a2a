//! `step-runner` linked statically, and file systems with nothing in them that it could need.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use super::program;

/// Returns the path of the static program; the first call builds it.
pub(crate) fn step_runner() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        // `program::run` has a deadline, which a build on a busy machine may pass.
        let output = Command::new(program::repository("tests/support/static.sh"))
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .expect("the script can be run");
        assert!(output.status.success(), "the static step-runner does not build");
        let path = String::from_utf8(output.stdout).expect("the path is text");
        PathBuf::from(path.trim_end())
    })
}
