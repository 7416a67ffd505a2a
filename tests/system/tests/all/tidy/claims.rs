//! `SECURITY.md`: each threat names tests, and they exist.

use std::path::Path;

use crate::tidy::source::TidyFinding;

const FILE: &str = "SECURITY.md";

/// Finds threats without a test, and names of tests that do not exist: modules of `` `PROGRAM`: `MODULE` ``, and
/// directories of crates.
pub(crate) fn check(text: &str, exists: impl Fn(&Path) -> bool) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let mut find = |message: String| findings.push(TidyFinding::new(FILE, at + 1, message));
        let cells: Vec<_> = line.trim_matches('|').split(" | ").collect();
        let is_threat = cells.len() == 3 && !line.contains("---") && cells[2] != "Tested in ";
        if is_threat && !cells[2].contains('`') {
            find("a threat needs a test".to_owned());
        }
        let mut programs: Vec<String> = Vec::new();
        let mut has_modules = false;
        for span in line.split('`').skip(1).step_by(2) {
            if let Some(directory) = test_directory(span) {
                if has_modules {
                    programs.clear();
                }
                has_modules = false;
                if !exists_as_module(&directory, &exists) {
                    find(format!("{directory} does not exist"));
                }
                programs.push(directory);
            } else if span.starts_with("crates/") {
                programs.clear();
                if !exists(Path::new(span)) {
                    find(format!("{span} does not exist"));
                }
            } else if span.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_')) {
                has_modules = true;
                let missing = programs
                    .iter()
                    .filter(|program| !exists_as_module(&format!("{program}/{span}"), &exists));
                missing.for_each(|program| find(format!("{program} has no test {span}")));
            } else {
                programs.clear();
            }
        }
    }
    findings
}

fn exists_as_module(path: &str, exists: impl Fn(&Path) -> bool) -> bool {
    ["", ".rs"].iter().any(|end| exists(Path::new(&format!("{path}{end}"))))
}

/// Returns the directory of a test program or of a module of it, such as `engine/root/network`.
fn test_directory(name: &str) -> Option<String> {
    let (package, rest) = name.split_once('/')?;
    let is_program = ["all", "root"].contains(&rest.split('/').next()?);
    let directory = match package {
        "oci-hooks" => "tests".to_owned(),
        "system" => "tests/system/tests".to_owned(),
        _ => format!("crates/{package}/tests"),
    };
    is_program.then(|| format!("{directory}/{rest}"))
}

#[test]
fn missing_tests_are_found() {
    let exists = |path: &Path| {
        let all = ["crates/a/tests/root/runner/b.rs", "tests/all/cli/c", "crates/a/src"];
        all.iter().any(|name| Path::new(name).starts_with(path))
    };
    let check =
        |text: &str| -> Vec<_> { check(text, exists).iter().map(ToString::to_string).collect() };
    let good = "| Attacker | Is not able to | Tested in |\n| --- | --- | --- |\n\
                | A job | do `x` | `a/root/runner`: `b`; `oci-hooks/all/cli`: `c`; `crates/a/src` |\n\
                Secrets are `hidden`. | x";
    assert_eq!(check(good), [""; 0]);
    for (bad, finding) in [
        ("| A job | y | by nobody |", "a threat needs a test"),
        ("`oci-hooks/all/cli`, `a/root/runner`: `b`", "tests/all/cli has no test b"),
        (
            "`oci-hooks/all/cli`: `c`, `a/root/runner`: `c`",
            "crates/a/tests/root/runner has no test c",
        ),
        ("unit tests in `crates/b/src`", "crates/b/src does not exist"),
        ("`a/root/none`", "crates/a/tests/root/none does not exist"),
    ] {
        let found = check(bad);
        assert!(matches!(&found[..], [one] if one.ends_with(finding)), "{bad}: {found:?}");
    }
}
