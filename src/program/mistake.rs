//! What is wrong with a file of settings, without what it holds.
//!
//! Who sees the message is often not who may read the file: the runner, or GARM's user, whom root
//! answers. File, line and column lead those who may to the value.

/// The beginnings of messages of serde that name what was found, and then what was expected.
const FOUND: [&str; 5] =
    ["unknown field", "unknown variant", "invalid type", "invalid value", "invalid length"];

/// What is left to say where the message holds the value and cannot be told apart from it.
const NOT_EXPECTED: &str = "this value cannot be used here: see `config --default` for what can";

/// What is wrong with a file in TOML, and where. Lines and columns count from one, columns in
/// characters.
#[derive(Debug, thiserror::Error)]
#[error("{line}:{column}: {message}")]
pub struct Mistake {
    line: usize,
    column: usize,
    message: String,
}

impl Mistake {
    /// Returns that which is behind so many bytes of the file.
    pub fn at(text: &[u8], at: usize, message: String) -> Self {
        let before = &text[..at.min(text.len())];
        let line_start = before.iter().rposition(|&b| b == b'\n').map_or(0, |newline| newline + 1);
        Mistake {
            line: before.iter().filter(|&&b| b == b'\n').count() + 1,
            column: String::from_utf8_lossy(&before[line_start..]).chars().count() + 1,
            message,
        }
    }

    /// Returns what is wrong, without where.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns what the reader of a text found.
    pub fn of(text: &str, error: &toml::de::Error) -> Self {
        let span = error.span().unwrap_or_default();
        let part = text.get(span.clone()).unwrap_or_default();
        Mistake::at(text.as_bytes(), span.start, without_value(error.message(), part))
    }
}

/// Returns the message of an error about a part of a file in TOML, without that part.
fn without_value(message: &str, part: &str) -> String {
    let message = message.trim_end().replace('\n', " ");
    if let Some(beginning) = FOUND.iter().find(|beginning| message.starts_with(**beginning)) {
        // From the last one on: what was found may hold these words as well.
        let expected = message.rfind(", expected ").map_or("", |at| &message[at..]);
        return format!("{beginning}{expected}{}", later(beginning));
    }
    if let Some((what, expected)) = message.split_once(&format!(" {part}: expected ")) {
        return format!("{what}: expected {expected}");
    }
    let number = message.strip_prefix(part).filter(|_| !part.is_empty());
    let message = match after_quoted(&message).or(number) {
        Some(rest) => format!("this{rest}"),
        None => message,
    };
    if holds(&message, part) { NOT_EXPECTED.to_owned() } else { message }
}

/// Returns a hint for what a newer version of the program may know: after a roll-back.
fn later(found: &str) -> &'static str {
    if found == "unknown field" {
        concat!("; a version newer than this, ", env!("CARGO_PKG_VERSION"), ", may know it")
    } else {
        ""
    }
}

/// Returns what follows a text in quotes, as `{:?}` writes it, at the beginning.
fn after_quoted(message: &str) -> Option<&str> {
    let inner = message.strip_prefix('"')?;
    let mut is_escaped = false;
    let end = inner.find(|c| {
        let is_end = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        is_end
    })?;
    Some(&inner[end + 1..])
}

/// Returns whether a message holds a value, as it is written or as it is meant.
fn holds(message: &str, part: &str) -> bool {
    let meant = toml::from_str::<toml::Table>(&format!("value = {part}")).ok();
    let meant = meant.and_then(|table| Some(table.get("value")?.as_str()?.to_owned()));
    let meant = meant.unwrap_or_default();
    let forms = [part.trim().to_owned(), meant.escape_debug().to_string(), meant];
    // Of such a short one only the message itself is made.
    forms.iter().any(|form| form.chars().count() > 2 && message.contains(form.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_expected_stays_and_what_was_found_goes() {
        for (message, part, expected) in [
            (
                "unknown field `s3cret`, expected `a` or `b`",
                "s3cret",
                "unknown field, expected `a` or `b`; a version newer than this, 0.1.0, may know it",
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
            assert_eq!(without_value(message, part), expected, "{message}");
        }
    }
}
