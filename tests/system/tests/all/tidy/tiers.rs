//! The tiers of the tests: `.config/nextest.toml` names tests that exist, the gate tests each threat of
//! `SECURITY.md`, and scripts run the test programs that `cargo test` does not.

use std::path::Path;

use crate::tidy::source::{SourceFile, TidyFinding};

const FILE: &str = ".config/nextest.toml";

/// Tests that are not in the gate.
struct Exclusion<'a> {
    line: usize,
    /// Test program, such as `container-hook::root`.
    program: &'a str,
    /// Name of a test, or of a module with `::` at its end.
    name: &'a str,
}

/// Parses the lines of the form `binary_id(PROGRAM)` and, below them, a name on each line.
fn exclusions(settings: &str) -> Vec<Exclusion<'_>> {
    let mut exclusions = Vec::new();
    let mut program = "";
    let lines = settings.lines().enumerate().skip_while(|(_, line)| *line != "[profile.gate]");
    for (at, line) in lines {
        if let Some((_, rest)) = line.split_once("binary_id(") {
            program = rest.split(')').next().unwrap_or("");
        }
        let name = line.trim_start_matches([' ', '|']).trim_end_matches('$');
        let is_name = name.contains("::")
            && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b':'));
        if is_name {
            exclusions.push(Exclusion { line: at + 1, program, name });
        }
    }
    exclusions
}

/// Finds names of tests and modules that do not exist.
pub(crate) fn check_names(settings: &str, sources: &[SourceFile]) -> Vec<TidyFinding> {
    let is_defined = |item: String| sources.iter().any(|source| source.code.contains(&item));
    let mut findings = Vec::new();
    for Exclusion { line, name, .. } in exclusions(settings) {
        let exists = match name.strip_suffix("::") {
            Some(modules) => {
                let module = modules.rsplit("::").next().unwrap_or(modules);
                is_defined(format!("mod {module};")) || is_defined(format!("mod {module} {{"))
            }
            None => {
                let test = name.rsplit("::").next().unwrap_or(name);
                is_defined(format!("fn {test}()"))
            }
        };
        if !exists {
            findings.push(TidyFinding::new(FILE, line, format!("{name} does not exist")));
        }
    }
    findings
}

/// Finds threats whose tests are all in modules that are not in the gate. A threat names tests as
/// `` `PACKAGE/PROGRAM/MODULE…`: `MODULE` ``.
pub(crate) fn check_threats(settings: &str, security: &str) -> Vec<TidyFinding> {
    let exclusions = exclusions(settings);
    let is_in_gate = |program: &str, module: &str| {
        let mut parts = program.splitn(3, '/');
        let (package, program) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
        let path = match parts.next() {
            Some(parent) => format!("{}::{module}::", parent.replace('/', "::")),
            None => format!("{module}::"),
        };
        !exclusions.iter().any(|exclusion| {
            let (its_package, its_program) = exclusion.program.split_once("::").unwrap_or_default();
            its_package.trim_start_matches("oci-hooks-") == package
                && its_program == program
                && exclusion.name.ends_with("::")
                && path.starts_with(exclusion.name)
        })
    };
    let mut findings = Vec::new();
    for (at, line) in security.lines().enumerate() {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").collect();
        let [_, _, tests] = cells[..] else { continue };
        let mut programs = Vec::new();
        let mut follows_module = false;
        let mut is_tested = tests.contains("unit tests");
        let mut names_modules = false;
        for span in tests.split('`').skip(1).step_by(2) {
            if span.contains('/') {
                if follows_module {
                    programs.clear();
                }
                programs.push(span);
                follows_module = false;
            } else {
                (follows_module, names_modules) = (true, true);
                is_tested |= programs.iter().any(|program| is_in_gate(program, span));
            }
        }
        if names_modules && !is_tested {
            findings.push(TidyFinding::new("SECURITY.md", at + 1, "the gate has no test of it"));
        }
    }
    findings
}

/// Finds test programs that `cargo test` does not run, and no script either.
pub(crate) fn check_programs(
    manifests: &[(impl AsRef<Path>, String)],
    scripts: &str,
) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for (path, manifest) in manifests {
        for target in manifest.split("[[test]]").skip(1) {
            let target = target.split("\n[").next().unwrap_or(target);
            let mut lines = target.lines();
            let name = lines.find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
            let name = name.unwrap_or("");
            if target.contains("test = false") && !scripts.contains(&format!("--test {name}")) {
                let message = format!("nothing runs the test program {name}");
                findings.push(TidyFinding::new(path.as_ref(), 0, message));
            }
        }
    }
    findings
}

#[test]
fn missing_tests_are_found() {
    let settings = "[profile.default]\na::b\n[profile.gate]\nnot (\n    \
                    or (binary_id(oci-hooks-engine::root) and test(/(?x)^(\n        \
                    network::doctor::\n        | network::life::it_works$\n    )/))\n)\n";
    let source = |text: &str| [SourceFile::new("a.rs", text)];
    let code = "mod doctor;\nfn it_works() {}\n";
    assert_eq!(check_names(settings, &source(code)), []);
    assert_eq!(check_names(settings, &source("// mod doctor;\nfn it() {}\n")).len(), 2);

    let row = |tests: &str| format!("| A | b | {tests} |\n");
    for good in ["`engine/root/network`: `doctor`, `life`", "`engine/all/network`: `doctor`"] {
        assert_eq!(check_threats(settings, &row(good)), [], "{good}");
    }
    for bad in ["`engine/root/network`: `doctor`", "`engine/root`: `network::doctor`"] {
        assert_eq!(check_threats(settings, &row(bad)).len(), 1, "{bad}");
    }

    let manifest = "[[test]]\nname = \"tools\"\ntest = false\n\n[lints]\n".to_owned();
    let manifests = [("Cargo.toml", manifest)];
    assert_eq!(check_programs(&manifests, "cargo test --test tools"), []);
    assert_eq!(check_programs(&manifests, "cargo test --test all").len(), 1);
}
