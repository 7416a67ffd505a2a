//! Names of hook files.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;

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
