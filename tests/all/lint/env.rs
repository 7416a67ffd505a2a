//! The program and its golden files.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(crate) use oci_hooks_testsupport::golden::compare as golden;

/// Output and exit code of a run.
pub(crate) struct LintRun {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) code: Option<i32>,
}

/// Runs `oci-hooks lint` in the directory of the fixtures.
pub(crate) fn lint(args: &[&str]) -> LintRun {
    lint_in(&data(""), args, "")
}

/// Runs `oci-hooks lint` in a directory, with an input.
pub(crate) fn lint_in(dir: &Path, args: &[&str], input: &str) -> LintRun {
    let mut child = Command::new(env!("CARGO_BIN_EXE_oci-hooks"))
        .arg("lint")
        .args(args)
        .current_dir(dir)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    LintRun { stdout: text(output.stdout), stderr: text(output.stderr), code: output.status.code() }
}

/// Returns the path of a fixture.
pub(crate) fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/lint").join(name)
}
