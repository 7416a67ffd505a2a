//! What a revision can be.

/// Minimum length of an abbreviated commit.
const MIN_DIGITS: usize = 8;

/// Length of SHA-1 and SHA-256 commits.
const DIGITS: [usize; 2] = [40, 64];

/// Returns whether a text is a full commit id.
pub(super) fn is_commit(text: &str) -> bool {
    DIGITS.contains(&text.len())
        && text.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns whether a text is a valid name of a branch or tag. Others could have a special meaning to git.
pub(super) fn is_ref_name(text: &str) -> bool {
    let is_bad = |c: char| c.is_control() || c.is_whitespace() || "~^:?*[\\".contains(c);
    !text.is_empty()
        && !text.contains(is_bad)
        && !text.contains("..")
        && !text.contains("@{")
        && !text.contains("//")
        && !text.starts_with(['-', '/', '.'])
        && !text.ends_with(['/', '.'])
}

/// Returns whether a text in lower case can be the first digits of a commit.
pub(super) fn is_abbreviation(text: &str) -> bool {
    text.len() >= MIN_DIGITS
        && text.len() < DIGITS[1]
        && text.bytes().all(|digit| digit.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_git_would_take_for_more_than_a_name_is_none() {
        for name in ["v1", "feature/x", "1.2.3", "a-b_c", "é", "@"] {
            assert!(is_ref_name(name), "{name}");
        }
        for name in [
            "", "-v1", "--all", "a b", "a\n", "a..b", "a^{}", "a:b", "*", "v?", "[a]", "/a", "a/",
            "x@{1}",
        ] {
            assert!(!is_ref_name(name), "{name}");
        }
        assert!(is_commit(&"0a".repeat(20)) && is_commit(&"0a".repeat(32)));
        assert!(!is_commit(&"0A".repeat(20)) && !is_commit(&"0a".repeat(19)));
    }
}
