//! Finding the uplink program: the configured or installed one, with its version.

use std::ffi::OsStr;
use std::fmt;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use oci_hooks_files::fs::read_bounded;
use oci_hooks_files::process::ChildProgram;

use super::{TUN, Uplink, UplinkError, UplinkKind, UplinkVersion};

/// Directories to search for uplink programs: `PATH` of a service may lack them.
const DIRECTORIES: [&str; 5] =
    ["/usr/bin", "/bin", "/usr/local/bin", "/usr/libexec/podman", "/run/current-system/sw/bin"];

/// Maximum size in bytes of a pasta executable that is searched for its version.
const PROGRAM_BYTES: u64 = 64 << 20;

/// Time limit for `--version`.
const TIMEOUT: Duration = Duration::from_secs(10);

impl Uplink {
    /// Returns the program that the administrator chose; `None` if jobs have no uplink.
    ///
    /// # Errors
    ///
    /// Fails if the chosen program is not installed or, for `auto`, if neither program is. Also
    /// fails if the program cannot be run for its version.
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

    /// Returns the program in a file, with its version.
    fn at(kind: UplinkKind, file: PathBuf) -> Result<Self, UplinkError> {
        let mut program = ChildProgram::new(&file, Path::new("/"));
        program.argv = [kind.name(), "--version"].map(OsStr::new).to_vec();
        program.timeout = Some(TIMEOUT);
        let finished = program.run()?;
        let output = String::from_utf8_lossy(&finished.stdout).into_owned();
        let version = match kind {
            UplinkKind::Pasta if output.is_empty() => {
                UplinkVersion::in_pasta(&read_bounded(&file, PROGRAM_BYTES)?)
            }
            UplinkKind::Pasta => UplinkVersion::of_pasta(&output),
            UplinkKind::Slirp4netns => UplinkVersion::of_slirp4netns(&output),
        };
        Ok(Uplink { kind, program: file, version })
    }

    /// Checks that the calling process can create tap devices, as the program does.
    ///
    /// # Errors
    ///
    /// Fails if [`TUN`] cannot be opened; the error has a hint.
    pub fn check_device(&self) -> Result<(), UplinkError> {
        let opened = OpenOptions::new().read(true).write(true).open(TUN);
        opened.map(drop).map_err(|source| UplinkError::Tun { program: self.kind, source })
    }
}

/// The configured uplink program of rootless jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum UplinkChoice {
    /// pasta, unless its version loses connections and slirp4netns is installed.
    #[default]
    Auto,
    /// This program, in the directories of distributions.
    Kind(UplinkKind),
    /// The program at this path.
    Program(UplinkKind, PathBuf),
    /// No uplink: containers of a job reach only each other.
    None,
}

/// Error of parsing an [`UplinkChoice`].
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
        // A prefix, for names like `pasta.avx2`.
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
            // The path was parsed from a string, so that it is valid UTF-8.
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

    /// Creates a program that prints this version.
    fn install(directory: &Path, name: &str, version: &str) {
        let file = directory.join(name);
        fs::write(&file, format!("#!/bin/sh\necho '{version}'\n")).unwrap();
        fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn pasta_is_preferred_unless_old_and_slirp4netns_exists() {
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
    fn chosen_uplink_is_used_or_reported_missing() {
        let dir = tempfile::tempdir().unwrap();
        let find = |choice: &str| Uplink::find_in(&[dir.path()], &choice.parse().unwrap());
        assert_eq!(find("none").unwrap(), None);
        let missing = find("slirp4netns").unwrap_err().to_string();
        assert!(missing.starts_with("slirp4netns was not found: install slirp4netns"), "{missing}");
        install(dir.path(), "slirp4netns", "slirp4netns version 1.2.0");
        install(dir.path(), "pasta", "pasta unknown version");
        assert_eq!(find("pasta").unwrap().unwrap().kind, UplinkKind::Pasta);
        assert_eq!(find("slirp4netns").unwrap().unwrap().kind, UplinkKind::Slirp4netns);
        let path = dir.path().join("pasta");
        assert_eq!(find(path.to_str().unwrap()).unwrap().unwrap().program, path);
        let elsewhere = find("/none/pasta").unwrap_err().to_string();
        assert!(elsewhere.starts_with("/none/pasta was not found: install passt"), "{elsewhere}");
    }

    #[test]
    fn uplink_choice_is_a_word_or_a_path() {
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
