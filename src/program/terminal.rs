//! Text as wide as the terminal.

use std::io;

use rustix::termios::tcgetwinsize;

/// Returns how many columns standard output has, if it is a terminal.
pub fn width() -> Option<usize> {
    let size = tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0).then(|| size.ws_col.into())
}

/// How many blanks lines begin with where the terminal is narrow.
const NARROW: usize = 6;

/// Breaks a line between words where it is wider than `width`. All lines but the first begin with `indent` blanks, or
/// fewer where little would fit beside them. Words are not broken: people copy them.
pub fn hang(line: &str, width: usize, indent: usize) -> String {
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

/// Returns how many columns a text takes, without the sequences that style it.
fn columns(text: &str) -> usize {
    let mut parts = text.split('\u{1b}');
    let first = parts.next().unwrap_or_default().chars().count();
    let rest = parts.map(|part| part.split_once('m').map_or(0, |(_, rest)| rest.chars().count()));
    first + rest.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words_and_indented() {
        assert_eq!(hang("  a bb ccc dddd", 9, 4), "  a bb\n    ccc\n    dddd");
        assert_eq!(hang("ok    name  found", 80, 12), "ok    name  found");
        assert_eq!(hang("ok    name  it was found", 20, 12), "ok    name  it was\n      found");
    }

    #[test]
    fn words_that_are_too_long_have_less_indentation_and_stay_whole() {
        assert_eq!(hang("a b /a/long/path", 14, 8), "a b\n      /a/long/path");
        assert_eq!(hang("a /a/much/longer/path c", 10, 8), "a\n      /a/much/longer/path\n      c");
    }

    #[test]
    fn styles_take_no_columns() {
        assert_eq!(hang("\u{1b}[31ma\u{1b}[0m bb ccc", 6, 2), "\u{1b}[31ma\u{1b}[0m bb\n  ccc");
        assert_eq!(columns("\u{1b}[1m\u{1b}[31mé\u{1b}[0m"), 1);
    }
}
