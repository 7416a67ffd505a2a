//! Files besides the code: man pages, examples.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::tidy::source::TidyFinding;

/// The checked parts of the package.
pub(crate) struct PackageFiles {
    /// Main file of each program, and whether it has a man page.
    pub(crate) programs: Vec<(PathBuf, bool)>,
    /// File names in `hooks.d-examples`, prefixed with `DIR/` in subdirectories.
    pub(crate) examples: BTreeSet<String>,
    pub(crate) examples_readme: String,
}

/// Minimum number of examples.
const MIN_EXAMPLES: usize = 10;

/// Checks that programs have man pages, and that examples exist and are described.
pub(crate) fn check(package: &PackageFiles) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for (main, has_page) in &package.programs {
        if !has_page {
            findings.push(TidyFinding::new(
                main,
                1,
                "a program needs a page in `man` of its crate",
            ));
        }
    }
    let readme = PathBuf::from("hooks.d-examples/README.md");
    let hooks: Vec<_> = package.examples.iter().filter(|name| is_hook(name)).collect();
    if hooks.len() < MIN_EXAMPLES {
        let message = format!("{} example hooks, less than {MIN_EXAMPLES}", hooks.len());
        findings.push(TidyFinding::new(&readme, 1, message));
    }
    let is_described = |path: &str| {
        path.rsplit('/').next().is_some_and(|name| package.examples_readme.contains(name))
    };
    for hook in hooks.into_iter().filter(|hook| !is_described(hook)) {
        findings.push(TidyFinding::new(&readme, 1, format!("{hook} is not described")));
    }
    findings
}

fn is_hook(name: &str) -> bool {
    name.ends_with(".json") && !name.ends_with("config.json")
}

#[test]
fn missing_pages_and_examples_are_found() {
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    let found = check(&PackageFiles {
        programs: vec![("a/main.rs".into(), true), ("b/main.rs".into(), false)],
        examples: names(&["x.json", "podman/y.json", "bundle/config.json", "README.md"]),
        examples_readme: "`x.json` does this.".to_owned(),
    });
    let found: Vec<_> = found.iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            "b/main.rs:1: a program needs a page in `man` of its crate",
            "hooks.d-examples/README.md:1: 2 example hooks, less than 10",
            "hooks.d-examples/README.md:1: podman/y.json is not described",
        ]
    );
}
