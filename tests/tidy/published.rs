//! The files of the package that `cargo publish` uploads: what is compiled into it is in it, and little else.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use crate::source::{Finding, Source};

/// More than any source file has.
const MAX_BYTES: u64 = 100 << 10;

/// What stays in the repository.
const NOT_PUBLISHED: [&str; 5] = [".ci", ".github", "benches", "fuzz", "tests"];

/// Returns the files that cargo would package.
pub(crate) fn files() -> BTreeSet<PathBuf> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["package", "--list", "--allow-dirty", "--offline", "--quiet"]);
    let output = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(PathBuf::from).collect()
}

/// Finds published files that are of no use to users, and files that published sources include and are missing.
pub(crate) fn check(
    files: &BTreeSet<PathBuf>,
    sources: &[Source],
    size_bytes: impl Fn(&Path) -> u64,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        let size = size_bytes(file);
        if size > MAX_BYTES {
            findings.push(Finding::new(file, 1, format!("{size} bytes are published")));
        }
        if NOT_PUBLISHED.iter().any(|dir| file.starts_with(dir)) {
            findings.push(Finding::new(file, 1, "is published: see `include` in Cargo.toml"));
        }
    }
    for source in sources.iter().filter(|source| files.contains(&source.path)) {
        for included in included(source) {
            // Unit tests read what is there; whatever else does fails in `tests/support/published.sh`.
            if !files.contains(&included) && !included.starts_with("tests") {
                let message = format!("{} is not published", included.display());
                findings.push(Finding::new(&source.path, 1, message));
            }
        }
    }
    findings
}

/// Returns the files that the code of a file includes, tests apart.
fn included(source: &Source) -> Vec<PathBuf> {
    let text = &source.text[..source.code_without_tests().len()];
    let parent = source.path.parent().unwrap_or(Path::new(""));
    ["include_str!(", "include_bytes!("]
        .iter()
        .flat_map(|name| text.split(name).skip(1))
        .filter_map(|rest| rest.trim_start().strip_prefix('"')?.split_once('"'))
        .map(|(path, _)| normal(&parent.join(path)))
        .collect()
}

/// Takes `..` out of a path.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normal.pop()),
            part => normal.push(part),
        }
    }
    normal
}

#[test]
fn missing_and_needless_files_are_found() {
    let include = "const A: &str = include_str!(\"../docs/a.toml\");\n\
                   const B: &[u8] = include_bytes!(\n    \"b.bin\"\n);\n\
                   #[cfg(test)]\nmod tests {\n    const C: &str = include_str!(\"c.txt\");\n}\n";
    let sources = [Source::new("src/a.rs", include), Source::new("tests/d.rs", include)];
    let files =
        ["src/a.rs", "docs/a.toml", "tests/data/e", "docs/big.md"].map(PathBuf::from).into();
    let size = |path: &Path| if path.ends_with("big.md") { MAX_BYTES + 1 } else { 1 };
    let found: Vec<_> = check(&files, &sources, size).iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            "docs/big.md:1: 102401 bytes are published",
            "tests/data/e:1: is published: see `include` in Cargo.toml",
            "src/a.rs:1: src/b.bin is not published",
        ]
    );
}
