//! Tokens of expressions.

/// A token of an expression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Token<'t> {
    /// A name, or a keyword such as `true`.
    Name(&'t str),
    Number(&'t str),
    /// An operator, a bracket, a quote.
    Symbol(&'static str),
    /// A character that starts no token.
    Unknown(&'t str),
    End,
}

/// Longest first: those of two characters precede their prefixes.
const SYMBOLS: [&str; 25] = [
    "&&", "||", "==", "!=", "<=", ">=", "<", ">", "+", "-", "*", "/", "%", "!", ".", ",", ":", "(",
    ")", "[", "]", "{", "}", "\"", "'",
];

impl<'t> Token<'t> {
    /// Returns the first token of a text, and its length in bytes.
    pub(super) fn first(text: &'t str) -> (Self, usize) {
        let Some(c) = text.chars().next() else { return (Token::End, 0) };
        if c.is_alphabetic() || c == '_' {
            let len = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
            return (Token::Name(&text[..len]), len);
        }
        if c.is_ascii_digit() {
            let len = number_len(text.as_bytes());
            return (Token::Number(&text[..len]), len);
        }
        match SYMBOLS.into_iter().find(|symbol| text.starts_with(symbol)) {
            Some(symbol) => (Token::Symbol(symbol), symbol.len()),
            None => (Token::Unknown(&text[..c.len_utf8()]), c.len_utf8()),
        }
    }

    /// Describes the token in messages.
    pub(super) fn describe(self) -> String {
        match self {
            Token::Name(text)
            | Token::Number(text)
            | Token::Symbol(text)
            | Token::Unknown(text) => {
                format!("`{text}`")
            }
            Token::End => "the end".to_owned(),
        }
    }
}

/// Returns the length of a number literal: digits, with a complete fraction and exponent.
fn number_len(text: &[u8]) -> usize {
    let digits = |from: usize| text[from..].iter().take_while(|b| b.is_ascii_digit()).count();
    let mut len = digits(0);
    if text.get(len) == Some(&b'.') {
        match digits(len + 1) {
            0 => return len,
            count => len += 1 + count,
        }
    }
    if matches!(text.get(len), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(text.get(len + 1), Some(b'+' | b'-')));
        match text.len().checked_sub(len + 1 + sign).map_or(0, |_| digits(len + 1 + sign)) {
            0 => {}
            count => len += 1 + sign + count,
        }
    }
    len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_end_where_they_are_complete() {
        for (text, number) in [
            ("42", "42"),
            ("3.14+", "3.14"),
            ("1.5e3", "1.5e3"),
            ("2E-4x", "2E-4"),
            ("1.", "1"),
            ("1..2", "1"),
            ("1.5e", "1.5"),
            ("1e+", "1"),
            ("1.2.3", "1.2"),
            ("007", "007"),
        ] {
            assert_eq!(Token::first(text), (Token::Number(number), number.len()), "{text}");
        }
    }

    #[test]
    fn symbols_of_two_characters_are_one_token() {
        assert_eq!(Token::first("<=1"), (Token::Symbol("<="), 2));
        assert_eq!(Token::first("<-1"), (Token::Symbol("<"), 1));
        assert_eq!(Token::first("=1"), (Token::Unknown("="), 1));
        assert_eq!(Token::first("é_1-"), (Token::Name("é_1"), 4));
        assert_eq!(Token::first("€"), (Token::Unknown("€"), 3));
        assert_eq!(Token::first(""), (Token::End, 0));
    }
}
