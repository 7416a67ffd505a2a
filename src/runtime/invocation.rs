//! Reading a runtime's command line without knowing all of it.

mod container_call;
mod option;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::LogFormat;
use crate::sys::fs::PathError;
use container_call::{Arguments, asks_for_help};
use option::{Flag, GLOBAL, Lexed, Spelling, lex};

pub use container_call::ContainerCall;

/// What an engine asks of a runtime, as far as it matters before the runtime is called.
///
/// The [command line] is no standard but common to runc, crun and youki, each of which reads it with
/// another library. Where those differ, [`Self::container_call`] returns arguments that have one
/// reading, or an error.
///
/// [command line]: https://github.com/opencontainers/runtime-tools/blob/master/docs/command-line-interface.md
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Invocation {
    /// The command, such as `create`; none for `--version`.
    pub command: Option<OsString>,
    pub log: Option<PathBuf>,
    pub log_format: LogFormat,
    /// Whether debug messages are logged.
    pub debug: bool,
    /// All arguments.
    args: Vec<OsString>,
    /// How many arguments there are up to the command.
    before: usize,
    /// The argument that could be the command as well.
    rival: Option<OsString>,
}

/// A command line that runtimes read differently, so that another configuration could be opened than
/// the one that hooks were injected into.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArgumentError {
    #[error(
        "ambiguous option {argument:?}: runtimes differ in what it means; write --bundle=DIR or \
         --config=FILE, and every other option by itself"
    )]
    Ambiguous { argument: String },
    #[error(
        "ambiguous command: {command:?} or {rival:?}, depending on whether the unknown option before \
         it takes a value; write it as --option=VALUE"
    )]
    Command { command: String, rival: String },
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
    /// Reads the arguments that follow the program's name.
    pub fn parse(args: &[OsString]) -> Self {
        let (command, rival) = command(args);
        let before = command.map_or(args.len(), |at| at + 1);
        let mut invocation = Invocation {
            command: command.map(|at| args[at].clone()),
            rival: rival.map(|at| args[at].clone()),
            before,
            args: args.to_vec(),
            ..Invocation::default()
        };
        let mut rest = &args[..before];
        while let Some((lexed, after)) = lex(rest, &GLOBAL) {
            if let Lexed::Option(flag) = lexed {
                invocation.note(&flag);
            }
            rest = after;
        }
        if invocation.makes_container() {
            // What is wrong with them is an error of `container_call`.
            let _ = Arguments::read(&args[before..], |flag| invocation.note(flag));
        }
        invocation
    }

    /// Keeps where and how the runtime logs.
    fn note(&mut self, flag: &Flag<'_>) {
        match (flag.name, flag.value) {
            (b"log" | b"l", Some(value)) => self.log = log_file(value),
            (b"log-format", Some(b"json")) => self.log_format = LogFormat::Json,
            (b"log-format", Some(_)) => self.log_format = LogFormat::Text,
            (b"debug", None) => self.debug = true,
            _ => {}
        }
    }

    /// Returns whether the command makes a container from a bundle.
    pub fn makes_container(&self) -> bool {
        let makes =
            |name: &OsString| ["create", "run", "restore"].iter().any(|known| name == known);
        (self.command.iter().any(makes) || self.rival.iter().any(makes))
            && !asks_for_help(&self.args[self.before..])
    }

    /// Returns whether the command brings back a container that was checkpointed.
    pub fn restores(&self) -> bool {
        self.command.as_ref().is_some_and(|command| command == "restore")
    }

    /// Returns the configuration that the runtime will open in this working directory, and the
    /// arguments with which it cannot open another one; `None` for a command that makes no container.
    pub fn container_call(
        &self,
        working_directory: &Path,
    ) -> Result<Option<ContainerCall>, ArgumentError> {
        if !self.makes_container() {
            return Ok(None);
        }
        if let (Some(command), Some(rival)) = (&self.command, &self.rival) {
            let [command, rival] = [command, rival].map(|it| it.to_string_lossy().into_owned());
            return Err(ArgumentError::Command { command, rival });
        }
        let (before, after) = self.args.split_at(self.before);
        Arguments::read(after, |_| {})?.call(before, after, working_directory).map(Some)
    }
}

/// Returns where the command stands, and another argument that could be it: an option that is not
/// known may take the argument after it as its value.
fn command(args: &[OsString]) -> (Option<usize>, Option<usize>) {
    let mut candidates = BTreeSet::new();
    let mut pending = BTreeSet::from([0]);
    while let Some(at) = pending.pop_first() {
        let Some((lexed, rest)) = args.get(at..).and_then(|args| lex(args, &GLOBAL)) else {
            continue;
        };
        let next = args.len() - rest.len();
        match lexed {
            Lexed::Operand(_) => {
                candidates.insert(at);
            }
            Lexed::Separator if rest.is_empty() => {}
            Lexed::Separator => {
                candidates.insert(next);
            }
            Lexed::Option(flag) => {
                pending.insert(next);
                if flag.spelling == Spelling::Unknown && flag.value.is_none() {
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

/// Returns the file of `--log`, which to crun may be `file:PATH`, `journald:ID` or `syslog:ID`.
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
