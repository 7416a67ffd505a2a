//! What an admin says about the way out of jobs.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::UplinkKind;

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
    use super::*;

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
