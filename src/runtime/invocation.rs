//! Reading a runtime's command line without knowing all of it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::LogFormat;

/// What an engine asks of a runtime, as far as it matters before the runtime is called.
///
/// The [command line] is no standard but common to runc, crun and youki. Options are read as runc
/// does: one dash or two, the value after `=` or in the next argument.
///
/// [command line]: https://github.com/opencontainers/runtime-tools/blob/master/docs/command-line-interface.md
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Invocation {
    /// The command, such as `create`; none for `--version`.
    pub command: Option<OsString>,
    /// The bundle directory, where the command has one.
    pub bundle: Option<PathBuf>,
    /// The configuration file, if it is not the bundle's `config.json` (crun's `--config`).
    pub config: Option<PathBuf>,
    pub log: Option<PathBuf>,
    pub log_format: LogFormat,
    /// Whether debug messages are logged.
    pub debug: bool,
}

/// Options before the command that take a value, of runc, crun and youki.
const GLOBAL_VALUES: [&str; 7] =
    ["log", "log-format", "log-level", "root", "criu", "rootless", "cgroup-manager"];

/// Options of `create` and `run` that take a value.
const COMMAND_VALUES: [&str; 8] =
    ["bundle", "b", "config", "f", "console-socket", "pid-file", "preserve-fds", "pidfd-socket"];

impl Invocation {
    /// Reads the arguments that follow the program's name.
    pub fn parse(args: &[OsString]) -> Self {
        let mut invocation = Invocation::default();
        let mut rest = args;
        while let Some((option, after)) = next_option(rest, &GLOBAL_VALUES) {
            match (option.name, option.value) {
                (b"log", Some(value)) => invocation.log = Some(path(value)),
                (b"log-format", Some(b"json")) => invocation.log_format = LogFormat::Json,
                (b"log-format", Some(_)) => invocation.log_format = LogFormat::Text,
                (b"debug", None) => invocation.debug = true,
                _ => {}
            }
            rest = after;
        }
        let Some((command, mut rest)) = rest.split_first() else { return invocation };
        invocation.command = Some(command.clone());
        while let Some(first) = rest.first() {
            match next_option(rest, &COMMAND_VALUES) {
                Some((option, after)) => {
                    match (option.name, option.value) {
                        (b"bundle" | b"b", Some(value)) => invocation.bundle = Some(path(value)),
                        (b"config" | b"f", Some(value)) => invocation.config = Some(path(value)),
                        _ => {}
                    }
                    rest = after;
                }
                None if first == "--" => break,
                // crun takes options after the container's name too.
                None => rest = &rest[1..],
            }
        }
        invocation
    }

    /// Returns whether the command makes a container from a bundle.
    pub fn makes_container(&self) -> bool {
        self.command.as_ref().is_some_and(|command| command == "create" || command == "run")
    }

    /// Returns the configuration the runtime will read; without `--bundle` the working directory is
    /// the bundle.
    pub fn config_path(&self) -> PathBuf {
        let bundle = self.bundle.as_deref().unwrap_or(Path::new("."));
        bundle.join(self.config.as_deref().unwrap_or(Path::new("config.json")))
    }
}

struct Flag<'a> {
    name: &'a [u8],
    value: Option<&'a [u8]>,
}

/// Splits an option off the front; `None` if there is none.
fn next_option<'a>(
    args: &'a [OsString],
    with_value: &[&str],
) -> Option<(Flag<'a>, &'a [OsString])> {
    let (first, rest) = args.split_first()?;
    let dashed = first.as_bytes().strip_prefix(b"-")?;
    let name = dashed.strip_prefix(b"-").unwrap_or(dashed);
    if name.is_empty() {
        return None;
    }
    if let Some(equals) = name.iter().position(|&b| b == b'=') {
        let flag = Flag { name: &name[..equals], value: Some(&name[equals + 1..]) };
        return Some((flag, rest));
    }
    if with_value.iter().any(|known| known.as_bytes() == name) {
        let value = rest.first().map(|value| value.as_bytes());
        return Some((Flag { name, value }, rest.get(1..).unwrap_or_default()));
    }
    Some((Flag { name, value: None }, rest))
}

fn path(value: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(OsStr::from_bytes(value).as_bytes().to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Invocation {
        Invocation::parse(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn reads_what_containerd_calls() {
        let found = parse(
            "--root /run/docker/runtime-runc/moby --log /run/c/log.json --log-format json --systemd-cgroup create --bundle /run/c --pid-file /run/c/init.pid id",
        );
        assert!(found.makes_container());
        assert_eq!(found.config_path(), Path::new("/run/c/config.json"));
        assert_eq!(found.log.as_deref(), Some(Path::new("/run/c/log.json")));
        assert_eq!(found.log_format, LogFormat::Json);
    }

    #[test]
    fn reads_all_ways_to_write_an_option() {
        for line in [
            "create -b /b id",
            "create --bundle=/b id",
            "create -bundle /b id",
            "run id -b /b",
            "--debug run --detach -b=/b id",
        ] {
            assert_eq!(parse(line).config_path(), Path::new("/b/config.json"), "{line}");
        }
    }

    #[test]
    fn a_value_is_not_taken_for_the_command() {
        let found = parse("--root create --log run state id");
        assert_eq!(found.command.as_deref(), Some(OsStr::new("state")));
        assert!(!found.makes_container());
        assert_eq!(parse("create --pid-file --bundle id").bundle, None);
    }

    #[test]
    fn the_working_directory_is_the_default_bundle() {
        assert_eq!(parse("run id").config_path(), Path::new("./config.json"));
        assert_eq!(
            parse("create -b /b -f other.json id").config_path(),
            Path::new("/b/other.json")
        );
        assert_eq!(parse("--version").command, None);
    }
}
