//! Parses a single option of a runtime's command line.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// The known options before or after the command, without dashes.
pub struct KnownOptions {
    /// Options with a value.
    pub values: &'static [&'static str],
    pub flags: &'static [&'static str],
}

/// Options before the command, of runc, crun, youki and their forks.
pub const GLOBAL: KnownOptions = KnownOptions {
    values: &[
        "log",
        "log-format",
        "log-level",
        "root",
        "criu",
        "rootless",
        "cgroup-manager",
        "l",
        "r",
    ],
    flags: &[
        "debug",
        "systemd-cgroup",
        "systemd-log",
        "s",
        "version",
        "v",
        "V",
        "help",
        "h",
        "?",
        "usage",
    ],
};

/// Options of `create`, `run` and `restore`; since version 1.4 runc accepts global options here too.
pub const COMMAND: KnownOptions = KnownOptions {
    values: &[
        "bundle",
        "b",
        "config",
        "f",
        "console-socket",
        "c",
        "pid-file",
        "p",
        "pidfd-socket",
        "preserve-fds",
        "user-log",
        "image-path",
        "work-path",
        "manage-cgroups-mode",
        "network-lock",
        "empty-ns",
        "lsm-profile",
        "lsm-mount-context",
        "log",
        "log-format",
        "log-level",
        "root",
        "criu",
        "rootless",
        "cgroup-manager",
    ],
    flags: &[
        "detach",
        "d",
        "keep",
        "no-pivot",
        "no-subreaper",
        "no-new-keyring",
        "tcp-established",
        "tcp-close",
        "ext-unix-sk",
        "shell-job",
        "file-locks",
        "auto-dedup",
        "lazy-pages",
        "debug",
        "systemd-cgroup",
        "help",
        "h",
    ],
};

/// The first token of a command line.
pub enum LexedArgument<'a> {
    Operand(&'a OsStr),
    /// `--`: only operands follow.
    Separator,
    Option(ParsedOption<'a>),
}

/// An option with its value.
pub struct ParsedOption<'a> {
    pub name: &'a [u8],
    pub value: Option<&'a [u8]>,
    pub spelling: OptionSpelling,
    /// The one or two arguments of the option and its value.
    pub raw: &'a [OsString],
}

/// Agreement of runtimes on the parsing of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionSpelling {
    /// All runtimes parse the option the same way.
    Unambiguous,
    /// The option is known, but runtimes parse `-bundle X`, `-b=X` and `-bX` differently: runc uses Go's flag
    /// syntax, crun `getopt_long`, and youki clap.
    Ambiguous,
    /// The option is unknown, so that the next argument may be its value.
    Unknown,
}

impl ParsedOption<'_> {
    /// Returns the option in a form that all runtimes parse the same way.
    pub fn to_canonical(&self) -> Vec<OsString> {
        if self.spelling != OptionSpelling::Ambiguous || self.name.len() == 1 {
            return self.raw.to_vec();
        }
        let dashed = [b"--", self.name].concat();
        vec![
            OsStr::from_bytes(&match self.value {
                Some(value) => [&dashed, b"=".as_slice(), value].concat(),
                None => dashed,
            })
            .to_owned(),
        ]
    }
}

/// Splits the first token off a command line; `None` at its end.
pub fn lex<'a>(
    args: &'a [OsString],
    known: &KnownOptions,
) -> Option<(LexedArgument<'a>, &'a [OsString])> {
    let (first, rest) = args.split_first()?;
    let operand = Some((LexedArgument::Operand(first), rest));
    let Some(dashed) = first.as_bytes().strip_prefix(b"-") else { return operand };
    let (text, is_long) = match dashed.strip_prefix(b"-") {
        Some([]) => return Some((LexedArgument::Separator, rest)),
        Some(text) => (text, true),
        None if dashed.is_empty() => return operand,
        None => (dashed, false),
    };
    let flag = option(args, text, is_long, known);
    let rest = &args[flag.raw.len()..];
    Some((LexedArgument::Option(flag), rest))
}

/// Parses the first argument as an option; `text` is the argument without its dashes.
fn option<'a>(
    args: &'a [OsString],
    text: &'a [u8],
    is_long: bool,
    known: &KnownOptions,
) -> ParsedOption<'a> {
    let has = |names: &[&str], name: &[u8]| names.iter().any(|known| known.as_bytes() == name);
    let (name, attached) = match text.iter().position(|&b| b == b'=') {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let is_usual = is_long == (name.len() > 1);
    let spelling =
        |is_plain| if is_plain { OptionSpelling::Unambiguous } else { OptionSpelling::Ambiguous };
    let raw = &args[..1];
    if has(known.values, name) {
        if attached.is_some() {
            return ParsedOption {
                name,
                value: attached,
                spelling: spelling(is_usual && is_long),
                raw,
            };
        }
        let value = args.get(1).map(|value| value.as_bytes());
        // runc reorders options before operands, and misparses a value that begins with a dash.
        let is_plain = is_usual && value.is_some_and(|value| !value.starts_with(b"-"));
        let raw = &args[..args.len().min(2)];
        return ParsedOption { name, value, spelling: spelling(is_plain), raw };
    }
    if has(known.flags, name) {
        return ParsedOption { name, value: attached, spelling: spelling(is_usual), raw };
    }
    if !is_long && has(known.values, &text[..1]) {
        return ParsedOption {
            name: &text[..1],
            value: Some(&text[1..]),
            spelling: OptionSpelling::Ambiguous,
            raw,
        };
    }
    ParsedOption { name, value: attached, spelling: OptionSpelling::Unknown, raw }
}
