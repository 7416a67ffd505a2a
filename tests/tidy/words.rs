//! What must not be written, and where.

use crate::source::{Finding, Source};

/// Words that must not stand in some files, and why.
struct Rule {
    words: &'static [&'static str],
    message: &'static str,
    applies: fn(&Source) -> bool,
}

/// Where requests are carried out, files of the host are used by descriptor. These files deal with what
/// only root and the administrator can name and replace, and for messages.
const OWN_PATHS: [&str; 12] = [
    // Records in the run directory.
    "src/container_hook/engine/job.rs",
    // Removing old builds from the store.
    "src/container_hook/engine/build.rs",
    // Opening what is open already anew, to read it.
    "src/container_hook/dockerfile/snapshot.rs",
    // The home directory of a build.
    "src/container_hook/dockerfile/registries.rs",
    // Logins of a build, in a directory that was just made for it.
    "src/container_hook/kubernetes/build/logins.rs",
    // The init container of a pod, which is alone with its image and with volumes that were just made.
    "src/container_hook/kubernetes/fill.rs",
    // The runner's own directories, which the hook has as the same user, and the record of what is in them.
    "src/container_hook/kubernetes/files/host.rs",
    "src/container_hook/kubernetes/files/record.rs",
    // What is said of a path before it is opened beneath what the policy allows.
    "src/container_hook/policy/paths.rs",
    // Objects and volumes of the administrator's template, and directories of volumes in the store.
    "src/container_hook/engine/pod/objects.rs",
    "src/container_hook/engine/pod/storage.rs",
    "src/container_hook/engine/pod/volumes.rs",
];

/// Where people have trees of their own linted: nobody else changes them meanwhile.
const OWN_TREES: [&str; 4] = [
    "src/bin/oci-hooks/lint.rs",
    "src/bin/step-runner/lint.rs",
    // The runner's own images.
    "src/bin/step-runner/bootstrap_file.rs",
    "src/container_hook/kubernetes/fill.rs",
];

const RULES: [Rule; 3] = [
    Rule {
        words: &["remove_dir_all"],
        message: "a job may have made it deep, or in a way that it cannot be removed: use \
                  sys::trash::Trash, or sys::removal",
        applies: |source| source.is_below("src") && !source.is_below("src/sys"),
    },
    Rule {
        words: &["WalkDir"],
        message: "a job may have made it deep, or swap directories for links meanwhile: use \
                  sys::descent, or a HostRoot",
        applies: |source| {
            let is_own = OWN_TREES.iter().any(|own| source.path.ends_with(own));
            source.is_below("src") && !source.is_below("src/sys") && !is_own
        },
    },
    Rule {
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
            source.is_below("src/container_hook")
                && !source.path.components().any(|part| part.as_os_str() == "tests")
                && !source.is_named("testing.rs")
                && !OWN_PATHS.iter().any(|own| source.path.ends_with(own))
        },
    },
];

/// Returns whether a file is `tests.rs`, or one of its modules, in the directory `tests` beside it.
fn is_of_unit_tests(source: &Source) -> bool {
    let is_below_tests = source.path.components().any(|part| part.as_os_str() == "tests");
    source.is_named("tests.rs") || source.is_below("src") && is_below_tests
}

/// Checks a file for words that must not stand there.
pub(crate) fn check(source: &Source) -> Vec<Finding> {
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
        check(&Source::new(path, text)).len()
    }

    #[test]
    fn each_rule_finds_its_words() {
        for rule in RULES {
            for word in rule.words {
                let everywhere = (rule.applies)(&Source::new("src/hooks/a.rs", ""));
                let room = if everywhere { "src/hooks" } else { "src/container_hook" };
                for path in ["a.rs", "a/tests.rs"].map(|name| format!("{room}/{name}")) {
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

    #[test]
    fn words_in_comments_texts_programs_and_tests_are_fine() {
        let text =
            "/// remove_dir_all\nconst A: &str = \"remove_dir_all\"; fn my_remove_dir_all() {}";
        assert_eq!(count("src/a.rs", text), 0);
        assert_eq!(count("src/sys/a.rs", "remove_dir_all()"), 0);
        assert_eq!(count("src/a.rs", "\n#[cfg(test)]\nmod tests {\n remove_dir_all() }"), 0);
        assert_eq!(count("tests/a.rs", "remove_dir_all()"), 0);
    }
}
