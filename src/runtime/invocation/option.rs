//! One option of a runtime's command line.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// The options that are known at one place of the command line, without dashes.
pub struct Known {
    /// Those that take a value.
    pub values: &'static [&'static str],
    pub flags: &'static [&'static str],
}

/// Options before the command, of runc, crun, youki and their forks.
pub const GLOBAL: Known = Known {
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

/// Options of `create`, `run` and `restore`; runc takes those before the command here too since 1.4.
pub const COMMAND: Known = Known {
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

/// What stands first on a command line.
pub enum Lexed<'a> {
    Operand(&'a OsStr),
    /// `--`: only operands follow.
    Separator,
    Option(Flag<'a>),
}

/// An option with its value.
pub struct Flag<'a> {
    pub name: &'a [u8],
    pub value: Option<&'a [u8]>,
    pub spelling: Spelling,
    /// The arguments that it takes, one or two.
    pub raw: &'a [OsString],
}

/// Whether runtimes agree on how an option is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spelling {
    /// They do.
    Plain,
    /// The option is known, but `-bundle X`, `-b=X` and `-bX` are each read in two ways: runc has Go's
    /// options, crun those of `getopt_long`, and youki those of clap.
    Odd,
    /// The option is not known, and so neither whether the next argument is its value.
    Unknown,
}

impl Flag<'_> {
    /// Returns the option as all runtimes read it.
    pub fn canonical(&self) -> Vec<OsString> {
        if self.spelling != Spelling::Odd || self.name.len() == 1 {
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

/// Splits what stands first off a command line; `None` at its end.
pub fn lex<'a>(args: &'a [OsString], known: &Known) -> Option<(Lexed<'a>, &'a [OsString])> {
    let (first, rest) = args.split_first()?;
    let operand = Some((Lexed::Operand(first), rest));
    let Some(dashed) = first.as_bytes().strip_prefix(b"-") else { return operand };
    let (text, is_long) = match dashed.strip_prefix(b"-") {
        Some([]) => return Some((Lexed::Separator, rest)),
        Some(text) => (text, true),
        None if dashed.is_empty() => return operand,
        None => (dashed, false),
    };
    let flag = option(args, text, is_long, known);
    let rest = &args[flag.raw.len()..];
    Some((Lexed::Option(flag), rest))
}

/// Reads the option that the first argument is, of which `text` is left without its dashes.
fn option<'a>(args: &'a [OsString], text: &'a [u8], is_long: bool, known: &Known) -> Flag<'a> {
    let has = |names: &[&str], name: &[u8]| names.iter().any(|known| known.as_bytes() == name);
    let (name, attached) = match text.iter().position(|&b| b == b'=') {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let is_usual = is_long == (name.len() > 1);
    let spelling = |is_plain| if is_plain { Spelling::Plain } else { Spelling::Odd };
    let raw = &args[..1];
    if has(known.values, name) {
        if attached.is_some() {
            return Flag { name, value: attached, spelling: spelling(is_usual && is_long), raw };
        }
        let value = args.get(1).map(|value| value.as_bytes());
        // runc puts options before operands, and takes such a value for one of the two.
        let is_plain = is_usual && value.is_some_and(|value| !value.starts_with(b"-"));
        let raw = &args[..args.len().min(2)];
        return Flag { name, value, spelling: spelling(is_plain), raw };
    }
    if has(known.flags, name) {
        return Flag { name, value: attached, spelling: spelling(is_usual), raw };
    }
    if !is_long && has(known.values, &text[..1]) {
        return Flag { name: &text[..1], value: Some(&text[1..]), spelling: Spelling::Odd, raw };
    }
    Flag { name, value: attached, spelling: Spelling::Unknown, raw }
}
