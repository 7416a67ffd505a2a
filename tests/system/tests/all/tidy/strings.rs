//! Indentation of the source within messages, from a missing backslash at the end of a line, or from joined lines.

use crate::tidy::source::{SourceFile, TidyFinding};

/// Maximum number of spaces between two words of a message.
const BLANKS: usize = 5;

/// Checks the strings of the code, but not of tests, which often contain whole files.
pub(crate) fn check(source: &SourceFile) -> Vec<TidyFinding> {
    if !source.package_path().1.starts_with("src")
        || source.is_below("crates/testsupport")
        || source.is_named("tests.rs")
    {
        return Vec::new();
    }
    let end = source.code_without_tests().len();
    let strings = source.strings().into_iter().filter(|(at, _)| *at < end);
    let stray = strings.filter(|(_, text)| has_stray_blanks(text));
    let message = "blanks in a message: end the line of the source with a backslash";
    stray.map(|(at, _)| source.finding(at, message)).collect()
}

fn has_stray_blanks(text: &str) -> bool {
    // Lines joined by a backslash at their end.
    let mut joined = String::new();
    for (at, line) in text.split("\\\n").enumerate() {
        joined += if at == 0 { line } else { line.trim_start() };
    }
    let is_word = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c == ',');
    let mut start = 0;
    while let Some(at) = joined[start..].find([' ', '\n']).map(|at| start + at) {
        let next = joined[at..].trim_start_matches([' ', '\n']);
        let blanks = joined.len() - at - next.len();
        let line = joined[..at].rsplit('\n').next().unwrap_or_default();
        // An indented line is a table row or an example.
        let is_prose = !line.starts_with(' ') && is_word(line.chars().last());
        if blanks > BLANKS && is_prose && is_word(next.chars().next()) {
            return true;
        }
        start = at + blanks;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> usize {
        check(&SourceFile::new("src/a.rs", text)).len()
    }

    #[test]
    fn missing_line_continuations_are_found() {
        assert_eq!(count("#[error(\"publish on it,          or on all\")]"), 1);
        assert_eq!(count("#[error(\"publish on it,\n         or on all\")]"), 1);
        assert_eq!(count("#[error(\n    \"publish on it, \\\n         or on all\"\n)]"), 0);
    }
}
