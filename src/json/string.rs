//! Strings: escapes, broken UTF-8, and keys that differ only in case.

use std::borrow::Cow;

/// Decodes the text between the quotes of a syntactically valid string.
///
/// As in Go, each byte of invalid UTF-8 and each lone surrogate becomes one U+FFFD.
pub fn decode(raw: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(raw) {
        Ok(text) if !text.contains('\\') => Cow::Borrowed(text),
        _ => Cow::Owned(decode_slowly(raw)),
    }
}

fn decode_slowly(raw: &[u8]) -> String {
    let mut text = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(backslash) = rest.iter().position(|&b| b == b'\\') {
        push_lossy(&mut text, &rest[..backslash]);
        rest = &rest[backslash + 1..];
        let escape = rest[0];
        rest = &rest[1..];
        text.push(match escape {
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let unit = code_unit(rest);
                rest = &rest[4..];
                match char::from_u32(unit) {
                    Some(c) => c,
                    None => match surrogate_pair(unit, rest) {
                        Some(c) => {
                            rest = &rest[6..];
                            c
                        }
                        None => char::REPLACEMENT_CHARACTER,
                    },
                }
            }
            other => char::from(other),
        });
    }
    push_lossy(&mut text, rest);
    text
}

/// Reads four hexadecimal digits, already validated by the parser.
pub fn code_unit(digits: &[u8]) -> u32 {
    digits[..4].iter().fold(0, |unit, &b| unit << 4 | char::from(b).to_digit(16).unwrap_or(0))
}

/// Joins a high surrogate with the low one escaped right after it; `None` if no low one follows.
pub fn surrogate_pair(high: u32, rest: &[u8]) -> Option<char> {
    let low = code_unit(rest.strip_prefix(b"\\u").filter(|digits| digits.len() >= 4)?);
    if !(0xD800..0xDC00).contains(&high) || !(0xDC00..0xE000).contains(&low) {
        return None;
    }
    char::from_u32(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))
}

fn push_lossy(text: &mut String, bytes: &[u8]) {
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(std::iter::repeat_n(char::REPLACEMENT_CHARACTER, chunk.invalid().len()));
    }
}

/// Writes a string in quotes with the escapes of Go's encoder, which include those for HTML.
pub fn write(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    for c in text.chars() {
        match c {
            '"' => out.extend_from_slice(br#"\""#),
            '\\' => out.extend_from_slice(br"\\"),
            '\n' => out.extend_from_slice(br"\n"),
            '\r' => out.extend_from_slice(br"\r"),
            '\t' => out.extend_from_slice(br"\t"),
            '\u{8}' => out.extend_from_slice(br"\b"),
            '\u{c}' => out.extend_from_slice(br"\f"),
            '\0'..='\u{1f}' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.extend_from_slice(format!("\\u{:04x}", u32::from(c)).as_bytes());
            }
            c => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out.push(b'"');
}

/// Returns whether Go decodes `key` into the field with the ASCII name `name`.
///
/// Go compares by Unicode simple folding. Outside ASCII only U+017F and U+212A fold to ASCII letters.
pub fn folds_to(key: &str, name: &str) -> bool {
    if key.is_ascii() {
        return key.eq_ignore_ascii_case(name);
    }
    let fold = |c| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    };
    key.chars().map(fold).eq(name.chars().map(fold))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_decoded() {
        assert_eq!(decode(br#"a\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00"#), "a\"\\/\u{8}\u{c}\n\r\té😀");
    }

    #[test]
    fn invalid_bytes_and_lone_surrogates_become_replacement_characters() {
        assert_eq!(decode(b"a\xe2\x82b"), "a\u{fffd}\u{fffd}b");
        assert_eq!(decode(br"\ud800\u0041"), "\u{fffd}A");
        assert_eq!(decode(br"\udc00"), "\u{fffd}");
        assert_eq!(decode(br"\ud800\ud800\udc00"), "\u{fffd}\u{10000}");
    }

    #[test]
    fn strings_are_encoded_like_in_go() {
        let mut out = Vec::new();
        write("a\"\\\n\r\t\u{8}\u{c}\u{1}\u{7f}<>&\u{2028}é/😀", &mut out);
        let expected =
            r#""a\"\\\n\r\t\b\f\u0001"#.to_owned() + "\u{7f}" + r#"\u003c\u003e\u0026\u2028é/😀""#;
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn keys_are_folded_like_in_go() {
        assert!(folds_to("STAGES", "stages"));
        assert!(folds_to("\u{17f}tages", "stages"));
        assert!(folds_to("hoo\u{212a}", "hook"));
        assert!(!folds_to("t\u{131}meout", "timeout"));
        assert!(!folds_to("t\u{130}meout", "timeout"));
        assert!(!folds_to("stage", "stages"));
    }
}
