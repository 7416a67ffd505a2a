//! Scripts: the shell that runs them, their text, and the file with it.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use oci_hooks_files::fs::{PathContext as _, PathError, create_private, random_u64};
use oci_hooks_init::launch::is_executable;

use super::error::BuiltinError;

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
        let mut file = create_private(&path)?;
        let script_file = ScriptFile { path };
        file.write_all(script.as_bytes()).with_path("write", &script_file.path)?;
        Ok(script_file)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ScriptFile {
    fn drop(&mut self) {
        // The directory is removed with the job.
        let _ = fs::remove_file(&self.path);
    }
}

/// Size limit of an argument in bytes, with its final NUL byte: `MAX_ARG_STRLEN` of Linux.
const MAX_ARGUMENT_BYTES: usize = 128 << 10;

/// The arguments of a shell that runs a script, and the file of a script that is too long for an argument.
#[derive(Debug)]
pub struct ScriptCommand {
    pub argv: [String; 3],
    _file: Option<ScriptFile>,
}

impl ScriptCommand {
    /// Passes the script as the argument of `-c`, or if it is too long, in a private file in
    /// `directory`.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be written.
    pub fn new(shell: &str, script: String, directory: &Path) -> Result<Self, PathError> {
        let is_long = script.len() >= MAX_ARGUMENT_BYTES;
        let file = is_long.then(|| ScriptFile::new(directory, &script)).transpose()?;
        let text = match &file {
            None => script,
            Some(file) => format!(". {}", quote(&file.path.to_string_lossy())),
        };
        Ok(ScriptCommand { argv: [shell.to_owned(), "-c".to_owned(), text], _file: file })
    }
}

/// Returns the text as a word in single quotes, for any POSIX shell.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Options for tracing and checking the lines of a script.
#[derive(Clone, Copy, Debug, Default)]
pub struct TraceOptions {
    /// If set, the shell prints each command before it executes it.
    pub xtrace: bool,
    /// If set, the exit code of each line is checked, in addition to `errexit`.
    pub check: bool,
    /// If set, script items of several lines become collapsible sections.
    pub sections: bool,
}

/// Options in the start line of a log section: collapsed, and shown without its duration.
const FOLDED: &str = "[hide_duration=true,collapsed=true]";

/// Shell code at the start of scripts, which sets options. `pipefail` is set only if the shell
/// supports it: dash and old versions of busybox do not.
const OPTIONS: &str = "\
(set -o pipefail) 2>/dev/null && set -o pipefail
set +o noclobber
set -o errexit
";

/// Shell code after a script line, which ends the script if the line failed.
const CHECK: &str =
    "_step_exit_code=$?; [ \"$_step_exit_code\" -eq 0 ] || exit \"$_step_exit_code\"\n";

/// Returns the text of the script that `builtin://script_legacy` executes.
pub fn legacy(shell: &str, lines: &[String], tracing: TraceOptions) -> String {
    // Without a trap, a shell killed by a signal would print its current command.
    let mut script = format!("#!{shell}\n\ntrap exit HUP TERM\n{OPTIONS}{}\n", xtrace(tracing));
    for (index, line) in lines.iter().enumerate() {
        let line = line.trim();
        match line.split_once('\n') {
            _ if line.is_empty() => {
                script.push_str("echo\n");
                continue;
            }
            Some(_) if tracing.sections => {
                let name = format!("section_script_step_{index}");
                let shown = quote(&format!("\x1b[32;1m$ {line}\x1b[0;m"));
                script.push_str(&format!(
                    "printf 'section_start:%s:%s{FOLDED}\\r\\033[0K%s\\n' \"$(date +%s)\" {name} {shown}\n"
                ));
                script.push_str(&add_check(line, tracing));
                script.push_str(&format!(
                    "printf 'section_end:%s:%s\\r\\033[0K\\n' \"$(date +%s)\" {name}\n"
                ));
                continue;
            }
            several => script.push_str(&show("\x1b[1;32m", line, several)),
        }
        script.push_str(&add_check(line, tracing));
    }
    script
}

/// Returns the text of a script that `builtin://concrete` executes. `name` is the name of the
/// script, such as `after_script`.
///
/// The lines run in a subshell: `kill -USR1 $$` reaches the outer shell. If `pipe` is set, they run
/// at the end of a pipe, as in older versions of GitLab Runner.
pub fn step(
    shell: &str,
    name: &str,
    lines: &[String],
    tracing: TraceOptions,
    pipe: bool,
) -> String {
    let mut body = xtrace(tracing).to_owned();
    for (index, line) in lines.iter().enumerate() {
        let line = line.trim();
        match line.split_once('\n') {
            _ if line.is_empty() => {
                body.push('\n');
                continue;
            }
            Some(_) if tracing.sections => {
                let name = quote(&format!("{name}_{index}"));
                let shown = quote(&format!("\x1b[32;1m$ {line}\x1b[0m"));
                body.push_str(&format!(
                    "printf 'section_start:%s:%s{FOLDED}\\r\\033[0K%s\\n' \"$(date +%s)\" {name} {shown}\n\
                     printf 'section_end:%s:%s\\r\\033[0K' \"$(date +%s)\" {name}\n"
                ));
            }
            several => body.push_str(&show("\x1b[32;1m", line, several)),
        }
        body.push_str(&add_check(line, tracing));
    }
    let body = quote(&body);
    let run = match pipe {
        true => format!(": | eval {body}"),
        // The trap of the outer shell is not active in a subshell.
        false => format!("(trap 'exit 1' TERM; eval {body}) </dev/null"),
    };
    format!("#!{shell}\n\ntrap 'exit 1' TERM\n{OPTIONS}{run}\nexit 0\n")
}

fn xtrace(tracing: TraceOptions) -> &'static str {
    if tracing.xtrace { "set -o xtrace\n" } else { "" }
}

fn add_check(line: &str, tracing: TraceOptions) -> String {
    format!("{line}\n{}", if tracing.check { CHECK } else { "" })
}

/// Returns a shell command that prints a script line to the log; of an item with several lines,
/// only the first.
fn show(color: &str, line: &str, several: Option<(&str, &str)>) -> String {
    let line = several
        .map_or(line.to_owned(), |(first, _)| format!("{first} # collapsed multi-line command"));
    format!("printf '%s\\n' {}\n", quote(&format!("{color}$ {line}\x1b[0m")))
}

/// Names and paths of shells with which GitLab Runner executes scripts, the preferred one first.
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

/// Returns the path of the first shell that exists; `path` is the PATH of the step.
pub fn find_shell(work_dir: &Path, path: &str) -> Result<PathBuf, BuiltinError> {
    SHELLS
        .iter()
        .find_map(|name| find_program(name, work_dir, path))
        .ok_or_else(|| BuiltinError::NoShell(SHELLS.join(", ")))
}

/// Returns the path of an executable file. A name with a slash is relative to the working
/// directory; other names are looked up in `path`, the value of PATH.
pub fn find_program(name: &str, work_dir: &Path, path: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(work_dir.join(name)).filter(|path| is_executable(path));
    }
    program_candidates(name, work_dir, path).find(|candidate| is_executable(candidate))
}

/// Returns the candidate paths of a program whose name has no slash, one for each entry of `path`,
/// the value of PATH.
pub fn program_candidates(
    name: &str,
    work_dir: &Path,
    path: &str,
) -> impl Iterator<Item = PathBuf> {
    // An empty entry means the working directory in a shell; it is ignored here, as in Go.
    let directories =
        std::env::split_paths(path).filter(|directory| !directory.as_os_str().is_empty());
    directories.map(move |directory| work_dir.join(directory).join(name))
}
