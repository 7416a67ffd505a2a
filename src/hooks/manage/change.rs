//! Names of hook files, and the steps of changing them.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

use super::ManageError;

/// The name of a hook file in its directory, ending in `.json`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HookName(OsString);

/// Suffix of a disabled hook's file name.
const DISABLED_SUFFIX: &str = ".disabled";

/// Maximum length of a hook file's name: Linux's `NAME_MAX` less the suffix.
const MAX_BYTES: usize = 255 - DISABLED_SUFFIX.len();

impl HookName {
    /// Checks a name, and adds `.json` if it is missing.
    pub fn new(name: impl AsRef<OsStr>) -> Result<Self, ManageError> {
        let mut name = name.as_ref().to_owned();
        let fault = |name: OsString, reason| Err(ManageError::Name { name, reason });
        if name.is_empty() {
            return fault(name, "expected at least one character");
        }
        if name.as_bytes().iter().any(|byte| matches!(byte, b'/' | 0)) {
            return fault(name, "it contains a slash or NUL byte");
        }
        if !name.as_bytes().ends_with(b".json") {
            name.push(".json");
        }
        if name.len() > MAX_BYTES {
            return fault(name, "longer than 246 bytes");
        }
        Ok(HookName(name))
    }

    /// Returns the file name.
    pub fn as_os_str(&self) -> &OsStr {
        &self.0
    }

    /// Returns the name of the disabled hook with this file name; `None` for other file names.
    pub fn of_disabled_file(file_name: &OsStr) -> Option<Self> {
        let name = file_name.as_bytes().strip_suffix(DISABLED_SUFFIX.as_bytes())?;
        HookName::new(OsStr::from_bytes(name)).ok().filter(|_| name.ends_with(b".json"))
    }

    /// Returns the file name while the hook is disabled.
    pub(super) fn disabled_file_name(&self) -> OsString {
        let mut kept = self.0.clone();
        kept.push(DISABLED_SUFFIX);
        kept
    }
}

impl fmt::Display for HookName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

/// The steps of a change, made or only planned, and notes about it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HookChange {
    /// Steps in order; empty if nothing had to be changed.
    pub steps: Vec<ChangeStep>,
    pub notes: Vec<ChangeNote>,
}

/// One atomic step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "action", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ChangeStep {
    CreateDirectory {
        #[serde(serialize_with = "serialize_lossy")]
        path: PathBuf,
    },
    Write {
        #[serde(serialize_with = "serialize_lossy")]
        path: PathBuf,
        /// If set, the file replaces an existing one.
        replaces: bool,
        #[serde(skip)]
        text: Vec<u8>,
    },
    /// Hard-links the file `path` as `kept`, before the hook is disabled.
    Keep {
        #[serde(serialize_with = "serialize_lossy")]
        path: PathBuf,
        #[serde(serialize_with = "serialize_lossy")]
        kept: PathBuf,
    },
    /// Moves a kept file back to its original name.
    Restore {
        #[serde(serialize_with = "serialize_lossy")]
        path: PathBuf,
        /// Path of the kept file.
        #[serde(serialize_with = "serialize_lossy")]
        kept: PathBuf,
        /// If set, the file replaces a [mask](super).
        replaces: bool,
    },
    Remove {
        #[serde(serialize_with = "serialize_lossy")]
        path: PathBuf,
    },
}

/// A note about a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "note", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ChangeNote {
    /// A file hides one of the same name in an earlier directory.
    Masks {
        #[serde(serialize_with = "serialize_lossy")]
        path: PathBuf,
        #[serde(serialize_with = "serialize_lossy")]
        hidden: PathBuf,
    },
    /// A file in an earlier directory is no longer hidden.
    Uncovers {
        #[serde(serialize_with = "serialize_lossy")]
        path: PathBuf,
    },
    /// A file with the same content exists already.
    AlreadyThere {
        #[serde(serialize_with = "serialize_lossy")]
        path: PathBuf,
    },
    /// The hook was disabled already.
    AlreadyDisabled {
        /// The [mask](super) that hides the hook, or the kept hook file.
        #[serde(serialize_with = "serialize_lossy")]
        path: PathBuf,
    },
    /// The hook was enabled already.
    AlreadyEnabled {
        #[serde(serialize_with = "serialize_lossy")]
        path: PathBuf,
    },
    /// The removed hook was disabled, and its mask still hides a hook of the same name.
    StillMasked {
        #[serde(serialize_with = "serialize_lossy")]
        path: PathBuf,
    },
}

/// Serializes a path that need not be UTF-8.
fn serialize_lossy<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

impl ChangeStep {
    /// Returns the step in the past tense, as `wrote FILE`; `Display` prints the imperative, as `write FILE`.
    pub fn past_tense(&self) -> String {
        format!("{} {}", self.verbs().1, self.object())
    }

    /// Returns the verb for a planned and for a completed step.
    fn verbs(&self) -> (&'static str, &'static str) {
        match self {
            ChangeStep::CreateDirectory { .. } => ("create", "created"),
            ChangeStep::Write { replaces: false, .. } => ("write", "wrote"),
            ChangeStep::Write { replaces: true, .. } => ("replace", "replaced"),
            ChangeStep::Keep { .. } => ("keep", "kept"),
            ChangeStep::Restore { .. } => ("restore", "restored"),
            ChangeStep::Remove { .. } => ("remove", "removed"),
        }
    }

    fn object(&self) -> String {
        match self {
            ChangeStep::CreateDirectory { path } => format!("directory {}", path.display()),
            ChangeStep::Write { path, .. } | ChangeStep::Remove { path } => {
                path.display().to_string()
            }
            ChangeStep::Keep { path, kept } => format!("{} as {}", path.display(), kept.display()),
            ChangeStep::Restore { path, kept, .. } => {
                format!("{} from {}", path.display(), kept.display())
            }
        }
    }
}

impl fmt::Display for ChangeStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verbs().0, self.object())
    }
}

impl fmt::Display for ChangeNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChangeNote::Masks { path, hidden } => {
                write!(f, "{} masks {}", path.display(), hidden.display())
            }
            ChangeNote::Uncovers { path } => write!(f, "{} is no longer masked", path.display()),
            ChangeNote::AlreadyThere { path } => write!(f, "{} is up to date", path.display()),
            ChangeNote::AlreadyDisabled { path } => {
                write!(f, "already disabled by {}", path.display())
            }
            ChangeNote::AlreadyEnabled { path } => {
                write!(f, "already enabled by {}", path.display())
            }
            ChangeNote::StillMasked { path } => {
                write!(f, "{} still masks the hook of the same name", path.display())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_suffix_is_optional() {
        assert_eq!(HookName::new("a").unwrap(), HookName::new("a.json").unwrap());
        assert_eq!(HookName::new("a.JSON").unwrap().as_os_str(), "a.JSON.json");
        assert_eq!(HookName::new(".json").unwrap().as_os_str(), ".json");
    }

    #[test]
    fn names_cannot_leave_the_directory() {
        for name in ["", "/etc/x", "../x", "a/b.json", "a\0b", &"x".repeat(300)] {
            assert!(HookName::new(name).is_err(), "{name}");
        }
        assert_eq!(HookName::new("..").unwrap().as_os_str(), "...json");
    }
}
