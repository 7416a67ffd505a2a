//! The packages of a release, built from the static programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::program;

/// Package names, each also the name of its program.
pub const NAMES: [&str; 6] = [
    "oci-hooks",
    "oci-hooks-runtime",
    "oci-hooks-nri",
    "container-hook",
    "step-runner",
    "garm-provider-runc",
];

/// Returns the output directory of `contrib/dist`. The first call runs it.
pub fn directory() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| program::path_made_by("tests/support/packages.sh"))
}

/// Returns the paths of the .debs, in the order of [`NAMES`].
pub fn debs() -> Vec<PathBuf> {
    let files: Vec<_> = fs::read_dir(directory())
        .expect("it was made")
        .map(|entry| entry.expect("a directory can be read").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .collect();
    let of = |name: &str| {
        let begin = format!("{name}_");
        let is_its = |path: &&PathBuf| {
            path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&begin))
        };
        files.iter().find(is_its).unwrap_or_else(|| panic!("there is no package {name}")).clone()
    };
    NAMES.iter().map(|name| of(name)).collect()
}
