//! Text for terminals: lines wrapped to their width, and control characters escaped.

use std::io;

use rustix::termios::tcgetwinsize;

/// Returns the number of columns of standard output, if it is a terminal.
pub fn width() -> Option<usize> {
    let size = tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0).then(|| size.ws_col.into())
}

/// Maximum indentation in columns where the full indentation leaves too little width.
const NARROW: usize = 6;

/// Wraps a line at `width` between words. All lines but the first are indented by `indent` blanks, or by fewer on a
/// narrow terminal. Words are never split, so they can be copied.
pub fn wrap_hanging(line: &str, width: usize, indent: usize) -> String {
    if columns(line) <= width {
        return line.to_owned();
    }
    let longest = line.split(' ').map(columns).max().unwrap_or_default();
    let fitting = |blanks: usize| {
        let is_narrow = blanks > width / 2 || blanks + longest > width;
        if is_narrow { blanks.min(NARROW) } else { blanks }
    };
    let words = line.trim_start_matches(' ');
    let (start, indent) = (fitting(line.len() - words.len()), fitting(indent));
    let mut out = " ".repeat(start);
    let mut at = start;
    let mut is_first = true;
    for word in words.split(' ') {
        let wide = columns(word);
        if is_first {
            out += word;
            at += wide;
        } else if at + 1 + wide > width && wide > 0 {
            out.truncate(out.trim_end_matches(' ').len());
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            out += word;
            at = indent + wide;
        } else {
            out.push(' ');
            out += word;
            at += 1 + wide;
        }
        is_first = false;
    }
    out
}

/// Returns the width of a text in columns, without escape sequences.
fn columns(text: &str) -> usize {
    let mut parts = text.split('\u{1b}');
    let first = parts.next().unwrap_or_default().chars().count();
    let rest = parts.map(|part| part.split_once('m').map_or(0, |(_, rest)| rest.chars().count()));
    first + rest.sum::<usize>()
}

/// Returns text with control characters escaped.
pub fn escape_control(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let is_harmless = |c: char| c == '\t' || !c.is_control();
    let chars = text.trim_end_matches('\r').chars();
    chars.fold(String::new(), |mut out, c| {
        if is_harmless(c) {
            out.push(c);
        } else {
            out.extend(c.escape_default());
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words_and_indented() {
        assert_eq!(wrap_hanging("  a bb ccc dddd", 9, 4), "  a bb\n    ccc\n    dddd");
        assert_eq!(wrap_hanging("ok    name  found", 80, 12), "ok    name  found");
        assert_eq!(
            wrap_hanging("ok    name  it was found", 20, 12),
            "ok    name  it was\n      found"
        );
    }

    #[test]
    fn long_words_reduce_indentation_and_are_not_broken() {
        assert_eq!(wrap_hanging("a b /a/long/path", 14, 8), "a b\n      /a/long/path");
        assert_eq!(
            wrap_hanging("a /a/much/longer/path c", 10, 8),
            "a\n      /a/much/longer/path\n      c"
        );
    }

    #[test]
    fn styles_take_no_columns() {
        assert_eq!(
            wrap_hanging("\u{1b}[31ma\u{1b}[0m bb ccc", 6, 2),
            "\u{1b}[31ma\u{1b}[0m bb\n  ccc"
        );
        assert_eq!(columns("\u{1b}[1m\u{1b}[31mé\u{1b}[0m"), 1);
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(escape_control(b"a\tb\x1b[2J\xff\r"), "a\tb\\u{1b}[2J\u{fffd}");
    }
}
