//! Which program leads out: what is installed, and what is known of its version.

use std::ffi::OsStr;
use std::fmt;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use super::{TUN, Uplink, UplinkError, UplinkKind, Version};
use crate::sys::fs::read_bounded;
use crate::sys::process::Program;

/// Where programs are: `PATH` of a service is not always what it should be.
const DIRECTORIES: [&str; 5] =
    ["/usr/bin", "/bin", "/usr/local/bin", "/usr/libexec/podman", "/run/current-system/sw/bin"];

/// How large a program is at most.
const PROGRAM_BYTES: u64 = 64 << 20;

/// How long a program may take to say its version.
const TIMEOUT: Duration = Duration::from_secs(10);

impl Uplink {
    /// Returns the program that leads out, as the admin chose; none if there is to be no way out.
    ///
    /// # Errors
    ///
    /// Fails if there is none, or not the one that was chosen.
    pub fn find(choice: &UplinkChoice) -> Result<Option<Self>, UplinkError> {
        Uplink::find_in(&DIRECTORIES.map(Path::new), choice)
    }

    fn find_in(directories: &[&Path], choice: &UplinkChoice) -> Result<Option<Self>, UplinkError> {
        let installed = |kind: UplinkKind| {
            let mut files = directories.iter().map(|directory| directory.join(kind.name()));
            files.find(|file| file.is_file())
        };
        match choice {
            UplinkChoice::None => Ok(None),
            UplinkChoice::Auto => {
                let pasta = installed(UplinkKind::Pasta)
                    .map(|file| Uplink::at(UplinkKind::Pasta, file))
                    .transpose()?;
                if let Some(pasta) = pasta.as_ref().filter(|pasta| !pasta.loses_half_closed()) {
                    return Ok(Some(pasta.clone()));
                }
                let slirp4netns = installed(UplinkKind::Slirp4netns)
                    .map(|file| Uplink::at(UplinkKind::Slirp4netns, file))
                    .transpose()?;
                slirp4netns.or(pasta).map(Some).ok_or(UplinkError::NoProgram)
            }
            UplinkChoice::Kind(kind) => {
                let missing = || UplinkError::Missing { kind: *kind, path: kind.name().into() };
                Uplink::at(*kind, installed(*kind).ok_or_else(missing)?).map(Some)
            }
            UplinkChoice::Program(kind, path) if !path.is_file() => {
                Err(UplinkError::Missing { kind: *kind, path: path.clone() })
            }
            UplinkChoice::Program(kind, path) => Uplink::at(*kind, path.clone()).map(Some),
        }
    }

    /// Returns a program with its version.
    fn at(kind: UplinkKind, file: PathBuf) -> Result<Self, UplinkError> {
        let mut program = Program::new(&file, Path::new("/"));
        program.argv = [kind.name(), "--version"].map(OsStr::new).to_vec();
        program.timeout = Some(TIMEOUT);
        let finished = program.run()?;
        let output = String::from_utf8_lossy(&finished.stdout).into_owned();
        let version = match kind {
            UplinkKind::Pasta if output.is_empty() => {
                Version::in_pasta(&read_bounded(&file, PROGRAM_BYTES)?)
            }
            UplinkKind::Pasta => Version::of_pasta(&output),
            UplinkKind::Slirp4netns => Version::of_slirp4netns(&output),
        };
        Ok(Uplink { kind, program: file, version })
    }

    /// Checks that the calling process may make devices as the program does.
    ///
    /// # Errors
    ///
    /// Fails if the device of the kernel for that cannot be opened; the error says what it takes.
    pub fn check_device(&self) -> Result<(), UplinkError> {
        let opened = OpenOptions::new().read(true).write(true).open(TUN);
        opened.map(drop).map_err(|source| UplinkError::Tun { program: self.kind, source })
    }
}

/// Which program leads jobs of an ordinary user to the world.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum UplinkChoice {
    /// pasta, unless it loses connections and slirp4netns is there.
    #[default]
    Auto,
    /// This one, from where distributions have it.
    Kind(UplinkKind),
    /// This file.
    Program(UplinkKind, PathBuf),
    /// None: containers of a job reach each other, and nothing else.
    None,
}

/// A text that names no way out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid uplink {text:?}: expected \"auto\", \"pasta\", \"slirp4netns\", the absolute path of one of \
     these programs, or \"none\""
)]
pub struct UplinkChoiceError {
    text: String,
}

impl FromStr for UplinkChoice {
    type Err = UplinkChoiceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let kinds = [UplinkKind::Pasta, UplinkKind::Slirp4netns];
        match text {
            "auto" => return Ok(UplinkChoice::Auto),
            "none" => return Ok(UplinkChoice::None),
            _ => {}
        }
        if let Some(kind) = kinds.into_iter().find(|kind| kind.name() == text) {
            return Ok(UplinkChoice::Kind(kind));
        }
        let path = PathBuf::from(text);
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // As `pasta.avx2`.
        let kind = kinds.into_iter().find(|kind| name.starts_with(kind.name()));
        match kind.filter(|_| path.is_absolute()) {
            Some(kind) => Ok(UplinkChoice::Program(kind, path)),
            None => Err(UplinkChoiceError { text: text.to_owned() }),
        }
    }
}

impl fmt::Display for UplinkChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UplinkChoice::Auto => f.write_str("auto"),
            UplinkChoice::Kind(kind) => kind.fmt(f),
            // It came from a text.
            UplinkChoice::Program(_, path) => path.display().fmt(f),
            UplinkChoice::None => f.write_str("none"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Makes a program that says this of its version.
    fn install(directory: &Path, name: &str, version: &str) {
        let file = directory.join(name);
        fs::write(&file, format!("#!/bin/sh\necho '{version}'\n")).unwrap();
        fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn pasta_is_taken_unless_it_is_old_and_slirp4netns_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let find = || Uplink::find_in(&[Path::new("/none"), dir.path()], &UplinkChoice::Auto);
        assert!(matches!(find(), Err(UplinkError::NoProgram)));
        install(dir.path(), "pasta", "pasta unknown version");
        let old = find().unwrap().unwrap();
        assert!(old.kind == UplinkKind::Pasta && old.loses_half_closed());
        install(dir.path(), "slirp4netns", "slirp4netns version 1.2.0");
        let slirp4netns = find().unwrap().unwrap();
        assert!(slirp4netns.kind == UplinkKind::Slirp4netns && !slirp4netns.loses_half_closed());
        assert_eq!(slirp4netns.version.unwrap().to_string(), "1.2.0");
        install(dir.path(), "pasta", "pasta 0.0~git20261002.cba3570-1");
        let new = find().unwrap().unwrap();
        assert!(new.kind == UplinkKind::Pasta && !new.loses_half_closed());
        assert_eq!(new.program, dir.path().join("pasta"));
    }

    #[test]
    fn what_was_chosen_is_taken_or_missed() {
        let dir = tempfile::tempdir().unwrap();
        let find = |choice: &str| Uplink::find_in(&[dir.path()], &choice.parse().unwrap());
        assert_eq!(find("none").unwrap(), None);
        let missing = find("slirp4netns").unwrap_err().to_string();
        assert!(missing.starts_with("slirp4netns is not there: install slirp4netns"), "{missing}");
        install(dir.path(), "slirp4netns", "slirp4netns version 1.2.0");
        install(dir.path(), "pasta", "pasta unknown version");
        assert_eq!(find("pasta").unwrap().unwrap().kind, UplinkKind::Pasta);
        assert_eq!(find("slirp4netns").unwrap().unwrap().kind, UplinkKind::Slirp4netns);
        let path = dir.path().join("pasta");
        assert_eq!(find(path.to_str().unwrap()).unwrap().unwrap().program, path);
        let elsewhere = find("/none/pasta").unwrap_err().to_string();
        assert!(elsewhere.starts_with("/none/pasta is not there: install passt"), "{elsewhere}");
    }

    #[test]
    fn a_choice_is_a_word_or_the_path_of_a_program() {
        for text in ["auto", "none", "pasta", "slirp4netns", "/opt/passt/bin/pasta.avx2"] {
            assert_eq!(text.parse::<UplinkChoice>().unwrap().to_string(), text);
        }
        let path = "/opt/bin/slirp4netns-1.3";
        let kind = UplinkKind::Slirp4netns;
        assert_eq!(path.parse(), Ok(UplinkChoice::Program(kind, path.into())));
        for text in ["", "Auto", "bin/pasta", "/usr/bin/passt", "/", "host"] {
            assert!(text.parse::<UplinkChoice>().is_err(), "{text:?}");
        }
    }
}
