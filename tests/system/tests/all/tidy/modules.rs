//! Files that no program, library or test includes, so that the compiler never sees them.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::tidy::source::{SourceFile, TidyFinding};

/// Finds files that belong to no target. Targets are the files where Cargo looks for them, and those named in
/// the manifest of `fuzz`.
pub(crate) fn check(fuzz: &str, sources: &[SourceFile]) -> Vec<TidyFinding> {
    let named = fuzz.lines().filter_map(|line| line.strip_prefix("path = \""));
    let named: Vec<_> =
        named.map(|path| Path::new("fuzz").join(path.trim_end_matches('"'))).collect();
    let roots: HashSet<_> = sources
        .iter()
        .filter(|source| is_target(source.package_path().1) || named.contains(&source.path))
        .map(|source| source.path.clone())
        .collect();
    let mut paths: Vec<_> = roots.iter().cloned().collect();
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
    orphans.map(|source| source.finding(0, "nothing includes it: name it with `mod`")).collect()
}

/// Returns whether a file of a package is a target for Cargo.
fn is_target(path: &Path) -> bool {
    let parts: Vec<_> = path.iter().filter_map(|part| part.to_str()).collect();
    matches!(
        parts.as_slice(),
        ["build.rs"]
            | ["src", "lib.rs" | "main.rs"]
            | ["src", "bin", _, "main.rs"]
            | ["tests" | "examples" | "benches", _]
            | ["tests", _, "main.rs"]
    )
}

/// Returns the files that the `mod` lines of a file may refer to.
fn children(source: &SourceFile, is_root: bool) -> Vec<PathBuf> {
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
            Some(path) => children.push(normalize_path(&parent.join(path))),
            None => {
                children.push(dir.join(format!("{}.rs", name.1)));
                children.push(dir.join(name.1).join("mod.rs"));
            }
        }
    }
    children
}

/// Removes `..` from a path.
fn normalize_path(path: &Path) -> PathBuf {
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
fn source_files_outside_of_modules_are_found() {
    let sources = [
        ("src/lib.rs", "pub mod a;\nmod c;\n"),
        ("src/a/mod.rs", "mod d;"),
        ("src/a/d.rs", "    mod e;"),
        ("src/a/d/e.rs", ""),
        ("src/c.rs", "// mod forgotten;"),
        ("src/forgotten.rs", ""),
        ("crates/x/src/bin/x/main.rs", "mod y;"),
        ("crates/x/src/bin/x/y.rs", ""),
        ("crates/x/tests/all/main.rs", "mod f;\n#[path = \"../shared/g.rs\"]\nmod g;\n"),
        ("crates/x/tests/all/f.rs", ""),
        ("crates/x/tests/shared/g.rs", ""),
        ("crates/x/tests/all/forgotten.rs", ""),
        ("fuzz/targets/h.rs", ""),
        ("fuzz/targets/forgotten.rs", ""),
    ];
    let sources = sources.map(|(path, text)| SourceFile::new(path, text));
    let found: Vec<_> =
        check("path = \"targets/h.rs\"", &sources).iter().map(ToString::to_string).collect();
    let files: Vec<_> =
        found.iter().filter_map(|finding| Some(finding.split_once(':')?.0)).collect();
    let expected =
        ["src/forgotten.rs", "crates/x/tests/all/forgotten.rs", "fuzz/targets/forgotten.rs"];
    assert_eq!(files, expected, "{found:?}");
}
