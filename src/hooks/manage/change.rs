//! What a change did, or would do.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

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
