//! What runs a script: the program that its first line names and, if that is `env`, what it finds.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

/// How much of a script the kernel looks at for its interpreter.
const MAX_SHEBANG_BYTES: u64 = 256;

/// Where the C library looks for programs if there is no `PATH`.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The first line of a script.
#[derive(Debug)]
pub struct Interpreter {
    pub program: PathBuf,
    /// All that follows it, which the kernel passes on as one argument.
    argument: Vec<u8>,
}

/// What `env` looks for, and where.
#[derive(Debug, PartialEq, Eq)]
pub struct Sought {
    pub name: PathBuf,
    pub path: OsString,
}

/// Returns the interpreter that the first line of a script names; none if it is not a script.
pub fn of(program: &Path) -> io::Result<Option<Interpreter>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match openat(CWD, program, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        // Whoever may run a script and not read it has an interpreter that cannot either; the others
        // are devices and sockets, which are not run.
        Err(Errno::ACCESS | Errno::NXIO | Errno::NODEV) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let mut head = Vec::new();
    file.take(MAX_SHEBANG_BYTES).read_to_end(&mut head)?;
    let Some(line) = head.strip_prefix(b"#!") else { return Ok(None) };
    let line = line.split(|b| *b == b'\n').next().unwrap_or_default().trim_ascii_start();
    let end = line.iter().position(|b| matches!(b, b' ' | b'\t' | 0)).unwrap_or(line.len());
    let (name, argument) = line.split_at(end);
    let argument = argument.split(|b| *b == 0).next().unwrap_or_default().trim_ascii();
    let found =
        || Interpreter { program: OsStr::from_bytes(name).into(), argument: argument.into() };
    Ok((!name.is_empty()).then(found))
}

impl Interpreter {
    /// Returns whether it is a program that looks for another one.
    pub fn is_env(&self) -> bool {
        self.program.file_name().is_some_and(|name| name == "env")
    }

    /// Returns what `env` looks for with this `PATH`; none if that cannot be determined.
    pub fn sought(&self, path: Option<&OsStr>) -> Option<Sought> {
        let path = path.unwrap_or(DEFAULT_PATH.as_ref());
        let found = |name: &[u8], path: &OsStr| Sought {
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

/// Returns the program that `env -S` starts, and where it looks for it. What is not understood here
/// for certain, such as quotes and variables, is not guessed at.
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
    fn what_env_starts_is_told_or_not_guessed_at() {
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
            let interpreter = Interpreter { program: "/usr/bin/env".into(), argument };
            let expected =
                expected.map(|(name, path)| Sought { name: name.into(), path: path.into() });
            assert_eq!(interpreter.sought(Some("/p".as_ref())), expected, "{interpreter:?}");
        }
    }
}
