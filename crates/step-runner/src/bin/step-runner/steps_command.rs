//! The command lines with which gitlab-runner calls its helper program:
//! `gitlab-runner-helper steps bootstrap|serve|proxy`.
//!
//! Options are parsed like in GitLab's program: those of this program precede the first argument,
//! and all later words belong to the command to run.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_cli::help;
use step_runner::gitlab_helper::NAMES;

use crate::cli::{StepRunnerCli, StepRunnerCommand};
use crate::error::StepRunnerError;
use crate::{bootstrap_file, gitlab_program, proxy, report, serve};

/// Environment variable in which gitlab-runner repeats the arguments of this program, as Base64 of
/// a JSON array, because entry points of images such as `sh -c` drop them.
pub const ARGUMENTS: &str = "_GITLAB_RUNNER_HELPER_NATIVE_STEPS_ARGV";

const USAGE: &str = "\
Usage:
  gitlab-runner-helper steps bootstrap FILE        Copy this program to FILE
  gitlab-runner-helper steps serve [--socket PATH] [COMMAND...]
                                                   Accept jobs; run COMMAND once stdin has data
  gitlab-runner-helper steps proxy --socket PATH   Forward bytes to the server
  gitlab-runner-helper steps COMMAND               Any command of step-runner, for example doctor
  gitlab-runner-helper --version                   Print versions

All other commands are passed to GitLab's own program, gitlab-runner-helper.gitlab in the same directory.
";

/// A parsed command line: that of `step-runner`, or one of GitLab's helper program.
#[derive(Debug, PartialEq, Eq)]
pub enum CommandLine {
    /// A command line of `step-runner`: the name of the program and its arguments.
    Own(Vec<OsString>),
    /// `steps bootstrap`
    Bootstrap(PathBuf),
    /// `steps serve`
    Serve { socket: Option<PathBuf>, command: Vec<OsString> },
    /// `steps proxy`
    Proxy { socket: Option<PathBuf> },
    /// `--version` of GitLab's helper program.
    Version,
    /// `steps --help`
    Help,
    /// Invalid arguments, with the error message of GitLab's program.
    Wrong(String),
    /// A command that only GitLab's helper program has.
    Delegate,
}

/// Returns the name and the arguments of this program; if the entry point of an image dropped the
/// arguments, those in the variable [`ARGUMENTS`].
pub fn arguments() -> Vec<OsString> {
    let words: Vec<_> = env::args_os().collect();
    recover_arguments(words, env::var_os(ARGUMENTS).as_deref())
}

/// Adds the arguments in `variable`, the value of [`ARGUMENTS`], if the entry point of an image
/// dropped them.
fn recover_arguments(mut words: Vec<OsString>, variable: Option<&OsStr>) -> Vec<OsString> {
    if words.len() == 1 && words.first().is_some_and(|name| is_gitlab_name(name)) {
        let json = variable.and_then(|text| BASE64_STANDARD.decode(text.as_bytes()).ok());
        let given = json.and_then(|json| serde_json::from_slice::<Vec<String>>(&json).ok());
        words.extend(given.unwrap_or_default().into_iter().map(OsString::from));
    }
    words
}

/// Returns whether the program is called by a name of GitLab's helper program.
fn is_gitlab_name(called: &OsStr) -> bool {
    let name = Path::new(called).file_name();
    name.is_some_and(|name| NAMES.iter().any(|one| name == *one))
}

impl CommandLine {
    /// Parses a command line that starts with the name of the program.
    pub fn read(words: Vec<OsString>) -> Self {
        let Some((name, arguments)) = words.split_first() else { return CommandLine::Own(words) };
        let is_gitlab = is_gitlab_name(name);
        let arguments = if is_gitlab { skip_global_options(arguments) } else { arguments };
        match arguments.split_first() {
            Some((first, rest)) if first == "steps" => CommandLine::steps(rest),
            _ if !is_gitlab => CommandLine::Own(words),
            Some((first, _)) if first == "--version" || first == "-v" => CommandLine::Version,
            _ => CommandLine::Delegate,
        }
    }

    fn steps(words: &[OsString]) -> Self {
        let Some((command, words)) = words.split_first() else { return CommandLine::Help };
        let takes_socket = command == "serve" || command == "proxy";
        if !takes_socket && command != "bootstrap" {
            let is_help = ["help", "h", "--help", "-h"].iter().any(|help| command == *help);
            if is_help {
                return CommandLine::Help;
            }
            let name = OsString::from("step-runner");
            return CommandLine::Own(
                [name, command.clone()].into_iter().chain(words.to_vec()).collect(),
            );
        }
        let (socket, rest) = match options(words, takes_socket) {
            Ok(ParsedOptions::Given { socket, rest }) => (socket, rest),
            Ok(ParsedOptions::Help) => return CommandLine::Help,
            Err(text) => return CommandLine::Wrong(text),
        };
        match command.as_bytes() {
            b"serve" => CommandLine::Serve { socket, command: rest.to_vec() },
            b"proxy" => CommandLine::Proxy { socket },
            _ => match rest.first().filter(|file| !file.is_empty()) {
                Some(file) => CommandLine::Bootstrap(file.into()),
                None => CommandLine::Wrong("destination argument must be provided".to_owned()),
            },
        }
    }

    /// Runs a command of GitLab's helper program.
    pub fn run(self, words: &[OsString]) -> Result<CliExit, StepRunnerError> {
        match self {
            CommandLine::Own(_) => unreachable!("the command line of ours is read elsewhere"),
            CommandLine::Wrong(text) => Err(StepRunnerError::Usage(text)),
            CommandLine::Help => report::print(USAGE),
            CommandLine::Version => gitlab_program::print_version(words),
            CommandLine::Delegate => {
                let has_command = words.len() > 1;
                match gitlab_program::execute(words) {
                    // Without a command GitLab's program prints its usage.
                    StepRunnerError::NoOriginal { .. } if !has_command => report::print(USAGE),
                    error => Err(error),
                }
            }
            CommandLine::Bootstrap(file) => bootstrap_file::run(&file),
            CommandLine::Proxy { socket } => {
                let StepRunnerCommand::Proxy(args) = own_command("proxy", socket, &[]) else {
                    unreachable!("it is the command that was named")
                };
                proxy::run(&args)
            }
            CommandLine::Serve { socket, command } => {
                let StepRunnerCommand::Serve(args) = own_command("serve", socket, &command) else {
                    unreachable!("it is the command that was named")
                };
                serve::run(args.for_gitlab_runner())
            }
        }
    }
}

/// Returns a command of `step-runner` with the given socket and command to run, and the defaults of
/// its other options.
fn own_command(name: &str, socket: Option<PathBuf>, command: &[OsString]) -> StepRunnerCommand {
    let mut words: Vec<OsString> = vec!["step-runner".into(), name.into()];
    if let Some(socket) = socket {
        let mut word = OsString::from("--socket=");
        word.push(socket);
        words.push(word);
    }
    if !command.is_empty() {
        words.push("--".into());
        words.extend_from_slice(command);
    }
    help::parse_from::<StepRunnerCli>(words).command
}

enum ParsedOptions<'a> {
    Given { socket: Option<PathBuf>, rest: &'a [OsString] },
    Help,
}

/// Parses the options before the first argument like Go's package flag: with one dash or two, with the value
/// after `=` or in the next word, up to `--`.
fn options(mut words: &[OsString], takes_socket: bool) -> Result<ParsedOptions<'_>, String> {
    let mut socket = None;
    while let Some((word, rest)) = words.split_first() {
        let bytes = word.as_bytes();
        if bytes == b"--" {
            words = rest;
            break;
        }
        let Some(option) = bytes.strip_prefix(b"-").filter(|option| !option.is_empty()) else {
            break;
        };
        let option = option.strip_prefix(b"-").unwrap_or(option);
        let mut parts = option.splitn(2, |&byte| byte == b'=');
        let (name, value) = (parts.next().unwrap_or_default(), parts.next());
        words = rest;
        match name {
            b"socket" if takes_socket => {
                let value = match value {
                    Some(value) => OsString::from_vec(value.to_vec()),
                    None => match words.split_first() {
                        Some((value, rest)) => {
                            words = rest;
                            value.clone()
                        }
                        None => return Err("flag needs an argument: -socket".to_owned()),
                    },
                };
                socket = Some(PathBuf::from(value)).filter(|path| !path.as_os_str().is_empty());
            }
            b"help" | b"h" => return Ok(ParsedOptions::Help),
            _ => {
                let name = String::from_utf8_lossy(name);
                return Err(format!("flag provided but not defined: -{name}"));
            }
        }
    }
    Ok(ParsedOptions::Given { socket, rest: words })
}

/// Skips the global options of GitLab's helper program, which precede its command.
fn skip_global_options(mut words: &[OsString]) -> &[OsString] {
    while let Some((word, rest)) = words.split_first() {
        let text = word.as_bytes();
        let option = text.strip_prefix(b"--").or_else(|| text.strip_prefix(b"-"));
        words = match option {
            Some(b"debug") => rest,
            Some(b"log-level" | b"l" | b"log-format") => rest.get(1..).unwrap_or_default(),
            Some(option) if option.starts_with(b"log-") || option.starts_with(b"l=") => rest,
            Some(option) if option.starts_with(b"debug=") => rest,
            _ => return words,
        };
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to_words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    fn read(text: &str) -> CommandLine {
        CommandLine::read(to_words(text))
    }

    fn serve(socket: Option<&str>, command: &[&str]) -> CommandLine {
        let command = command.iter().map(OsString::from).collect();
        CommandLine::Serve { socket: socket.map(PathBuf::from), command }
    }

    #[test]
    fn runner_command_lines_are_parsed_under_any_program_name() {
        for name in ["gitlab-runner-helper", "/usr/bin/gitlab-runner", "step-runner", "/opt/x"] {
            let read = |rest: &str| read(&format!("{name} steps {rest}"));
            assert_eq!(read("serve"), serve(None, &[]));
            assert_eq!(
                read("bootstrap /opt/gitlab-runner/gitlab-runner-helper"),
                CommandLine::Bootstrap("/opt/gitlab-runner/gitlab-runner-helper".into())
            );
            for socket in ["--socket /s", "-socket /s", "--socket=/s", "-socket=/s"] {
                assert_eq!(
                    read(&format!("proxy {socket}")),
                    CommandLine::Proxy { socket: Some("/s".into()) }
                );
                assert_eq!(read(&format!("serve {socket}")), serve(Some("/s"), &[]));
            }
        }
    }

    #[test]
    fn options_after_the_first_argument_belong_to_the_command() {
        let is_served = |rest: &str, socket, command: &[&str]| {
            assert_eq!(read(&format!("x steps serve {rest}")), serve(socket, command), "{rest}");
        };
        is_served("sh -c true", None, &["sh", "-c", "true"]);
        is_served("sh --socket /s", None, &["sh", "--socket", "/s"]);
        is_served("--socket /s sh -c true", Some("/s"), &["sh", "-c", "true"]);
        is_served("-- sh -c -- x", None, &["sh", "-c", "--", "x"]);
        is_served("--socket /s -- -x", Some("/s"), &["-x"]);
        is_served("- x", None, &["-", "x"]);
        is_served("--socket= sh", None, &["sh"]);
    }

    #[test]
    fn invalid_options_are_reported_in_the_words_of_go() {
        let is_wrong = |rest: &str, text: &str| {
            assert_eq!(read(&format!("x steps {rest}")), CommandLine::Wrong(text.to_owned()));
        };
        is_wrong("serve --wrong x", "flag provided but not defined: -wrong");
        is_wrong("bootstrap --socket x", "flag provided but not defined: -socket");
        is_wrong("proxy --socket", "flag needs an argument: -socket");
        is_wrong("bootstrap", "destination argument must be provided");
        for help in ["x steps", "x steps --help", "x steps serve --help", "x steps proxy -h"] {
            assert_eq!(read(help), CommandLine::Help);
        }
    }

    #[test]
    fn program_name_decides_who_handles_other_commands() {
        let own = |text: &str| CommandLine::Own(to_words(text));
        assert_eq!(read("step-runner serve --grace 1s"), own("step-runner serve --grace 1s"));
        assert_eq!(read("step-runner --version"), own("step-runner --version"));
        assert_eq!(read("gitlab-runner steps doctor -x"), own("step-runner doctor -x"));
        for rest in ["artifacts-uploader --id 1", "cache-init /c", "serve", "--help"] {
            assert_eq!(read(&format!("gitlab-runner-helper {rest}")), CommandLine::Delegate);
        }
        assert_eq!(read("gitlab-runner-helper"), CommandLine::Delegate);
        assert_eq!(read("gitlab-runner -v"), CommandLine::Version);
        assert_eq!(read("/x/gitlab-runner --version"), CommandLine::Version);
    }

    #[test]
    fn global_options_of_gitlabs_program_may_come_first() {
        for options in
            ["--debug", "--log-level debug", "-l debug", "--log-format=json --debug=true"]
        {
            assert_eq!(read(&format!("gitlab-runner {options} steps serve")), serve(None, &[]));
            assert_eq!(read(&format!("gitlab-runner {options} run")), CommandLine::Delegate);
        }
    }

    #[test]
    fn arguments_dropped_by_an_entry_point_come_from_the_variable() {
        let encoded = BASE64_STANDARD.encode(r#"["steps","serve","sh","-c","a b"]"#);
        let encoded = Some(OsStr::new(&encoded));
        let name = || to_words("/opt/gitlab-runner/gitlab-runner-helper");
        let got = recover_arguments(name(), encoded);
        assert_eq!(got[1..], ["steps", "serve", "sh", "-c", "a b"].map(OsString::from));
        // Existing arguments take precedence, and our own name ignores the variable.
        let given = to_words("gitlab-runner-helper steps proxy");
        assert_eq!(recover_arguments(given.clone(), encoded), given);
        assert_eq!(recover_arguments(to_words("step-runner"), encoded), to_words("step-runner"));
        for wrong in ["", "%", "bnVsbA==", "e30="] {
            assert_eq!(recover_arguments(name(), Some(OsStr::new(wrong))), name(), "{wrong}");
        }
        assert_eq!(recover_arguments(name(), None), name());
    }
}
