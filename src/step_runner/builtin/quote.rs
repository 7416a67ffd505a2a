//! Quoting for shells.

/// Returns a word that every POSIX shell reads as this text.
pub(super) fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
