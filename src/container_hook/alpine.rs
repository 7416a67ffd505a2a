//! Whether an image is Alpine: the runner then takes the node that is built for it.

use std::path::Path;

use crate::sys::beneath::Beneath;

/// More than any of these files has.
const LONGEST: u64 = 64 << 10;

/// Where distributions say which they are.
const FILES: [&str; 3] = ["etc/os-release", "usr/lib/os-release", "etc/alpine-release"];

/// Says whether a root file system calls itself Alpine.
///
/// The reference asks the image's own shell and `grep` for the same; an image may have neither.
pub(super) fn is_alpine(rootfs: &Path) -> bool {
    let Ok(root) = Beneath::new(rootfs) else { return false };
    let texts = FILES.iter().map(|file| root.read(Path::new(file), LONGEST).unwrap_or_default());
    let mut texts = texts.map(|text| String::from_utf8_lossy(&text).into_owned());
    texts.any(|text| says_alpine(&text))
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
