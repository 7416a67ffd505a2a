//! Versions of functions, and the tags that each sets.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use super::error::FunctionError;

/// What a tag has at most, by the distribution specification.
const MAX_TAG_BYTES: usize = 128;

/// A version of a function: `1.2.3`, or `1.2.3-rc1` before its release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    major: u64,
    minor: u64,
    patch: u64,
    prerelease: Option<String>,
}

impl Version {
    /// Returns the tags that an image with this version gets, the version itself first.
    ///
    /// `1.2`, `1` and `latest` name the newest release of theirs: a release that is older than one of the
    /// `existing` tags does not take them from it, and a prerelease takes none.
    pub fn tags(&self, existing: &BTreeSet<String>) -> Vec<String> {
        let mut tags = vec![self.to_string()];
        if self.prerelease.is_some() {
            return tags;
        }
        let released: Vec<Version> = existing
            .iter()
            .filter_map(|tag| tag.parse().ok())
            .filter(|version: &Version| version.prerelease.is_none())
            .collect();
        let is_newest = |is_alike: &dyn Fn(&Version) -> bool| {
            released.iter().all(|other| !is_alike(other) || other.number() <= self.number())
        };
        if is_newest(&|other| (other.major, other.minor) == (self.major, self.minor)) {
            tags.push(format!("{}.{}", self.major, self.minor));
        }
        if is_newest(&|other| other.major == self.major) {
            tags.push(self.major.to_string());
        }
        if is_newest(&|_| true) {
            tags.push("latest".to_owned());
        }
        tags
    }

    /// Returns whether the version is one before a release.
    pub fn is_prerelease(&self) -> bool {
        self.prerelease.is_some()
    }

    fn number(&self) -> (u64, u64, u64) {
        (self.major, self.minor, self.patch)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)?;
        match &self.prerelease {
            Some(prerelease) => write!(f, "-{prerelease}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Version {
    type Err = FunctionError;

    fn from_str(text: &str) -> Result<Self, FunctionError> {
        let hint = match text {
            text if text.starts_with(['v', 'V']) => ": leave out the \"v\"",
            text if text.contains('+') => ": tags have no \"+\"",
            _ => "",
        };
        let invalid = || FunctionError::Version { text: text.to_owned(), hint };
        let (numbers, prerelease) = match text.split_once('-') {
            Some((numbers, prerelease)) => (numbers, Some(prerelease)),
            None => (text, None),
        };
        let parts: Option<Vec<u64>> = numbers.split('.').map(number).collect();
        let Some(&[major, minor, patch]) = parts.as_deref() else { return Err(invalid()) };
        let is_word = |word: &str| {
            !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        };
        let is_valid = prerelease.is_none_or(|prerelease| prerelease.split('.').all(is_word));
        if !is_valid || text.len() > MAX_TAG_BYTES {
            return Err(invalid());
        }
        Ok(Version { major, minor, patch, prerelease: prerelease.map(str::to_owned) })
    }
}

/// Returns a number as versions have it, so that it is written in one way only.
fn number(text: &str) -> Option<u64> {
    let is_digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let is_padded = text.len() > 1 && text.starts_with('0');
    if is_digits && !is_padded { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_they_are_written() {
        for text in ["0.0.0", "1.2.3", "10.20.30", "1.2.0-rc1", "1.2.0-rc.1-x"] {
            assert_eq!(text.parse::<Version>().unwrap().to_string(), text);
        }
        for (text, hint) in [
            ("", ""),
            ("1", ""),
            ("1.2", ""),
            ("1.2.3.4", ""),
            ("v1.2.3", "leave out the \"v\""),
            ("1.2.3+5", "no \"+\""),
            ("1.2.03", ""),
            ("1.2.-3", ""),
            ("1.2.3-", ""),
            ("1.2.3-a..b", ""),
            ("1.2.3-a_b", ""),
            ("1.2.3-é", ""),
            (" 1.2.3", ""),
            ("1.2.99999999999999999999", ""),
        ] {
            let error = text.parse::<Version>().unwrap_err().to_string();
            assert!(error.contains("MAJOR.MINOR.PATCH") && error.contains(hint), "{error}");
        }
        assert!(format!("1.2.3-{}", "a".repeat(128)).parse::<Version>().is_err());
    }

    #[test]
    fn a_release_takes_the_tags_of_which_it_is_the_newest() {
        for (version, existing, expected) in [
            ("1.2.3", &[][..], "1.2.3 1.2 1 latest"),
            ("1.2.3", &["1.2.3", "1.2", "1", "latest"], "1.2.3 1.2 1 latest"),
            ("1.2.3", &["1.2.4"], "1.2.3"),
            ("1.2.3", &["1.3.0"], "1.2.3 1.2"),
            ("1.2.3", &["2.0.0"], "1.2.3 1.2 1"),
            ("1.2.3", &["1.2.4-rc1", "2.0.0-rc1", "v3.0.0", "main", "5"], "1.2.3 1.2 1 latest"),
            ("1.10.0", &["1.9.0"], "1.10.0 1.10 1 latest"),
            ("1.2.0-rc1", &[], "1.2.0-rc1"),
        ] {
            let existing = existing.iter().map(|&tag| tag.to_owned()).collect();
            let tags = version.parse::<Version>().unwrap().tags(&existing);
            assert_eq!(tags.join(" "), expected, "{version} {existing:?}");
        }
    }
}
