//! What must not be written, and where.

use crate::source::{Finding, Source};

/// Words that must not stand in some files, and why.
struct Rule {
    words: &'static [&'static str],
    message: &'static str,
    applies: fn(&Source) -> bool,
    /// Whether tests below the code may have them.
    in_tests: bool,
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
    "src/bin/oci-hooks/lint/tree.rs",
    "src/bin/step-runner/lint.rs",
    // The runner's own images.
    "src/bin/step-runner/bootstrap_file.rs",
    "src/container_hook/kubernetes/fill.rs",
];

/// Returns whether a file is of the library that others use: what programs share is half a program, and
/// the first process of containers is one.
fn is_library_proper(source: &Source) -> bool {
    source.is_library() && !source.is_below("src/program") && !source.is_below("src/sys/init")
}

const RULES: [Rule; 8] = [
    Rule {
        words: &["#[ignore"],
        message: "a test that cannot run fails and says why; none is ignored",
        applies: |_| true,
        in_tests: false,
    },
    Rule {
        words: &["#[allow(", "#![allow("],
        message: "use #[expect(..., reason = \"...\")]",
        // What one test program uses of it, another does not: neither `allow` nor `expect` fits all.
        applies: |source| !source.path.ends_with("tests/support/mod.rs"),
        in_tests: false,
    },
    Rule {
        words: &["todo!", "unimplemented!", "dbg!"],
        message: "finish it",
        applies: |_| true,
        in_tests: false,
    },
    Rule {
        words: &["print!", "println!", "eprint!", "eprintln!"],
        message: "the library never prints: return it",
        applies: is_library_proper,
        in_tests: true,
    },
    Rule {
        words: &[
            "process::exit",
            "process::abort",
            "env::var",
            "env::args",
            "env::current_dir",
            "env::current_exe",
            "env::home_dir",
            "env::set_",
            "env::temp_dir",
        ],
        message: "the library takes values: programs exit and know where they run",
        applies: is_library_proper,
        in_tests: true,
    },
    Rule {
        words: &["remove_dir_all"],
        message: "a job may have made it deep, or in a way that it cannot be removed: use \
                  sys::trash::Trash, or sys::removal",
        applies: |source| source.is_below("src") && !source.is_below("src/sys"),
        in_tests: true,
    },
    Rule {
        words: &["WalkDir"],
        message: "a job may have made it deep, or swap directories for links meanwhile: use \
                  sys::descent, or a HostRoot",
        applies: |source| {
            let is_own = OWN_TREES.iter().any(|own| source.path.ends_with(own));
            source.is_below("src") && !source.is_below("src/sys") && !is_own
        },
        in_tests: true,
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
        in_tests: true,
    },
];

/// Returns whether a file is `tests.rs`, or one of its modules, in the directory `tests` beside it.
fn is_of_unit_tests(source: &Source) -> bool {
    let is_below_tests = source.path.components().any(|part| part.as_os_str() == "tests");
    source.is_named("tests.rs") || source.is_below("src") && is_below_tests
}

/// Checks a file for words that must not stand there.
pub(crate) fn check(source: &Source) -> Vec<Finding> {
    let mut findings = ignored_by_condition(source);
    for rule in RULES.iter().filter(|rule| (rule.applies)(source)) {
        if rule.in_tests && is_of_unit_tests(source) {
            continue;
        }
        let code = if rule.in_tests { source.code_without_tests() } else { &source.code };
        for (at, word) in rule.words.iter().flat_map(|word| code.match_indices(word)) {
            if !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
                findings.push(source.finding(at, format!("`{word}`: {}", rule.message)));
            }
        }
    }
    findings
}

/// Finds `ignore` among what `cfg_attr` adds, whatever the condition and on however many lines.
fn ignored_by_condition(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, start) in source.code.match_indices("cfg_attr(") {
        let attribute = &source.code[at + start.len()..];
        let attribute = attribute.split(']').next().unwrap_or_default();
        let mut words = attribute.split(|c: char| !c.is_alphanumeric() && c != '_');
        if words.any(|word| word == "ignore") {
            let message = "`ignore` by a condition: a test that cannot run fails and says why";
            findings.push(source.finding(at, message));
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
                    let expected = usize::from(!path.ends_with("tests.rs") || !rule.in_tests);
                    assert_eq!(
                        count(path, &format!("fn a() {{ {word} }}")),
                        expected,
                        "{path} {word}"
                    );
                }
            }
        }
        for ignored in [
            "#[cfg_attr(not(feature = \"a\"), ignore)]",
            "#[cfg_attr(target_os = \"b\", ignore = \"why\")]",
            "#[cfg_attr(\n    any(c, d),\n    expect(e),\n    ignore,\n)]",
        ] {
            let found =
                check(&Source::new("tests/a.rs", &format!("\n{ignored}\n#[test]\nfn a() {{}}")));
            assert_eq!(found.len(), 1, "{ignored}");
            assert!(found[0].to_string().starts_with("tests/a.rs:2: `ignore`"), "{}", found[0]);
        }
        let finding = &check(&Source::new("tests/a.rs", "\n\n#[ignore]\nfn a() {}"))[0];
        assert!(finding.to_string().starts_with("tests/a.rs:3: `#[ignore`: "));
    }

    #[test]
    fn words_in_comments_texts_programs_and_tests_are_fine() {
        assert_eq!(
            count("src/a.rs", "/// println!(\"\")\nconst A: &str = \"todo!\"; fn my_dbg!() {}"),
            0
        );
        assert_eq!(count("src/program/a.rs", "println!(); std::env::var_os()"), 0);
        assert_eq!(
            count("src/bin/a/main.rs", "println!(); std::env::var_os(); process::exit()"),
            0
        );
        assert_eq!(count("src/a.rs", "\n#[cfg(test)]\nmod tests {\n println!() }"), 0);
        assert_eq!(count("src/a.rs", "#[cfg_attr(unix, expect(dead_code))]\nfn ignore() {}"), 0);
        assert_eq!(count("tests/a.rs", "println!(); std::env::var_os()"), 0);
    }
}
