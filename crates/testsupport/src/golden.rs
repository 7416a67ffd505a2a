//! Golden files: expected output, which `UPDATE_GOLDEN=1` rewrites.

use std::fs;
use std::path::Path;

/// Compares text with a golden file, or writes the file with `UPDATE_GOLDEN=1`.
#[track_caller]
pub fn compare(path: &Path, found: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1") {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        return fs::write(path, found).unwrap();
    }
    let expected = fs::read_to_string(path).unwrap_or_default();
    assert!(
        found == expected,
        "{} differs; UPDATE_GOLDEN=1 rewrites it\n--- expected\n{expected}\n--- found\n{found}",
        path.display()
    );
}
