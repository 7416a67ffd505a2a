//! Where an ordinary user's programs keep their files.

use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::PathBuf;

use rustix::process::geteuid;

use super::Privilege;
use super::error::PrivilegeError;
use crate::sys::fs::PathContext as _;
use crate::sys::users;

/// The name of the directory of all programs of this package, below those of the user.
const NAME: &str = "oci-hooks";

/// The directories of a user, as the XDG Base Directory Specification has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserPaths {
    /// What outlives a boot: `$XDG_DATA_HOME/oci-hooks`, or below `~/.local/share`.
    pub data: PathBuf,
    /// What does not: `$XDG_RUNTIME_DIR/oci-hooks`, or `/tmp/oci-hooks-UID`.
    pub run: PathBuf,
    /// Settings: `$XDG_CONFIG_HOME/oci-hooks`, or below `~/.config`.
    pub config: PathBuf,
}

impl UserPaths {
    /// Returns those of the user who runs this process. Nothing is made.
    ///
    /// # Errors
    ///
    /// Fails for a user without a home directory, unless variables name all.
    pub fn of_process() -> Result<Self, PrivilegeError> {
        let uid = geteuid().as_raw();
        let variable = |name: &str| env::var_os(name);
        Self::new(uid, variable, || users::home(uid))
    }

    fn new(
        uid: u32,
        variable: impl Fn(&str) -> Option<OsString>,
        home: impl Fn() -> Option<PathBuf>,
    ) -> Result<Self, PrivilegeError> {
        // What is relative is to be ignored, by the specification.
        let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let below_home = |name, below: &str| match absolute(name) {
            Some(path) => Ok::<_, PrivilegeError>(path.join(NAME)),
            None => {
                let home = absolute("HOME").or_else(&home);
                let home = home.ok_or(PrivilegeError::NoHome { uid })?;
                Ok(home.join(below).join(NAME))
            }
        };
        let data = below_home("XDG_DATA_HOME", ".local/share")?;
        let config = below_home("XDG_CONFIG_HOME", ".config")?;
        let run = absolute("XDG_RUNTIME_DIR").filter(|path| path.is_dir());
        let run =
            run.map_or_else(|| PathBuf::from(format!("/tmp/{NAME}-{uid}")), |dir| dir.join(NAME));
        Ok(UserPaths { data, run, config })
    }

    /// Returns where images are: those of a user without ranges of ids have no owners, and cannot be used by
    /// others.
    pub fn store(&self, privilege: Privilege) -> PathBuf {
        match privilege {
            Privilege::Single => self.data.join("single"),
            Privilege::Root | Privilege::Mapped(_) => self.data.clone(),
        }
    }

    /// Makes the directories of what is kept, for the user alone.
    ///
    /// # Errors
    ///
    /// Fails if somebody else owns one that is there, or can write in it: in `/tmp` it may be anybody's.
    pub fn make(&self) -> Result<(), PrivilegeError> {
        let uid = geteuid().as_raw();
        for path in [&self.data, &self.run] {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(path)
                .at("make the directory", path)?;
            let found = fs::symlink_metadata(path).at("look at", path)?;
            let is_link = found.is_symlink();
            let (owner, mode) = (found.uid(), found.mode());
            if is_link || owner != uid || mode & 0o022 != 0 {
                return Err(PrivilegeError::Foreign { path: path.clone(), owner, uid });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn variables_come_before_the_home_directory_and_relative_ones_do_not_count() {
        let run = tempfile::tempdir().unwrap();
        let of = |variables: &[(&str, &str)], home: Option<&str>| {
            let variable = |name: &str| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| OsString::from(value))
            };
            UserPaths::new(7, variable, || home.map(PathBuf::from))
        };
        let paths = of(&[], Some("/h")).unwrap();
        assert_eq!(paths.data, Path::new("/h/.local/share/oci-hooks"));
        assert_eq!(paths.run, Path::new("/tmp/oci-hooks-7"));
        assert_eq!(paths.config, Path::new("/h/.config/oci-hooks"));
        assert_eq!(paths.store(Privilege::Single), Path::new("/h/.local/share/oci-hooks/single"));
        let variables = [
            ("HOME", "/other"),
            ("XDG_DATA_HOME", "/d"),
            ("XDG_CONFIG_HOME", "c"),
            ("XDG_RUNTIME_DIR", run.path().to_str().unwrap()),
        ];
        let paths = of(&variables, Some("/h")).unwrap();
        assert_eq!(paths.data, Path::new("/d/oci-hooks"));
        assert_eq!(paths.run, run.path().join("oci-hooks"));
        assert_eq!(paths.config, Path::new("/other/.config/oci-hooks"));
        assert!(matches!(of(&[], None), Err(PrivilegeError::NoHome { uid: 7 })));
    }
}
