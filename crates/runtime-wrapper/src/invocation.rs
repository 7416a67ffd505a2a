//! Parses a runtime's command line, including unknown options.

mod container_call;
mod option;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use oci_hooks_files::fs::PathError;

use super::LogFormat;
use container_call::{ContainerArguments, asks_for_help};
use option::{GLOBAL, LexedArgument, OptionSpelling, ParsedOption, lex};

pub use container_call::ContainerCall;

/// The parsed command line of a call of a runtime, as far as the wrapper needs it.
///
/// The [command line] is not standardized but common to runc, crun and youki, each of which parses it
/// with a different library. Where those differ, [`Self::container_call`] returns unambiguous arguments,
/// or an error.
///
/// [command line]: https://github.com/opencontainers/runtime-tools/blob/master/docs/command-line-interface.md
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Invocation {
    /// The command, such as `create`; `None` for `--version`.
    pub command: Option<OsString>,
    pub log: Option<PathBuf>,
    pub log_format: LogFormat,
    /// Set by `--debug`: debug messages are logged.
    pub debug: bool,
    args: Vec<OsString>,
    /// Number of arguments up to and including the command.
    before: usize,
    /// Another argument that is a runtime's command and that a runtime could take for the command;
    /// `None` if there is no doubt.
    other_candidate: Option<OsString>,
}

/// Errors of a command line that runtimes parse differently, so that a runtime could open another
/// configuration than the one with injected hooks.
#[derive(Debug, thiserror::Error)]
pub enum ArgumentError {
    #[error(
        "ambiguous option {argument:?}: runtimes may parse it as --bundle or --config: write --bundle=DIR or \
         --config=FILE in full, and do not combine short options"
    )]
    Ambiguous { argument: String },
    #[error(
        "ambiguous command: {command:?} or {other_candidate:?}, depending on whether the unknown option before \
         it takes a value; write it as --option=VALUE"
    )]
    Command { command: String, other_candidate: String },
    #[error("--config {path:?} does not name a file")]
    NotAFile { path: PathBuf },
    #[error(transparent)]
    Path(#[from] PathError),
}

/// The commands of runc, crun and youki.
const COMMANDS: [&str; 23] = [
    "checkpoint",
    "checkpointt",
    "completion",
    "create",
    "delete",
    "events",
    "exec",
    "features",
    "help",
    "info",
    "init",
    "kill",
    "list",
    "mounts",
    "pause",
    "ps",
    "restore",
    "resume",
    "run",
    "spec",
    "start",
    "state",
    "update",
];

impl Invocation {
    /// Parses the arguments after the program's name.
    pub fn parse(args: &[OsString]) -> Self {
        let (command, other_candidate) = command(args);
        let before = command.map_or(args.len(), |at| at + 1);
        let mut invocation = Invocation {
            command: command.map(|at| args[at].clone()),
            other_candidate: other_candidate.map(|at| args[at].clone()),
            before,
            args: args.to_vec(),
            ..Invocation::default()
        };
        let mut rest = &args[..before];
        while let Some((lexed, after)) = lex(rest, &GLOBAL) {
            if let LexedArgument::Option(flag) = lexed {
                invocation.note(&flag);
            }
            rest = after;
        }
        if invocation.makes_container() {
            // `container_call` returns the error.
            let _ = ContainerArguments::read(&args[before..], |flag| invocation.note(flag));
        }
        invocation
    }

    /// Records the options that set the runtime's log.
    fn note(&mut self, flag: &ParsedOption<'_>) {
        match (flag.name, flag.value) {
            (b"log" | b"l", Some(value)) => self.log = log_file(value),
            (b"log-format", Some(b"json")) => self.log_format = LogFormat::Json,
            (b"log-format", Some(_)) => self.log_format = LogFormat::Text,
            // As runc reads it; crun accepts no value.
            (b"debug", value) => {
                self.debug =
                    matches!(value, None | Some(b"1" | b"t" | b"T" | b"true" | b"True" | b"TRUE"));
            }
            _ => {}
        }
    }

    /// Returns whether the command creates a container from a bundle.
    pub fn makes_container(&self) -> bool {
        let makes =
            |name: &OsString| ["create", "run", "restore"].iter().any(|known| name == known);
        (self.command.iter().any(makes) || self.other_candidate.iter().any(makes))
            && !asks_for_help(&self.args[self.before..])
    }

    /// Returns whether the command restores a container from a checkpoint.
    pub fn restores(&self) -> bool {
        self.command.as_ref().is_some_and(|command| command == "restore")
    }

    /// Returns the configuration that the runtime will open in this working directory, and arguments
    /// with which it cannot open another one; `None` for a command that creates no container.
    pub fn container_call(
        &self,
        working_directory: &Path,
    ) -> Result<Option<ContainerCall>, ArgumentError> {
        if !self.makes_container() {
            return Ok(None);
        }
        if let (Some(command), Some(other_candidate)) = (&self.command, &self.other_candidate) {
            let [command, other_candidate] =
                [command, other_candidate].map(|it| it.to_string_lossy().into_owned());
            return Err(ArgumentError::Command { command, other_candidate });
        }
        let (before, after) = self.args.split_at(self.before);
        ContainerArguments::read(after, |_| {})?.call(before, after, working_directory).map(Some)
    }
}

/// Returns the index of the command, and of another argument that could be the command: an unknown option
/// may take the argument after it as its value.
fn command(args: &[OsString]) -> (Option<usize>, Option<usize>) {
    let mut candidates = BTreeSet::new();
    let mut pending = BTreeSet::from([0]);
    while let Some(at) = pending.pop_first() {
        let Some((lexed, rest)) = args.get(at..).and_then(|args| lex(args, &GLOBAL)) else {
            continue;
        };
        let next = args.len() - rest.len();
        match lexed {
            LexedArgument::Operand(_) => {
                candidates.insert(at);
            }
            LexedArgument::Separator if rest.is_empty() => {}
            LexedArgument::Separator => {
                candidates.insert(next);
            }
            LexedArgument::Option(flag) => {
                pending.insert(next);
                if flag.spelling == OptionSpelling::Unknown && flag.value.is_none() {
                    pending.insert(next + 1);
                }
            }
        }
    }
    let is_command = |&&at: &&usize| COMMANDS.iter().any(|known| args[at] == *known);
    let mut known = candidates.iter().filter(is_command).copied();
    match known.next() {
        Some(first) => (Some(first), known.next()),
        None => (candidates.first().copied(), None),
    }
}

/// Returns the file of `--log`. For crun the value may also be `file:PATH`, or `journald:ID` or
/// `syslog:ID`, which are no files.
fn log_file(value: &[u8]) -> Option<PathBuf> {
    if value.starts_with(b"journald:") || value.starts_with(b"syslog:") {
        return None;
    }
    Some(path(value.strip_prefix(b"file:").unwrap_or(value)))
}

fn path(value: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(value))
}

#[cfg(test)]
mod tests;
