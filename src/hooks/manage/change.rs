//! The names of hook files, and what a change of them did or would do.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

use super::ManageError;

/// The name of a hook file in its directory, which ends in `.json`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HookName(OsString);

/// Added to the name of a file that is kept while its hook is disabled.
const KEPT_SUFFIX: &str = ".disabled";

/// The longest name Linux has, less what is added to it.
const MAX_BYTES: usize = 255 - KEPT_SUFFIX.len();

impl HookName {
    /// Takes a name; `.json` is added if it is missing.
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

    /// Returns the name as the operating system has it.
    pub fn as_os_str(&self) -> &OsStr {
        &self.0
    }

    /// Returns the name under which the file is kept while its hook is disabled.
    pub(super) fn kept(&self) -> OsString {
        let mut kept = self.0.clone();
        kept.push(KEPT_SUFFIX);
        kept
    }
}

impl fmt::Display for HookName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

/// The steps of a change and what they come to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Change {
    /// What was done, in order; nothing if all was as it should be.
    pub steps: Vec<Step>,
    /// What to know about it.
    pub notes: Vec<Note>,
}

/// One step, which happens as a whole or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "action", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Step {
    CreateDirectory {
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
    },
    Write {
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
        /// Whether it takes the place of one.
        replaces: bool,
        #[serde(skip)]
        text: Vec<u8>,
    },
    /// A file gets a second name.
    Keep {
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
        #[serde(serialize_with = "lossy")]
        kept: PathBuf,
    },
    /// A kept file gets its name back.
    Restore {
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
        /// The name under which it was kept.
        #[serde(serialize_with = "lossy")]
        kept: PathBuf,
        /// Whether it takes the place of a mask.
        replaces: bool,
    },
    Remove {
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
    },
}

/// Something to know about a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "note", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Note {
    /// A file hides one of the same name in an earlier directory.
    Masks {
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
        #[serde(serialize_with = "lossy")]
        hidden: PathBuf,
    },
    /// A file in an earlier directory is no longer hidden.
    Uncovers {
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
    },
    /// Exactly this was there already.
    AlreadyThere {
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
    },
    /// The hook was disabled already.
    AlreadyDisabled {
        /// The file that says so.
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
    },
    /// The hook was enabled already.
    AlreadyEnabled {
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
    },
    /// The hook that was removed was disabled, and a mask still hides one of the same name.
    StillMasked {
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
    },
}

/// Writes a path whose name need not be UTF-8.
fn lossy<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

impl Step {
    /// Returns what was done, as `wrote FILE`; `Display` is for what would be, as `write FILE`.
    pub fn done(&self) -> String {
        format!("{} {}", self.verbs().1, self.object())
    }

    /// Returns the verb for what would be done, and for what was.
    fn verbs(&self) -> (&'static str, &'static str) {
        match self {
            Step::CreateDirectory { .. } => ("create", "created"),
            Step::Write { replaces: false, .. } => ("write", "wrote"),
            Step::Write { replaces: true, .. } => ("replace", "replaced"),
            Step::Keep { .. } => ("keep", "kept"),
            Step::Restore { .. } => ("restore", "restored"),
            Step::Remove { .. } => ("remove", "removed"),
        }
    }

    fn object(&self) -> String {
        match self {
            Step::CreateDirectory { path } => format!("directory {}", path.display()),
            Step::Write { path, .. } | Step::Remove { path } => path.display().to_string(),
            Step::Keep { path, kept } => format!("{} as {}", path.display(), kept.display()),
            Step::Restore { path, kept, .. } => {
                format!("{} from {}", path.display(), kept.display())
            }
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verbs().0, self.object())
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::Masks { path, hidden } => {
                write!(f, "{} masks {}", path.display(), hidden.display())
            }
            Note::Uncovers { path } => write!(f, "{} is no longer masked", path.display()),
            Note::AlreadyThere { path } => write!(f, "{} is up to date", path.display()),
            Note::AlreadyDisabled { path } => {
                write!(f, "already disabled by {}", path.display())
            }
            Note::AlreadyEnabled { path } => {
                write!(f, "already enabled by {}", path.display())
            }
            Note::StillMasked { path } => {
                write!(f, "{} still masks the hook of the same name", path.display())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffix_may_be_left_out() {
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
