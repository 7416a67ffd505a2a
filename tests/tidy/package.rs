//! What stands beside the code: man pages, examples.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::source::Finding;

/// The package, as far as these rules look at it.
pub(crate) struct Package {
    pub(crate) manifest: String,
    /// The names of files in `man`.
    pub(crate) man: BTreeSet<String>,
    /// The names of files in `hooks.d-examples`, `DIR/` before those a directory deeper.
    pub(crate) examples: BTreeSet<String>,
    pub(crate) examples_readme: String,
}

/// The least number of examples.
const MIN_EXAMPLES: usize = 10;

/// Checks that programs have a man page, and that examples are there and described.
pub(crate) fn check(package: &Package) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, name) in programs(&package.manifest) {
        let page = format!("{name}.1");
        if !package.man.contains(&page) {
            findings.push(Finding::new("Cargo.toml", line, format!("{name} needs man/{page}")));
        }
    }
    let readme = PathBuf::from("hooks.d-examples/README.md");
    let hooks: Vec<_> = package.examples.iter().filter(|name| is_hook(name)).collect();
    if hooks.len() < MIN_EXAMPLES {
        let message = format!("{} example hooks, less than {MIN_EXAMPLES}", hooks.len());
        findings.push(Finding::new(&readme, 1, message));
    }
    let is_described = |path: &str| {
        path.rsplit('/').next().is_some_and(|name| package.examples_readme.contains(name))
    };
    for hook in hooks.into_iter().filter(|hook| !is_described(hook)) {
        findings.push(Finding::new(&readme, 1, format!("{hook} is not described")));
    }
    findings
}

fn is_hook(name: &str) -> bool {
    name.ends_with(".json") && !name.ends_with("config.json")
}

/// Returns the names of the programs, each with its line.
fn programs(manifest: &str) -> Vec<(usize, &str)> {
    let lines: Vec<_> = manifest.lines().collect();
    let programs = lines.windows(2).enumerate().filter(|(_, pair)| pair[0] == "[[bin]]");
    programs
        .filter_map(|(at, pair)| {
            Some((at + 2, pair[1].strip_prefix("name = \"")?.trim_end_matches('"')))
        })
        .collect()
}

#[test]
fn missing_pages_and_examples_are_found() {
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    let found = check(&Package {
        manifest: "[package]\n\n[[bin]]\nname = \"a\"\n\n[[bin]]\nname = \"b\"\n".to_owned(),
        man: names(&["a.1", "b.5"]),
        examples: names(&["x.json", "podman/y.json", "bundle/config.json", "README.md"]),
        examples_readme: "`x.json` does this.".to_owned(),
    });
    let found: Vec<_> = found.iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            "Cargo.toml:7: b needs man/b.1",
            "hooks.d-examples/README.md:1: 2 example hooks, less than 10",
            "hooks.d-examples/README.md:1: podman/y.json is not described",
        ]
    );
}
