//! Files that no program, library or test includes: the compiler never sees them.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::source::{Finding, Source};

/// Finds files that cannot be reached from what the manifests name, each given with its directory.
pub(crate) fn check(manifests: &[(&Path, String)], sources: &[Source]) -> Vec<Finding> {
    let roots: Vec<_> = manifests.iter().flat_map(|(dir, manifest)| roots(dir, manifest)).collect();
    let mut paths = roots.clone();
    let mut seen = HashSet::new();
    while let Some(path) = paths.pop() {
        if !seen.insert(path.clone()) {
            continue;
        }
        if let Some(source) = sources.iter().find(|source| source.path == path) {
            paths.extend(children(source, roots.contains(&path)));
        }
    }
    let orphans = sources.iter().filter(|source| !seen.contains(&source.path));
    orphans
        .map(|source| source.finding(0, "nothing includes it: name it in Cargo.toml or with `mod`"))
        .collect()
}

/// What no manifest names: the library, and the program that `build.rs` compiles.
const ALWAYS: [&str; 2] = ["src/lib.rs", "src/sys/init/program.rs"];

/// Returns the files that a manifest names, and those that are always there.
fn roots(dir: &Path, manifest: &str) -> Vec<PathBuf> {
    let paths = manifest.lines().filter_map(|line| line.strip_prefix("path = \""));
    let paths = paths.map(|path| path.trim_end_matches('"')).chain(ALWAYS);
    paths.map(|path| dir.join(path)).collect()
}

/// Returns the files that a file may mean with its `mod` lines.
fn children(source: &Source, is_root: bool) -> Vec<PathBuf> {
    let parent = source.path.parent().unwrap_or(Path::new(""));
    let dir = if is_root || source.is_named("mod.rs") {
        parent.to_owned()
    } else {
        source.path.with_extension("")
    };
    let mut children = Vec::new();
    let mut named = None;
    for (code, text) in source.code.lines().zip(source.text.lines()) {
        if let Some(path) = text.strip_prefix("#[path = \"") {
            named = path.strip_suffix("\"]");
            continue;
        }
        let Some(name) = code.strip_suffix(';').and_then(|code| code.split_once("mod ")) else {
            continue;
        };
        match named.take() {
            Some(path) => children.push(normal(&parent.join(path))),
            None => {
                children.push(dir.join(format!("{}.rs", name.1)));
                children.push(dir.join(name.1).join("mod.rs"));
            }
        }
    }
    children
}

/// Takes `..` out of a path.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path {
        if part == ".." {
            out.pop();
        } else {
            out.push(part);
        }
    }
    out
}

#[test]
fn forgotten_files_are_found() {
    let manifest = "[[test]]\nname = \"b\"\npath = \"tests/b/main.rs\"\n";
    let sources = [
        ("src/lib.rs", "pub mod a;\nmod c;\n"),
        ("src/a/mod.rs", "mod d;"),
        ("src/a/d.rs", "    mod e;"),
        ("src/a/d/e.rs", ""),
        ("src/c.rs", "// mod forgotten;"),
        ("src/forgotten.rs", ""),
        ("tests/b/main.rs", "mod f;\n#[path = \"../support/mod.rs\"]\nmod support;\n"),
        ("tests/b/f.rs", ""),
        ("tests/support/mod.rs", "pub(crate) mod g;"),
        ("tests/support/g.rs", ""),
        ("tests/forgotten/main.rs", ""),
        ("fuzz/targets/h.rs", ""),
        ("fuzz/targets/forgotten.rs", ""),
    ];
    let sources = sources.map(|(path, text)| Source::new(path, text));
    let manifests = [
        (Path::new(""), manifest.to_owned()),
        (Path::new("fuzz"), "path = \"targets/h.rs\"".to_owned()),
    ];
    let found: Vec<_> = check(&manifests, &sources).iter().map(ToString::to_string).collect();
    let files: Vec<_> =
        found.iter().filter_map(|finding| Some(finding.split_once(':')?.0)).collect();
    let expected = ["src/forgotten.rs", "tests/forgotten/main.rs", "fuzz/targets/forgotten.rs"];
    assert_eq!(files, expected, "{found:?}");
}
