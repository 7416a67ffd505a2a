//! Scripts in files: an argument of a program has at most 128 KiB, and everyone can read it in `/proc`.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::program::find_program;
use super::quote::quote;
use crate::sys::fs::{PathContext as _, PathError, random_u64};

/// A private file with a script, removed on drop.
#[derive(Debug)]
pub struct ScriptFile {
    path: PathBuf,
}

impl ScriptFile {
    /// Creates the file in a private directory.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be written.
    pub fn new(directory: &Path, script: &str) -> Result<Self, PathError> {
        let path = directory.join(format!("script-{:016x}.sh", random_u64()));
        let mut options = OpenOptions::new();
        let mut file =
            options.write(true).create_new(true).mode(0o600).open(&path).at("make", &path)?;
        let script_file = ScriptFile { path };
        file.write_all(script.as_bytes()).at("write", &script_file.path)?;
        Ok(script_file)
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the arguments with which a shell runs the file as if its text were the argument of `-c`:
    /// `$0`, the parameters and line numbers are the same, and commands run before a later syntax error is
    /// noticed. Only messages of syntax errors, and in other shells than bash all messages of the shell,
    /// have the word `eval` in them.
    ///
    /// `path` is the PATH of the step.
    pub fn as_text_of(&self, shell: &str, work_dir: &Path, path: &str) -> [String; 3] {
        let file = quote(&self.path.to_string_lossy());
        let text = if shell.ends_with("/bash") {
            // Without a subshell. The variable is removed on the first line of the script, so that lines
            // keep their numbers.
            format!(
                "IFS= read -rd '' __step_script <{file};eval \"unset __step_script;$__step_script\""
            )
        } else if find_program("cat", work_dir, path).is_some() {
            format!("eval \"$(cat {file})\"")
        } else {
            // Needs no program, but shells have the path in their messages.
            format!(". {file}")
        };
        [shell.to_owned(), "-c".to_owned(), text]
    }
}

impl Drop for ScriptFile {
    fn drop(&mut self) {
        // The directory is removed with the job.
        let _ = fs::remove_file(&self.path);
    }
}
