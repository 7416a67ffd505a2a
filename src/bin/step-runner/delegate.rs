//! Commands that only GitLab's program has.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use oci_hooks::step_runner::gitlab_helper::{candidates, original};

use crate::error::Error;
use crate::steps_command::ARGUMENTS;

/// Returns GitLab's program beside ours, or the path at which it is missing.
///
/// Both the name that we were called by and the name of our file count: one may be a symlink.
pub(crate) fn program(called: &Path) -> Result<PathBuf, PathBuf> {
    let exe = env::current_exe().unwrap_or_else(|_| called.to_owned());
    let named = called.file_name().map_or_else(|| exe.clone(), |name| exe.with_file_name(name));
    let missing = || candidates(&named).swap_remove(0);
    original(&named).or_else(|| original(&exe)).ok_or_else(missing)
}

/// Executes GitLab's program in place of this one. Returns only on error.
pub(crate) fn run(words: &[OsString]) -> Error {
    let (name, arguments) = words.split_first().expect("the name of the program is one of them");
    let program = match program(Path::new(name)) {
        Ok(program) => program,
        Err(path) => {
            let command = arguments.first().unwrap_or(name).to_string_lossy().into_owned();
            return Error::NoOriginal { command, path };
        }
    };
    let source = Command::new(&program).arg0(name).args(arguments).env_remove(ARGUMENTS).exec();
    Error::Execute { name: program, source }
}
