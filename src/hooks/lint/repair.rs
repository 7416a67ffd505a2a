//! Slips: syntax errors with one obvious fix. They are comments, commas before closing brackets, a
//! byte order mark, and backslashes that are not doubled.
//!
//! The parser stops at the first slip. [`RepairedText`] finds all slips at once, and replaces them
//! (except backslashes) with spaces: offsets stay the same, and the rest of the text can be
//! checked.

use std::ops::Range;

use super::finding::FindingSink;
use super::{LintFix, LintRule, rules};
use crate::json::{SyntaxError, SyntaxErrorKind};

/// A text that is not JSON, in which slips such as comments are replaced with spaces.
pub struct RepairedText {
    /// The repaired text. It has the length of the source text, so offsets are the same in both.
    pub text: Vec<u8>,
    slips: Vec<Slip>,
}

struct Slip {
    rule: &'static LintRule,
    span: Range<usize>,
}

pub const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

impl RepairedText {
    /// Finds and repairs slips in invalid JSON.
    pub fn new(text: &[u8]) -> Self {
        let mut repaired = RepairedText { text: text.to_vec(), slips: Vec::new() };
        let mut at = 0;
        if text.starts_with(BYTE_ORDER_MARK) {
            repaired.blank_span(&rules::BYTE_ORDER_MARK, 0..BYTE_ORDER_MARK.len());
            at = BYTE_ORDER_MARK.len();
        }
        // The last comma, if only space and comments have followed.
        let mut comma = None;
        while let Some(&byte) = text.get(at) {
            let end = match byte {
                b'"' => repaired.string(text, at),
                b'/' | b'#' => match comment_end(text, at) {
                    Some(end) => {
                        repaired.blank_span(&rules::COMMENT, at..end);
                        at = end;
                        continue;
                    }
                    None => at + 1,
                },
                b'}' | b']' => {
                    if let Some(comma) = comma {
                        repaired.blank_span(&rules::TRAILING_COMMA, comma..comma + 1);
                    }
                    at + 1
                }
                _ => at + 1,
            };
            match byte {
                b',' => comma = Some(at),
                b' ' | b'\t' | b'\r' | b'\n' => {}
                _ => comma = None,
            }
            at = end;
        }
        repaired
    }

    /// Skips a string and records its invalid escapes.
    fn string(&mut self, text: &[u8], start: usize) -> usize {
        let mut at = start + 1;
        while let Some(&byte) = text.get(at) {
            match byte {
                b'"' => return at + 1,
                // JSON strings have no line breaks: without the closing quote, the rest is guesswork.
                b'\n' => return at,
                b'\\' => {
                    let next = text.get(at + 1).copied().unwrap_or(b'"');
                    let is_escape = match next {
                        b'u' => text
                            .get(at + 2..at + 6)
                            .is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)),
                        next => b"\"\\/bfnrt".contains(&next),
                    };
                    if !is_escape && next.is_ascii_graphic() {
                        self.slips.push(Slip { rule: &rules::INVALID_ESCAPE, span: at..at + 2 });
                    }
                    at += 2;
                }
                _ => at += 1,
            }
        }
        text.len()
    }

    fn blank_span(&mut self, rule: &'static LintRule, span: Range<usize>) {
        for byte in &mut self.text[span.clone()] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        self.slips.push(Slip { rule, span });
    }

    /// Reports all slips, and the parser's error if no slip explains it.
    pub fn report(&self, error: SyntaxError, sink: &mut FindingSink<'_>) {
        for slip in &self.slips {
            let (text, span) = (sink.text, slip.span.clone());
            let message = match slip.rule.code {
                code if code == rules::TRAILING_COMMA.code => "comma before a closing bracket",
                code if code == rules::COMMENT.code => "JSON has no comments",
                code if code == rules::BYTE_ORDER_MARK.code => {
                    "the file starts with a byte order mark"
                }
                _ => "backslash before a character that JSON does not escape",
            };
            let fix = match slip.rule.code {
                code if code == rules::TRAILING_COMMA.code => {
                    LintFix::remove("remove the comma", span.clone())
                }
                code if code == rules::COMMENT.code => {
                    LintFix::remove("remove the comment", extend_to_space(text, &span))
                }
                code if code == rules::BYTE_ORDER_MARK.code => {
                    LintFix::remove("remove the byte order mark", span.clone())
                }
                _ => LintFix::replace("double the backslash", span.start..span.start + 1, "\\\\"),
            };
            sink.span(slip.rule, span, message).fix(fix);
        }
        if !self.is_explained(error) {
            syntax_error(error, sink);
        }
    }

    /// Returns whether a slip explains the parser's error.
    fn is_explained(&self, error: SyntaxError) -> bool {
        let same_place =
            |slip: &Slip| slip.span.start <= error.offset && error.offset <= slip.span.end;
        self.slips.iter().any(same_place)
    }
}

/// Reports the parser's error.
pub fn syntax_error(error: SyntaxError, sink: &mut FindingSink<'_>) {
    let text = sink.text;
    if text.trim_ascii().is_empty() {
        sink.file(&rules::EMPTY_FILE, "the file is empty").hint(
            "remove it, and turn hooks off with `oci-hooks disable`: an empty file or a link to \
             /dev/null stops all containers",
        );
        return;
    }
    let at = error.offset.min(text.len());
    let end = (at + 1).min(text.len());
    let finding = sink.span(&rules::INVALID_JSON, at..end, error.to_string());
    finding.hint = match error.kind {
        SyntaxErrorKind::UnexpectedEnd => Some("a quote or a bracket is not closed"),
        SyntaxErrorKind::Expected(what) if what.starts_with("`:`") => {
            Some("is the closing quote of the key missing?")
        }
        SyntaxErrorKind::Expected(what) if what.starts_with("`,`") => {
            Some("is a comma or a quote missing before this?")
        }
        kind => kind.hint(),
    }
    .map(str::to_owned);
}

/// Finds the end of a comment, without its line break; `None` if there is no complete comment.
fn comment_end(text: &[u8], start: usize) -> Option<usize> {
    let rest = &text[start..];
    if rest.starts_with(b"/*") {
        let length = rest[2..].windows(2).position(|pair| pair == b"*/")?;
        return Some(start + 2 + length + 2);
    }
    (rest[0] == b'#' || rest.starts_with(b"//")).then(|| {
        let line = rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
        start + rest[..line].trim_ascii_end().len()
    })
}

/// Extends the span of a comment at the end of a line to the blanks around it, or to the whole line
/// if the line contains nothing else.
fn extend_to_space(text: &[u8], span: &Range<usize>) -> Range<usize> {
    let blank = |b: &&u8| matches!(b, b' ' | b'\t' | b'\r');
    let start = span.start - text[..span.start].iter().rev().take_while(blank).count();
    let end = span.end + text[span.end..].iter().take_while(blank).count();
    let starts_line = start == 0 || text[start - 1] == b'\n';
    match text.get(end) {
        Some(b'\n') if starts_line => start..end + 1,
        Some(b'\n') | None => start..end,
        Some(_) => span.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::JsonDocument;

    fn find_slips(text: &str) -> Vec<(&'static str, String)> {
        let repaired = RepairedText::new(text.as_bytes());
        assert_eq!(repaired.text.len(), text.len());
        let name = |slip: &Slip| (slip.rule.name, text[slip.span.clone()].to_owned());
        repaired.slips.iter().map(name).collect()
    }

    #[test]
    fn all_syntax_slips_are_found_at_once() {
        let text = "{ // one\n \"a\": [1, /* two */ 2, ], # three\n \"b\": \"x // \\\" y\", }";
        assert_eq!(
            find_slips(text),
            [
                ("comment", "// one".to_owned()),
                ("comment", "/* two */".to_owned()),
                ("trailing-comma", ",".to_owned()),
                ("comment", "# three".to_owned()),
                ("trailing-comma", ",".to_owned()),
            ]
        );
        assert!(JsonDocument::parse(&RepairedText::new(text.as_bytes()).text).is_ok());
    }

    #[test]
    fn missing_double_backslashes_are_found_but_not_blanked() {
        assert_eq!(
            find_slips(r#"{"com\.example\d": "\u00e9\n\\.\u12"}"#),
            [
                ("invalid-escape", "\\.".to_owned()),
                ("invalid-escape", "\\d".to_owned()),
                ("invalid-escape", "\\u".to_owned()),
            ]
        );
    }

    #[test]
    fn unterminated_texts_cause_no_error() {
        for text in ["\"", "\"\\", "/*", "/", "{\"a\": \"b\n}", "[,", "#"] {
            RepairedText::new(text.as_bytes());
        }
    }

    #[test]
    fn comment_is_removed_with_its_line() {
        let text = "{\n  // alone\n  \"a\": 1 // behind\n}";
        let spans: Vec<_> = RepairedText::new(text.as_bytes()).slips.into_iter().collect();
        let removed: Vec<_> =
            spans.iter().map(|s| &text[extend_to_space(text.as_bytes(), &s.span)]).collect();
        assert_eq!(removed, ["  // alone\n", " // behind"]);
    }
}
