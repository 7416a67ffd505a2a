//! Errors of hook files.

use std::io;
use std::path::PathBuf;

use oci_hooks_files::fs::{PathError, ReadError};
use oci_hooks_files::spelling::closest_name;

use super::{PatternError, SchemaVersion};
use crate::json::{SyntaxError, TextLocation};

/// Reasons to reject a hook file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HookError {
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The directory cannot be listed.
    #[error(transparent)]
    List(#[from] PathError),
    /// The file is not JSON.
    #[error("{0}")]
    Syntax(SyntaxError),
    /// A value is of the wrong type.
    #[error("expected {expected}, found {found}")]
    Type {
        /// Type that the schema requires.
        expected: &'static str,
        found: &'static str,
    },
    /// The schema version is unknown.
    #[error("unknown hook version {version:?}")]
    UnknownVersion {
        version: String,
        /// Version whose form the file has.
        meant: SchemaVersion,
    },
    /// A 0.1.0 file without `hook`.
    #[error("missing required property: hook")]
    MissingHook,
    /// A 1.0.0 file without `hook.path`, or an empty path.
    #[error("missing required property: hook.path")]
    MissingPath,
    #[error("missing required property: stages")]
    MissingStages,
    /// A 0.1.0 file that sets a property by both of its names, such as `stage` and `stages`.
    #[error("cannot set both `{0}` and `{1}`")]
    BothSet(&'static str, &'static str),
    /// The hook's program does not exist.
    #[error("hook program {path:?} does not exist")]
    PathMissing { path: String },
    /// The hook's program cannot be looked up.
    #[error("cannot look up hook program {path:?}")]
    PathLookup { path: String, source: io::Error },
    /// A stage is neither one of the runtime specification nor of the consumer.
    #[error("unknown stage {stage:?}")]
    UnknownStage { stage: String },
    /// A pattern is not a regular expression.
    #[error("invalid {place} pattern")]
    Pattern { place: PatternPlace, source: PatternError },
}

/// The place of a pattern in a hook file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatternPlace {
    /// The key of an annotation.
    AnnotationKey,
    /// The value of an annotation.
    AnnotationValue,
    Command,
}

impl std::fmt::Display for PatternPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            PatternPlace::AnnotationKey => "annotation key",
            PatternPlace::AnnotationValue => "annotation value",
            PatternPlace::Command => "command",
        })
    }
}

impl HookError {
    /// Returns a stable name of the kind of error, for programs.
    pub fn class(&self) -> &'static str {
        match self {
            HookError::Read(ReadError::TooLarge { .. }) => "too-large",
            HookError::Read(_) | HookError::List(_) => "io",
            HookError::Syntax(_) => "json-syntax",
            HookError::Type { .. } => "json-type",
            HookError::UnknownVersion { .. } => "unknown-version",
            HookError::MissingHook => "missing-hook",
            HookError::MissingPath => "missing-path",
            HookError::MissingStages => "missing-stages",
            HookError::BothSet(..) => "both-set",
            HookError::PathMissing { .. } => "path-not-exist",
            HookError::PathLookup { .. } => "path-other",
            HookError::UnknownStage { .. } => "unknown-stage",
            HookError::Pattern { place: PatternPlace::AnnotationKey, .. } => {
                "bad-regex-annotation-key"
            }
            HookError::Pattern { place: PatternPlace::AnnotationValue, .. } => {
                "bad-regex-annotation-value"
            }
            HookError::Pattern { place: PatternPlace::Command, .. } => "bad-regex-command",
        }
    }

    /// Returns whether the file vanished before it was opened, which podman ignores.
    pub(super) fn is_vanished(&self) -> bool {
        let not_found = |error: &PathError| error.source.kind() == io::ErrorKind::NotFound;
        matches!(self, HookError::Read(ReadError::Path(error)) if not_found(error))
    }

    /// Returns a hint for fixing the error.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            HookError::Syntax(error) => error.kind.hint()?.to_owned(),
            HookError::Type { expected: "a string", found: "object" } => {
                "a 1.0.0 file starts with \"version\": \"1.0.0\"; a file without it is read as 0.1.0".to_owned()
            }
            HookError::UnknownVersion { meant, .. } => format!("write \"version\": {:?}", meant.name()),
            HookError::MissingHook => "set hook to the path of the program, or \"version\" to \"1.0.0\" if this is a 1.0.0 file".to_owned(),
            HookError::MissingPath => "set hook.path to the absolute path of the program".to_owned(),
            HookError::MissingStages => "name at least one stage, such as \"createRuntime\"".to_owned(),
            HookError::BothSet(one, other) => format!("keep `{one}` or `{other}`"),
            HookError::PathMissing { .. } => "install the program or correct hook.path: podman and CRI-O silently ignore the file until then".to_owned(),
            HookError::UnknownStage { stage } => {
                if stage == "precreate" {
                    return Some("only podman knows precreate, and only when it runs containers, not in builds".to_owned());
                }
                let oci = super::OciStage::ALL.map(super::OciStage::name);
                let names = [&oci[..], &["precreate"]].concat();
                let known = |name: &&&str| name.eq_ignore_ascii_case(stage);
                match (oci.iter().find(known), closest_name(stage, names.iter().copied())) {
                    (None, Some("precreate")) => "did you mean \"precreate\"? Only podman knows it".to_owned(),
                    (Some(name), _) => format!("stages are case-sensitive: write {name:?}"),
                    (None, Some(name)) => format!("did you mean {name:?}?"),
                    (None, None) => format!("stages are {}, and precreate for podman", oci.join(", ")),
                }
            }
            HookError::Pattern { source, .. } => source.hint()?.to_owned(),
            _ => return None,
        })
    }
}

/// An error in a hook file, and its position.
#[derive(Debug)]
#[non_exhaustive]
pub struct HookFault {
    pub error: HookError,
    /// Position in the file, if the error is about its content.
    pub location: Option<TextLocation>,
}

/// A hook file or directory that could not be used.
#[derive(Debug, thiserror::Error)]
#[error("{}{}", path.display(), position(location.as_ref()))]
#[non_exhaustive]
pub struct LoadProblem {
    pub path: PathBuf,
    /// Position in the file, if the error is about its content.
    pub location: Option<TextLocation>,
    pub source: HookError,
    /// If set, the consumer stops with an error. Podman and CRI-O silently skip files with other problems.
    pub fatal: bool,
}

fn position(location: Option<&TextLocation>) -> String {
    location.map_or_else(String::new, |at| format!(":{}:{}", at.line, at.column))
}

/// Error of matching the `commands` of a hook against a container without `process.args`.
#[derive(Debug, thiserror::Error)]
#[error("cannot match hook {}", path.display())]
#[non_exhaustive]
pub struct MatchError {
    pub path: PathBuf,
    pub source: super::EmptyArgs,
}

impl MatchError {
    /// Returns a stable name of the kind of error, for programs.
    pub fn class(&self) -> &'static str {
        "empty-args"
    }
}

#[test]
fn hint_about_an_unknown_version_fits_the_form_of_the_file() {
    use super::{HookDefinition, ParseOptions};

    for (hook, version) in [(r#""/bin/true""#, "0.1.0"), (r#"{"path": "/bin/true"}"#, "1.0.0")] {
        let text = format!(r#"{{"version": "2", "hook": {hook}, "stages": ["poststop"]}}"#);
        let fault = HookDefinition::parse(text.as_bytes(), ParseOptions::default()).unwrap_err();
        assert_eq!(fault.error.hint(), Some(format!("write \"version\": {version:?}")));
    }
}
