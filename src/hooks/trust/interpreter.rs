//! The interpreter of a script: the program in its first line and, if that is `env`, the program
//! that `env` finds.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

/// Number of bytes of a script in which the kernel looks for its interpreter.
const MAX_SHEBANG_BYTES: u64 = 256;

/// Search path of the C library if `PATH` is not set.
pub const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The interpreter and its argument in the first line of a script.
#[derive(Debug)]
pub struct ScriptInterpreter {
    pub program: PathBuf,
    /// The rest of the line, which the kernel passes on as one argument.
    argument: Vec<u8>,
}

/// The program that `env` looks up, and the search path.
#[derive(Debug, PartialEq, Eq)]
pub struct EnvLookup {
    pub name: PathBuf,
    pub path: OsString,
}

/// Returns the interpreter in the first line of a script; `None` if the program is no script.
pub fn of(program: &Path) -> io::Result<Option<ScriptInterpreter>> {
    Ok(head(program)?.and_then(|head| parse(&head)))
}

/// Returns the start of a program, by which the kernel knows its format; `None` if it is no file that
/// this user can read.
pub fn head(program: &Path) -> io::Result<Option<Vec<u8>>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match openat(CWD, program, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        // The interpreter of a script that may be run but not read cannot read it either; the other
        // errors come from devices and sockets, which are not run.
        Err(Errno::ACCESS | Errno::NXIO | Errno::NODEV) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let mut head = Vec::new();
    file.take(MAX_SHEBANG_BYTES).read_to_end(&mut head)?;
    Ok(Some(head))
}

/// Returns the interpreter in the start of a script.
pub fn parse(head: &[u8]) -> Option<ScriptInterpreter> {
    let line = head.strip_prefix(b"#!")?;
    let line = line.split(|b| *b == b'\n').next().unwrap_or_default().trim_ascii_start();
    let end = line.iter().position(|b| matches!(b, b' ' | b'\t' | 0)).unwrap_or(line.len());
    let (name, argument) = line.split_at(end);
    let argument = argument.split(|b| *b == 0).next().unwrap_or_default().trim_ascii();
    let found =
        || ScriptInterpreter { program: OsStr::from_bytes(name).into(), argument: argument.into() };
    (!name.is_empty()).then(found)
}

impl ScriptInterpreter {
    /// Returns whether the interpreter is `env`, which looks for another program.
    pub fn is_env(&self) -> bool {
        self.program.file_name().is_some_and(|name| name == "env")
    }

    /// Returns the program that `env` looks up with this `PATH`; `None` if it cannot be determined.
    pub fn env_lookup(&self, path: Option<&OsStr>) -> Option<EnvLookup> {
        let path = path.unwrap_or(DEFAULT_PATH.as_ref());
        let found = |name: &[u8], path: &OsStr| EnvLookup {
            name: OsStr::from_bytes(name).into(),
            path: path.to_owned(),
        };
        match self.argument.strip_prefix(b"-S") {
            Some(words) => split(words, path).map(|(name, path)| found(name, &path)),
            // One argument, blanks included.
            None if self.argument.first().is_none_or(|b| *b == b'-') => None,
            None if self.argument.contains(&b'=') => None,
            None => Some(found(&self.argument, path)),
        }
    }
}

/// Returns the program that `env -S` starts, and its search path; `None` for syntax that is not
/// supported here, such as quotes and variables.
fn split<'a>(words: &'a [u8], path: &OsStr) -> Option<(&'a [u8], OsString)> {
    if words.iter().any(|b| b"\"'\\$#".contains(b)) {
        return None;
    }
    let mut path = path.to_owned();
    for word in words.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()) {
        if matches!(word, b"-" | b"-i" | b"--ignore-environment") {
            path = DEFAULT_PATH.into();
        } else if let Some(set) = word.strip_prefix(b"PATH=") {
            path = OsString::from_vec(set.to_owned());
        } else if word.starts_with(b"-") {
            return None;
        } else if !word.contains(&b'=') {
            return Some((word, path));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_started_by_env_is_found_or_unknown() {
        for (argument, expected) in [
            ("python3", Some(("python3", "/p"))),
            ("python3 -u", Some(("python3 -u", "/p"))),
            ("-S python3 -u", Some(("python3", "/p"))),
            ("-Spython3", Some(("python3", "/p"))),
            ("-S A=1 PATH=/q:/r python3", Some(("python3", "/q:/r"))),
            ("-S -i A=1 sh", Some(("sh", "/bin:/usr/bin"))),
            ("-S -u PATH sh", None),
            ("-S 'my program'", None),
            ("-S ${HOME}/x", None),
            ("-S", None),
            ("-i", None),
            ("A=1", None),
            ("", None),
        ] {
            let argument = argument.as_bytes().to_owned();
            let interpreter = ScriptInterpreter { program: "/usr/bin/env".into(), argument };
            let expected =
                expected.map(|(name, path)| EnvLookup { name: name.into(), path: path.into() });
            assert_eq!(interpreter.env_lookup(Some("/p".as_ref())), expected, "{interpreter:?}");
        }
    }
}
