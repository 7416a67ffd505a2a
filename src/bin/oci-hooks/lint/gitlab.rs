//! Findings as a [Code Quality report], which GitLab shows in merge requests.
//!
//! [Code Quality report]: https://docs.gitlab.com/ci/testing/code_quality/#code-quality-report-format

use std::collections::HashMap;
use std::env;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use oci_hooks::hooks::lint::{HookFinding, LintReport, Severity};
use serde::Serialize;

use crate::context::CommandContext;
use crate::error::HooksCommandError;

#[derive(Serialize)]
struct Violation {
    description: String,
    check_name: &'static str,
    fingerprint: String,
    severity: &'static str,
    location: ViolationLocation,
}

#[derive(Serialize)]
struct ViolationLocation {
    path: String,
    lines: ViolationLines,
}

#[derive(Serialize)]
struct ViolationLines {
    begin: usize,
}

/// Writes all findings as one array.
pub fn write(report: &LintReport, context: &mut CommandContext) -> Result<(), HooksCommandError> {
    let current = env::current_dir().unwrap_or_default();
    let mut seen = HashMap::new();
    let violations: Vec<_> = report
        .findings()
        .map(|finding| {
            let path = relative_path(&finding.path, &current);
            let subject = subject(finding, &path);
            let repetition: &mut u64 = seen.entry(subject.clone()).or_default();
            *repetition += 1;
            Violation {
                description: description(finding),
                check_name: finding.rule.code,
                fingerprint: fingerprint(&subject, *repetition),
                severity: match finding.severity {
                    Severity::Note => "info",
                    Severity::Warning => "minor",
                    Severity::Error => "major",
                },
                location: ViolationLocation {
                    path: path.to_string_lossy().into_owned(),
                    lines: ViolationLines {
                        begin: finding.location.as_ref().map_or(1, |at| at.line),
                    },
                },
            }
        })
        .collect();
    context.json(&violations)
}

fn description(finding: &HookFinding) -> String {
    match &finding.hint {
        Some(hint) => format!("{}: {}\n{hint}", finding.rule.name, finding.message),
        None => format!("{}: {}", finding.rule.name, finding.message),
    }
}

/// Returns a path in the form of the repository's paths, for GitLab: relative, without `./`.
fn relative_path(path: &Path, current: &Path) -> PathBuf {
    let path = path.strip_prefix(current).unwrap_or(path);
    path.components().filter(|part| *part != Component::CurDir).collect()
}

/// Returns the identity of a finding, which stays the same in later reports even if its line moves.
fn subject(finding: &HookFinding, path: &Path) -> Vec<u8> {
    let pointer = finding.location.as_ref().map_or("", |at| at.pointer.as_str());
    [finding.rule.code.as_bytes(), path.as_os_str().as_bytes(), pointer.as_bytes()].join(&0)
}

/// Returns the 128-bit FNV-1a hash as 32 hexadecimal digits. It is the same in every version of this program.
fn fingerprint(subject: &[u8], repetition: u64) -> String {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let hash = subject
        .iter()
        .chain(&repetition.to_be_bytes())
        .fold(BASIS, |hash, &byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME));
    format!("{hash:032x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_relative_to_the_repository() {
        for (path, expected) in [
            ("./hooks.d/a.json", "hooks.d/a.json"),
            ("/builds/me/it/hooks.d/./a.json", "hooks.d/a.json"),
            ("/etc/a.json", "/etc/a.json"),
            ("<stdin>", "<stdin>"),
        ] {
            assert_eq!(
                relative_path(Path::new(path), Path::new("/builds/me/it")),
                Path::new(expected)
            );
        }
    }

    #[test]
    fn fingerprints_differ_by_subject_and_repetition() {
        let all = [fingerprint(b"a", 1), fingerprint(b"a", 2), fingerprint(b"b", 1)];
        assert_eq!(all[0].len(), 32);
        assert!(all[0] != all[1] && all[0] != all[2] && all[1] != all[2], "{all:?}");
    }
}
