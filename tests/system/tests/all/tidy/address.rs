//! The repository's address is written only in Cargo.toml: pages have relative links, and everything else
//! reads it from there.

use std::fs;
use std::path::{Path, PathBuf};

use crate::tidy::source::TidyFinding;

/// Directories that are not part of a clone.
const SKIPPED: [&str; 2] = [".git", "target"];

/// Returns the files of a clone below one of its directories.
pub(crate) fn files(repository: &Path, directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(repository.join(directory)).unwrap() {
        let entry = entry.unwrap();
        let path = directory.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            if !SKIPPED.iter().any(|skipped| path.ends_with(skipped)) {
                files.extend(self::files(repository, &path));
            }
        } else {
            files.push(path);
        }
    }
    files
}

/// Finds an address, including in man pages, where hyphens are escaped with `\`.
pub(crate) fn check(path: &Path, text: &str, address: &str) -> Vec<TidyFinding> {
    let place = address.split_once("//").map_or(address, |(_, place)| place);
    let path_of_raw = place.split_once('/').map_or(place, |(_, path)| path);
    let raw = format!("raw.githubusercontent.com/{path_of_raw}");
    let lines = text.lines().enumerate();
    let has_address = |line: &str| {
        let line = line.replace('\\', "");
        line.contains(place) || line.contains(&raw)
    };
    let found = lines.filter(|(_, line)| has_address(line));
    found
        .map(|(at, _)| {
            TidyFinding::new(path, at + 1, "the address of the repository: link relatively")
        })
        .collect()
}

#[test]
fn addresses_are_found() {
    let text = "https://host.example/a/b-c\n.UR https://host.example/a/b\\-c/d\n\
                https://raw.githubusercontent.com/a/b-c/main/x\na/b-c\n";
    let found = check(Path::new("page.md"), text, "https://host.example/a/b-c");
    let found: Vec<_> = found.iter().map(ToString::to_string).collect();
    let message = "the address of the repository: link relatively";
    assert_eq!(found, [1, 2, 3].map(|line| format!("page.md:{line}: {message}")));
}
