//! Words as a shell splits them, without expansion.
//!
//! The runner joins a program's arguments into one string and splits it at each blank, even inside quotes.
//! [`rejoin`] undoes that. The `options:` of a workflow are split by [`split`], as the reference hook does:
//! by the rules of POSIX quoting, but `#`, `$`, `;` and globs are ordinary characters.

/// Errors of splitting a text into words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WordsError {
    #[error("the quotation mark {0} is never closed")]
    Quote(char),
    #[error("trailing backslash: use `\\\\` for a literal backslash")]
    Backslash,
}

/// Returns the arguments that the runner cut into `pieces`.
///
/// # Errors
///
/// Fails if a quotation mark is not closed or the text ends with a backslash.
pub fn rejoin<S: AsRef<str>>(pieces: &[S]) -> Result<Vec<String>, WordsError> {
    let pieces: Vec<&str> = pieces.iter().map(AsRef::as_ref).collect();
    split(&pieces.join(" "))
}

/// Splits a text into words.
///
/// # Errors
///
/// Fails if a quotation mark is not closed or the text ends with a backslash.
pub fn split(text: &str) -> Result<Vec<String>, WordsError> {
    let mut words = Vec::new();
    let mut chars = text.chars();
    // None between words: `""` is a word, though an empty one.
    let mut word: Option<String> = None;
    while let Some(c) = chars.next() {
        match c {
            ' ' | '\t' | '\n' | '\r' => words.extend(word.take()),
            '\'' => read_single_quoted(&mut chars, word.get_or_insert_default())?,
            '"' => read_double_quoted(&mut chars, word.get_or_insert_default())?,
            '\\' => match chars.next().ok_or(WordsError::Backslash)? {
                // A line continuation.
                '\n' => {}
                escaped => word.get_or_insert_default().push(escaped),
            },
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

fn read_single_quoted(
    chars: &mut impl Iterator<Item = char>,
    word: &mut String,
) -> Result<(), WordsError> {
    for c in chars {
        match c {
            '\'' => return Ok(()),
            _ => word.push(c),
        }
    }
    Err(WordsError::Quote('\''))
}

fn read_double_quoted(
    chars: &mut impl Iterator<Item = char>,
    word: &mut String,
) -> Result<(), WordsError> {
    while let Some(c) = chars.next() {
        match c {
            '"' => return Ok(()),
            // Variables are not expanded, so `\$` and `` \` `` keep their backslash, unlike in a shell.
            '\\' => match chars.next().ok_or(WordsError::Backslash)? {
                '\n' => {}
                escaped @ ('"' | '\\') => word.push(escaped),
                other => word.extend(['\\', other]),
            },
            _ => word.push(c),
        }
    }
    Err(WordsError::Quote('"'))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct WordsCase {
        input: Vec<String>,
        ok: Option<Vec<String>>,
    }

    #[test]
    fn arguments_are_rejoined_like_by_the_reference_hooks() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
        let text = fs::read_to_string(data.join("words.jsonl")).unwrap();
        for line in text.lines() {
            let case: WordsCase = serde_json::from_str(line).unwrap();
            assert_eq!(rejoin(&case.input).ok(), case.ok, "{line}");
        }
    }

    #[test]
    fn empty_words_and_continued_lines_are_kept() {
        assert_eq!(split("a '' \"\" b\\\nc \\\n d").unwrap(), ["a", "", "", "bc", "d"]);
        assert_eq!(split(" \n\t").unwrap(), [""; 0]);
    }

    #[test]
    fn unclosed_quotes_are_named() {
        assert_eq!(split("it's"), Err(WordsError::Quote('\'')));
        assert_eq!(split("\"a"), Err(WordsError::Quote('"')));
        assert_eq!(split("a\\"), Err(WordsError::Backslash));
        assert_eq!(split("\"a\\"), Err(WordsError::Backslash));
    }
}
