//! The published packages have neither tests nor large files. `tests/support/published.sh` checks that they
//! have all files required for compiling.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tidy::source::TidyFinding;
use oci_hooks_testsupport::program;

/// Size limit of a file. Larger files are not needed to compile the package.
const MAX_BYTES: u64 = 100 << 10;

/// Directories that are not published.
const NOT_PUBLISHED: [&str; 5] = [".ci", ".github", "benches", "fuzz", "tests"];

/// Returns the files of the package in a directory.
pub(crate) fn files(directory: &Path) -> Vec<PathBuf> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["package", "--list", "--allow-dirty", "--offline", "--quiet"]);
    let output = cargo.current_dir(program::repository("").join(directory)).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(PathBuf::from).collect()
}

/// Checks the published files of a package.
pub(crate) fn check(
    directory: &Path,
    files: &[PathBuf],
    size_bytes: impl Fn(&Path) -> u64,
) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for file in files {
        let path = directory.join(file);
        let size = size_bytes(&path);
        // Cargo adds it to packages with programs.
        if size > MAX_BYTES && !file.ends_with("Cargo.lock") {
            findings.push(TidyFinding::new(&path, 1, format!("{size} bytes are published")));
        }
        if NOT_PUBLISHED.iter().any(|dir| file.starts_with(dir)) {
            findings.push(TidyFinding::new(path, 1, "is published: see `include` in Cargo.toml"));
        }
    }
    findings
}

#[test]
fn needless_published_files_are_found() {
    let files = ["src/a.rs", "tests/data/e", "docs/big.md"].map(PathBuf::from);
    let size = |path: &Path| if path.ends_with("big.md") { MAX_BYTES + 1 } else { 1 };
    let found = check(Path::new("crates/x"), &files, size);
    let found: Vec<_> = found.iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            "crates/x/tests/data/e:1: is published: see `include` in Cargo.toml",
            "crates/x/docs/big.md:1: 102401 bytes are published",
        ]
    );
}
