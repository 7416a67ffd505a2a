//! The step files of an image: there is one, and it is sound.

use std::path::{Path, PathBuf};

use super::super::document::{Severity, lint};
use super::super::log::Stream;
use super::error::FunctionError;

/// Names of step files.
const NAMES: [&str; 2] = ["func.yml", "step.yml"];

/// Returns whether a path is one of a step file.
pub(super) fn is_step_file(path: &Path) -> bool {
    NAMES.iter().any(|name| path.file_name() == Some(name.as_ref()))
}

/// Reports what is wrong with a step file. Errors in one at the top of the image fail; what is further down
/// may be there for tests.
pub(super) fn check(
    path: &Path,
    text: &[u8],
    log: &dyn Fn(Stream, &str),
) -> Result<(), FunctionError> {
    let name = path.display().to_string();
    let findings = lint(&name, &String::from_utf8_lossy(text), None);
    let mut errors = 0;
    for finding in findings.iter().filter(|finding| finding.severity != Severity::Note) {
        log(
            Stream::Err,
            &format!("{}: {}: {}", finding.location, finding.severity, finding.message),
        );
        errors += usize::from(finding.severity == Severity::Error);
    }
    match errors {
        1.. if path.components().count() == 1 => {
            Err(FunctionError::StepFile { path: PathBuf::from(path), errors })
        }
        _ => Ok(()),
    }
}
