//! Whether what a distribution says of itself is that it is Alpine: the runner then takes the node that is
//! built for it.

/// More than any of these files has.
pub(super) const MAX_FILE_BYTES: u64 = 64 << 10;

/// Where distributions say which they are, from the root on.
pub(super) const FILES: [&str; 3] = ["etc/os-release", "usr/lib/os-release", "etc/alpine-release"];

/// Returns whether the text of such a file says so.
pub(super) fn says_alpine(text: &str) -> bool {
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
