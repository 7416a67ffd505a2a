//! Errors in settings files, without the values of the file.
//!
//! The message is often shown to a user who cannot read the file, such as the runner's or GARM's user when the
//! program runs as root. File, line and column lead users with access to the value.

use oci_hooks_files::spelling::closest_name;

/// Prefixes of serde's messages that quote the value, followed by the expected type.
const FOUND: [&str; 5] =
    ["unknown field", "unknown variant", "invalid type", "invalid value", "invalid length"];

/// Message if the value cannot be removed from the original message.
const NOT_EXPECTED: &str = "invalid value: see the documentation of this setting for valid ones";

/// An error in a TOML file, with its position. Lines and columns count from one, columns in characters.
#[derive(Debug, thiserror::Error)]
#[error("{line}:{column}: {message}")]
pub struct TomlError {
    line: usize,
    column: usize,
    message: String,
}

impl TomlError {
    /// Returns an error at byte offset `at` of the file.
    pub fn at(text: &[u8], at: usize, message: String) -> Self {
        let before = &text[..at.min(text.len())];
        let line_start = before.iter().rposition(|&b| b == b'\n').map_or(0, |newline| newline + 1);
        TomlError {
            line: before.iter().filter(|&&b| b == b'\n').count() + 1,
            column: String::from_utf8_lossy(&before[line_start..]).chars().count() + 1,
            message,
        }
    }

    /// Returns the message without the position.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Converts an error of the TOML parser.
    pub fn of(text: &str, error: &toml::de::Error) -> Self {
        let span = error.span().unwrap_or_default();
        let part = text.get(span.clone()).unwrap_or_default();
        TomlError::at(text.as_bytes(), span.start, remove_value(error.message(), part))
    }
}

/// Removes the value `part` from the message of a TOML error.
fn remove_value(message: &str, part: &str) -> String {
    let message = message.trim_end().replace('\n', " ");
    if let Some(beginning) = FOUND.iter().find(|beginning| message.starts_with(**beginning)) {
        // The last match, because the value may contain ", expected " too.
        let expected = message.rfind(", expected ").map_or("", |at| &message[at..]);
        let suggestion = closest(message.strip_prefix(beginning).unwrap_or_default(), expected)
            .map_or_else(String::new, |name| format!(" (did you mean `{name}`?)"));
        return format!("{beginning}{expected}{suggestion}{}", newer_version_hint(beginning));
    }
    if let Some((what, expected)) = message.split_once(&format!(" {part}: expected ")) {
        return format!("{what}: expected {expected}");
    }
    let number = message.strip_prefix(part).filter(|_| !part.is_empty());
    let message = match text_after_quoted(&message).or(number) {
        Some(rest) => format!("this{rest}"),
        None => message,
    };
    if contains_value(&message, part) { NOT_EXPECTED.to_owned() } else { message }
}

/// Returns the expected name that is most similar to a misspelled one, which is at the beginning of `found`.
fn closest<'a>(found: &str, expected: &'a str) -> Option<&'a str> {
    let name = found.split('`').nth(1)?;
    closest_name(name, expected.split('`').skip(1).step_by(2)).filter(|meant| *meant != name)
}

/// Returns the hint that a newer version may know a field, which happens after a downgrade.
fn newer_version_hint(found: &str) -> &'static str {
    if found == "unknown field" {
        concat!("; a version newer than ", env!("CARGO_PKG_VERSION"), " may support it")
    } else {
        ""
    }
}

/// Returns the rest of a message after the quoted string (written with `{:?}`) at its beginning.
fn text_after_quoted(message: &str) -> Option<&str> {
    let inner = message.strip_prefix('"')?;
    let mut is_escaped = false;
    let end = inner.find(|c| {
        let is_end = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        is_end
    })?;
    Some(&inner[end + 1..])
}

/// Returns whether a message contains a value, as written in TOML or parsed.
fn contains_value(message: &str, part: &str) -> bool {
    let meant = toml::from_str::<toml::Table>(&format!("value = {part}")).ok();
    let meant = meant.and_then(|table| Some(table.get("value")?.as_str()?.to_owned()));
    let meant = meant.unwrap_or_default();
    let forms = [part.trim().to_owned(), meant.escape_debug().to_string(), meant];
    // Values of one or two characters also occur in the message by chance.
    forms.iter().any(|form| form.chars().count() > 2 && message.contains(form.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_keeps_the_expectation_and_drops_the_found_value() {
        for (message, part, expected) in [
            (
                "unknown field `s3cret`, expected `a` or `b`",
                "s3cret",
                "unknown field, expected `a` or `b`; a version newer than 0.1.0 may support it",
            ),
            (
                "unknown field `Flavor`, expected one of `boot`, `flavors`, `limits`",
                "Flavor",
                "unknown field, expected one of `boot`, `flavors`, `limits` (did you mean `flavors`?); \
                 a version newer than 0.1.0 may support it",
            ),
            (
                "unknown variant `allways`, expected `always` or `never`",
                "\"allways\"",
                "unknown variant, expected `always` or `never` (did you mean `always`?)",
            ),
            (
                "invalid type: string \"s3cret\", expected u64",
                "\"s3cret\"",
                "invalid type, expected u64",
            ),
            (
                "invalid value: string \"s3cret, expected y\", expected a port",
                "\"s3cret, expected y\"",
                "invalid value, expected a port",
            ),
            ("invalid type: string \"s3cret\"", "\"s3cret\"", "invalid type"),
            ("\"s3c\\\"ret\" is no size: write 20GB", "'s3c\"ret'", "this is no size: write 20GB"),
            ("invalid size \"s3cret\": expected 20GB", "\"s3cret\"", "invalid size: expected 20GB"),
            ("invalid size \"s3cret\": expected 20GB", "'s3cret'", NOT_EXPECTED),
            ("no address: s3cret", "\"s3cret\"", NOT_EXPECTED),
            ("no address: s3cret", "\"\\u00733cret\"", NOT_EXPECTED),
            ("no address: s3c\\nret", "\"s3c\\nret\"", NOT_EXPECTED),
            ("12345 is no number", "12345", "this is no number"),
            ("invalid count 12345: expected 1", "12345", "invalid count: expected 1"),
            ("invalid IP address syntax", "\"x\"", "invalid IP address syntax"),
            ("missing field `target`", "[caches.a]", "missing field `target`"),
        ] {
            assert_eq!(remove_value(message, part), expected, "{message}");
        }
    }
}
