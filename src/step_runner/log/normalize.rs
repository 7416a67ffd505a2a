//! Normalized text, in which secrets are found whatever case and line width they were printed in: lower
//! case, without line breaks and terminal escape sequences.

/// Length limit of an escape sequence, which bounds what is held back.
pub(super) const MAX_ESCAPE_BYTES: usize = 256;

/// Role of a byte in the normalized text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// A byte of the text, in lower case.
    Text(u8),
    /// A line break, or a byte of an escape sequence.
    Gap,
}

/// Parser of ECMA-48 escape sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Escape {
    state: State,
    length: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Ground,
    Begun,
    /// After ESC and intermediate bytes, such as `(` in `ESC ( B`.
    Intermediate,
    /// In a control sequence (CSI): colours, cursor movements.
    Control,
    /// In a control string (OSC and others): titles, hyperlinks.
    String,
    /// After ESC in a control string, which a backslash ends.
    StringEnd,
}

impl Escape {
    /// Returns whether the stream is outside of an escape sequence.
    pub(super) fn is_ground(self) -> bool {
        self.state == State::Ground
    }

    /// Reads the next byte of the stream.
    #[inline]
    pub(super) fn next(&mut self, byte: u8) -> Part {
        if self.state == State::Ground && byte >= b' ' {
            Part::Text(fold(byte))
        } else {
            self.turn(byte)
        }
    }

    fn turn(&mut self, byte: u8) -> Part {
        if self.length >= MAX_ESCAPE_BYTES {
            *self = Escape::default();
        }
        let state = match (self.state, byte) {
            (State::Begun, b'[') => State::Control,
            (State::Begun, b']' | b'P' | b'X' | b'^' | b'_') => State::String,
            (State::Begun | State::Intermediate, 0x20..=0x2f) => State::Intermediate,
            (State::Begun | State::Intermediate, 0x30..=0x7e) => return self.end(),
            (State::Control, 0x20..=0x3f) => State::Control,
            (State::Control, 0x40..=0x7e) => return self.end(),
            (State::String, 0x07) => return self.end(),
            (State::StringEnd, b'\\') => return self.end(),
            (State::String, 0x1b) => State::StringEnd,
            // A control string ends at a line break, even if unterminated.
            (State::String, byte) if !is_break(byte) => State::String,
            (State::StringEnd, byte) => {
                *self = Escape { state: State::Begun, length: 1 };
                return self.next(byte);
            }
            (_, 0x1b) => {
                *self = Escape { state: State::Begun, length: 1 };
                return Part::Gap;
            }
            (_, byte) => {
                *self = Escape::default();
                return if is_break(byte) { Part::Gap } else { Part::Text(fold(byte)) };
            }
        };
        self.state = state;
        self.length += 1;
        Part::Gap
    }

    fn end(&mut self) -> Part {
        *self = Escape::default();
        Part::Gap
    }
}

/// Returns the normalized text of a secret.
pub(super) fn normalize(text: &str) -> Vec<u8> {
    let mut escape = Escape::default();
    let parts = text.bytes().map(|byte| escape.next(byte));
    parts.filter_map(|part| if let Part::Text(byte) = part { Some(byte) } else { None }).collect()
}

fn fold(byte: u8) -> u8 {
    byte.to_ascii_lowercase()
}

fn is_break(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_and_line_breaks_are_no_text() {
        for (text, expected) in [
            ("aB\r\nc\n\nD", "abcd"),
            ("\x1b[1;31ma\x1b[0mb\x1b[K", "ab"),
            ("a\x1b]0;title\x07b\x1b]8;;http://x\x1b\\c", "abc"),
            ("\x1b(Ba\x1b7b\x1bcc\x1bPq\x1b\\d", "abcd"),
            // What is cut short ends at what cannot belong to it.
            ("a\x1b[31\nb", "ab"),
            ("a\x1b[3\x1b[1mb", "ab"),
            ("a\x1b]0;title\nb", "ab"),
            ("a\x1b]0;title\x1b[1mb", "ab"),
            ("a\x1b\tb", "a\tb"),
            ("\u{e9}\x1b[\u{e9}", "\u{e9}\u{e9}"),
        ] {
            assert_eq!(normalize(text), expected.as_bytes(), "{text:?}");
        }
    }

    #[test]
    fn an_escape_sequence_without_end_becomes_text() {
        let text = format!("a\x1b]{}", "x".repeat(1000));
        let expected = format!("a{}", "x".repeat(1002 - MAX_ESCAPE_BYTES));
        assert_eq!(normalize(&text), expected.as_bytes());
    }
}
