//! Rejected words, and where they are rejected.

use std::path::Path;

use crate::tidy::source::{SourceFile, TidyFinding};

/// Words that must not occur in some files, and the reason.
struct WordRule {
    words: &'static [&'static str],
    message: &'static str,
    applies: fn(&SourceFile) -> bool,
}

/// The code that handles requests of jobs.
const HANDLERS: [&str; 3] = [
    "crates/container-hook/src",
    "crates/container-hook-job/src",
    "crates/container-hook-kubernetes/src",
];

/// The code that handles requests uses descriptors instead of paths. The paths in these files can only be
/// named and replaced by root and the administrator, or are only used in messages.
const OWN_PATHS: [&str; 14] = [
    // Records in the run directory.
    "crates/container-hook/src/job.rs",
    // Removal of leftovers of builds.
    "crates/container-hook/src/build.rs",
    // New directory of a build, before its container runs.
    "crates/container-hook/src/build/bases.rs",
    // Reopening of an open file for reading.
    "crates/container-hook-job/src/dockerfile/snapshot.rs",
    // Home directory of a build.
    "crates/container-hook-job/src/dockerfile/registries.rs",
    // Logins of a build, in a new directory.
    "crates/container-hook-kubernetes/src/build/logins.rs",
    // Init container of a pod, with only its image and new volumes.
    "crates/container-hook-kubernetes/src/fill.rs",
    // The runner's own directories, which belong to the hook's user, and the record of their files.
    "crates/container-hook-kubernetes/src/files/host.rs",
    "crates/container-hook-kubernetes/src/files/record.rs",
    // The hook's own file in a directory that no job can write to.
    "crates/container-hook-kubernetes/src/services.rs",
    // Error messages about a path, before it is opened below the directories that the policy allows.
    "crates/container-hook-job/src/policy/paths.rs",
    // Objects and volumes of the administrator's template, and directories of volumes in the store.
    "crates/container-hook/src/pod/objects.rs",
    "crates/container-hook/src/pod/storage.rs",
    "crates/container-hook/src/pod/volumes.rs",
];

/// Directory trees of the calling user, which no other user changes meanwhile.
const OWN_TREES: [&str; 4] = [
    "src/bin/oci-hooks/lint.rs",
    "crates/step-runner/src/bin/step-runner/lint.rs",
    // The runner's own images.
    "crates/step-runner/src/bin/step-runner/bootstrap_file.rs",
    "crates/container-hook-kubernetes/src/fill.rs",
];

const RULES: [WordRule; 3] = [
    WordRule {
        words: &["remove_dir_all"],
        message: "a job may have made it deep, or in a way that it cannot be removed: use \
                  oci_hooks_host::trash::Trash, or ::removal",
        applies: |source| is_code(source) && !is_host(source),
    },
    WordRule {
        words: &["WalkDir"],
        message: "a job may have made it deep, or swap directories for links meanwhile: use \
                  oci_hooks_files::descent, or a HostRoot",
        applies: |source| {
            let is_own = OWN_TREES.iter().any(|own| source.path == Path::new(own));
            is_code(source) && !is_host(source) && !is_own
        },
    },
    WordRule {
        words: &[
            "fs::canonicalize",
            "fs::copy",
            "fs::create_dir",
            "fs::exists",
            "fs::hard_link",
            "fs::metadata",
            "fs::read(",
            "fs::read_dir",
            "fs::read_link",
            "fs::read_to_string",
            "fs::remove_",
            "fs::rename",
            "fs::set_permissions",
            "fs::symlink_metadata",
            "fs::write",
            "File::create",
            "File::open",
            "OpenOptions",
            "canonicalize(",
            "lchown(",
            "chown(",
            "linkat(CWD",
            "mkdirat(CWD",
            "mknodat(CWD",
            "openat(CWD",
        ],
        message: "what a request names is opened once: use RunnerFiles, HostRoot or HostFile",
        applies: |source| {
            HANDLERS.iter().any(|dir| source.is_below(dir))
                && !source.is_below("crates/container-hook/src/bin")
                && !source.path.components().any(|part| part.as_os_str() == "tests")
                && !source.is_named("testing.rs")
                && !OWN_PATHS.iter().any(|own| source.path == Path::new(own))
        },
    },
];

/// Returns whether a file is compiled into a published library or program.
fn is_code(source: &SourceFile) -> bool {
    source.package_path().1.starts_with("src") && !source.is_below("crates/testsupport")
}

/// Returns whether a file belongs to the crates that handle untrusted files.
fn is_host(source: &SourceFile) -> bool {
    ["crates/files", "crates/host", "crates/init"].iter().any(|dir| source.is_below(dir))
}

/// Returns whether a file is `tests.rs`, or one of its modules in the directory `tests` beside it.
fn is_of_unit_tests(source: &SourceFile) -> bool {
    let is_below_tests = source.path.components().any(|part| part.as_os_str() == "tests");
    source.is_named("tests.rs") || source.package_path().1.starts_with("src") && is_below_tests
}

/// Checks a file for rejected words.
pub(crate) fn check(source: &SourceFile) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    if is_of_unit_tests(source) {
        return findings;
    }
    let code = source.code_without_tests();
    for rule in RULES.iter().filter(|rule| (rule.applies)(source)) {
        for (at, word) in rule.words.iter().flat_map(|word| code.match_indices(word)) {
            if !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
                findings.push(source.finding(at, format!("`{word}`: {}", rule.message)));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&SourceFile::new(path, text)).len()
    }

    #[test]
    fn each_rule_finds_its_words() {
        for rule in RULES {
            for word in rule.words {
                let everywhere = (rule.applies)(&SourceFile::new("src/hooks/a.rs", ""));
                let rooms = if everywhere { &["src/hooks"][..] } else { &HANDLERS[..] };
                let names = ["a.rs", "a/tests.rs"];
                let paths =
                    rooms.iter().flat_map(|room| names.map(|name| format!("{room}/{name}")));
                for path in paths {
                    let path = path.as_str();
                    let expected = usize::from(!path.ends_with("tests.rs"));
                    assert_eq!(
                        count(path, &format!("fn a() {{ {word} }}")),
                        expected,
                        "{path} {word}"
                    );
                }
            }
        }
    }
}
