//! GitLab's helper program, installed beside this one: the commands that only it has, and its
//! version in the format that gitlab-runner reads.

use std::env;
use std::env::consts::{ARCH, OS};
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use oci_hooks_cli::exit::CliExit;
use step_runner::gitlab_helper::{candidates, original_program};

use crate::error::StepRunnerError;
use crate::report;
use crate::steps_command::ARGUMENTS;

/// Returns the path of GitLab's helper program, or, as an error, the path at which it is missing.
///
/// Looks beside the name by which this program was called, and beside its executable, because the
/// former may be a symlink.
fn program(called: &Path) -> Result<PathBuf, PathBuf> {
    let exe = env::current_exe().unwrap_or_else(|_| called.to_owned());
    let named = called.file_name().map_or_else(|| exe.clone(), |name| exe.with_file_name(name));
    let missing = || candidates(&named).swap_remove(0);
    original_program(&named).or_else(|| original_program(&exe)).ok_or_else(missing)
}

/// Executes GitLab's helper program in place of this one. Returns only on error.
pub fn execute(words: &[OsString]) -> StepRunnerError {
    let (name, arguments) = words.split_first().expect("the name of the program is one of them");
    let program = match program(Path::new(name)) {
        Ok(program) => program,
        Err(path) => {
            let command = arguments.first().unwrap_or(name).to_string_lossy().into_owned();
            return StepRunnerError::NoOriginal { command, path };
        }
    };
    let source = Command::new(&program).arg0(name).args(arguments).env_remove(ARGUMENTS).exec();
    StepRunnerError::Execute { name: program, source }
}

const OWN: &str = env!("CARGO_PKG_VERSION");

/// Prints the version of GitLab's helper program, if it exists, and the version of this program.
///
/// gitlab-runner warns in each job if the helper's version on an instance differs from its own,
/// because artifacts and caches there depend on it.
pub fn print_version(words: &[OsString]) -> Result<CliExit, StepRunnerError> {
    let original = words.first().and_then(|name| program(Path::new(name)).ok());
    let theirs = original.and_then(|program| {
        let mut command = Command::new(program);
        // Standard input is a pipe, because `/dev/null` may not exist.
        command.arg("--version").env_remove(ARGUMENTS).stdin(Stdio::piped());
        let output = command.output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        (output.status.success() && text.starts_with("Version:")).then_some(text)
    });
    let text = theirs.unwrap_or_else(|| version_lines(OWN));
    report::print(format!("{}\nStep runner:  oci-hooks {OWN}\n", text.trim_end()))
}

/// Returns the lines about a version that gitlab-runner parses: the version, and the platform in
/// Go's notation.
fn version_lines(version: &str) -> String {
    format!("Version:      {version}\nOS/Arch:      {OS}/{}", architecture(ARCH))
}

fn architecture(name: &str) -> &str {
    match name {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        "loongarch64" => "loong64",
        other => other,
    }
}

#[test]
fn printed_lines_are_those_expected_by_the_runner() {
    let text = version_lines("1.2.3");
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    assert_eq!(value("Version:"), Some("1.2.3"));
    let (os, architecture) = value("OS/Arch:").unwrap().split_once('/').unwrap();
    assert_eq!(os, "linux");
    assert!(["amd64", "arm64", "riscv64", "s390x", "ppc64le"].contains(&architecture));
}
