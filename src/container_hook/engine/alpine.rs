//! Whether an image is Alpine: the runner then takes the node that is built for it.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::sys::beneath::Beneath;

/// More than any of these files has.
const MAX_FILE_BYTES: u64 = 64 << 10;

/// Where distributions say which they are.
const FILES: [&str; 3] = ["etc/os-release", "usr/lib/os-release", "etc/alpine-release"];

/// Returns whether a root file system calls itself Alpine.
///
/// The reference asks the image's own shell and `grep` for the same; an image may have neither.
pub(super) fn is_alpine(rootfs: &Path) -> bool {
    let Ok(root) = Beneath::new(rootfs) else { return false };
    FILES.iter().filter_map(|file| read(&root, Path::new(file))).any(|text| says_alpine(&text))
}

/// Reads a file of the image, if it is one.
fn read(root: &Beneath, path: &Path) -> Option<String> {
    // Without waiting for somebody to write, if it is a pipe.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(root.open_as_root(path, flags, Mode::empty()).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn says_alpine(text: &str) -> bool {
    text.lines().any(|line| {
        let id = line.trim().to_ascii_lowercase();
        id.strip_prefix("id=").is_some_and(|id| id.trim_matches(['"', '\'']).starts_with("alpine"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_counts_and_no_other_line() {
        assert!(says_alpine("NAME=\"Alpine Linux\"\nID=alpine\n"));
        assert!(says_alpine("ID=\"alpine\"\n"));
        assert!(!says_alpine("ID=debian\nID_LIKE=alpine\nNAME=alpine\n"));
    }
}
