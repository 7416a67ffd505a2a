//! Prefilter for secrets, and normalization of text: lower case, without line breaks and escape sequences.

use memchr::memchr3_iter;

/// A prefilter that finds the position at which one of many texts may begin, several times faster
/// than an automaton.
///
/// Most of a log has nothing to mask. A position is checked by a case-insensitive hash of its next
/// four bytes, at the same cost for one phrase or a thousand; packed searchers take at most 64
/// patterns. Texts with a line break or an escape sequence near their start are searched for only
/// around line breaks and escape sequences. There are false positives, but no false negatives.
pub struct TextPrefilter {
    /// Bit mask that selects the bytes to hash out of four: all, or as many as the shortest text
    /// has.
    mask: u32,
    /// Distance between checked positions: 1, or 2 if all texts are longer than four bytes, since
    /// the table then contains bytes 2 to 5 of each text too.
    step: usize,
    breaks: bool,
    /// Sets of eight bits: a hash selects the slot in the table by its upper bits, and the bit in
    /// the slot by [`TextPrefilter::second_mask`].
    table: Box<[u8]>,
    /// Number of lower bits of a hash that do not select the slot.
    shift: u32,
}

/// Minimum number of table slots per text: in a smaller table, texts collide too often.
const SLOTS_PER_TEXT: usize = 512;

/// Maximum number of table slots. A log touches few of them: few distinct sequences of four bytes
/// occur in its words.
const MAX_SLOTS: usize = 1 << 18;

/// Number of bytes that are hashed at each position.
const WIDTH: usize = 4;

/// Number of positions that are checked together, without a branch for each.
const BLOCK: usize = 8;

/// Number of bytes that are searched for uninterrupted texts before the same bytes are searched for
/// line breaks and escape sequences.
const SPAN: usize = 2048;

/// Number of bytes read for a block of positions, including the bytes hashed at the last position.
const BLOCK_READS: usize = BLOCK + WIDTH;

/// Result of the search for texts that no line break or escape sequence interrupts near their
/// start: a position, or the end of the searched bytes.
enum UnbrokenMatch {
    At(usize),
    None { to: usize },
}

impl TextPrefilter {
    /// Compiles texts. If `breaks` is set, line breaks and escape sequences may occur between their bytes.
    pub fn new<'t>(texts: impl Iterator<Item = &'t [u8]> + Clone, breaks: bool) -> Self {
        let shortest = texts.clone().map(<[u8]>::len).min().unwrap_or(0);
        let mask = match shortest {
            0 | 1 => 0xff,
            2 => 0xffff,
            3 => 0xff_ffff,
            _ => u32::MAX,
        };
        let step = if shortest > WIDTH { 2 } else { 1 };
        let slots = (texts.clone().count() * SLOTS_PER_TEXT).next_power_of_two();
        let slots = slots.clamp(SLOTS_PER_TEXT, MAX_SLOTS);
        let shift = u32::BITS - slots.ilog2();
        let table = vec![0; slots].into_boxed_slice();
        let mut prefilter = TextPrefilter { mask, step, breaks, table, shift };
        for text in texts {
            for from in 0..step {
                let mut head = [0; WIDTH];
                let bytes = text.iter().skip(from).take(WIDTH);
                head.iter_mut().zip(bytes).for_each(|(head, byte)| *head = *byte);
                let hash = prefilter.hash(u32::from_le_bytes(head).into());
                prefilter.table[prefilter.slot(hash)] |= prefilter.second_mask(hash);
            }
        }
        prefilter
    }

    /// Returns the number of bytes to skip: no text begins in them, not even a text that continues after
    /// the input.
    pub fn find(&self, text: &[u8]) -> usize {
        if self.step == 2 { self.find_by::<2>(text) } else { self.find_by::<1>(text) }
    }

    #[inline]
    fn find_by<const STEP: usize>(&self, text: &[u8]) -> usize {
        let mut from = 0;
        let mut escape = None;
        loop {
            let whole = self.find_whole::<STEP>(text, from);
            let (end, last_break) = match whole {
                UnbrokenMatch::None { to } => (to, to),
                UnbrokenMatch::At(place) => (place, text.len().min(place + WIDTH + STEP)),
            };
            let breaks = if self.breaks { from..last_break } else { from..from };
            for at in memchr3_iter(b'\n', b'\r', 0x1b, &text[breaks]) {
                let at = from + at;
                if let Some(place) = self.find_start_at_break::<STEP>(text, at)
                    && place < end
                {
                    return move_out_of_escape(text, place, escape);
                }
                if text[at] == 0x1b && at < end {
                    escape = Some(at);
                }
            }
            match whole {
                UnbrokenMatch::None { to } => from = to,
                UnbrokenMatch::At(place) => return move_out_of_escape(text, place, escape),
            }
        }
    }

    /// Searches from an offset for texts that no line break or escape sequence interrupts near
    /// their start.
    fn find_whole<const STEP: usize>(&self, text: &[u8], from: usize) -> UnbrokenMatch {
        let mut at = from;
        for block in text[from..].windows(BLOCK_READS).step_by(BLOCK).take(SPAN / BLOCK) {
            let block: &[u8; BLOCK_READS] = block.try_into().expect("windows have the length");
            let hash = |index: usize| self.hash(window(&block[index * STEP..][..WIDTH]));
            let slots = (0..BLOCK / STEP).map(|index| self.table[self.slot(hash(index))]);
            if slots.fold(0, |any, seconds| any | seconds) != 0 {
                let mut indices = 0..BLOCK / STEP;
                let is_found =
                    |index| self.table[self.slot(hash(index))] & self.second_mask(hash(index)) != 0;
                if let Some(index) = indices.find(|&index| is_found(index)) {
                    return UnbrokenMatch::At((at + index * STEP).saturating_sub(STEP - 1));
                }
            }
            at += BLOCK;
        }
        if at - from == SPAN {
            return UnbrokenMatch::None { to: at };
        }
        let windows = text[at..].windows(WIDTH).step_by(STEP);
        let found = windows.map(window).position(|window| self.look_up(window) != 0);
        let found = found.map_or(usize::MAX, |index| (at + index * STEP).saturating_sub(STEP - 1));
        UnbrokenMatch::At(found.min(text.len().saturating_sub(WIDTH + STEP - 2)))
    }

    /// Returns the earliest start of a text that the line break or escape sequence at an offset may
    /// interrupt.
    #[inline]
    fn find_start_at_break<const STEP: usize>(&self, text: &[u8], at: usize) -> Option<usize> {
        // A lone line feed is by far the most frequent break.
        if text[at] == b'\n'
            && let Some(around) = at.checked_sub(WIDTH).and_then(|from| text.get(from..at + WIDTH))
        {
            let around = u64::from_le_bytes(around.try_into().expect("it has eight bytes"));
            if controls(around) == 0x80 << 32 {
                let parted = (around & 0xffff_ffff) | (around >> 40 << 32);
                let windows = (0..WIDTH).map(|from| parted >> (8 * from));
                let found = windows.fold(0, |found, window| found | self.look_up(window));
                return (found != 0).then(|| at - (WIDTH + STEP - 2));
            }
        }
        self.find_start_at_any_break::<STEP>(text, at)
    }

    fn find_start_at_any_break<const STEP: usize>(&self, text: &[u8], at: usize) -> Option<usize> {
        let before = text[..at].iter().rev().take(WIDTH + STEP - 2);
        let longest = before.take_while(|byte| !is_break(**byte)).count();
        if longest == 0 {
            return None;
        }
        let Some(behind) = bytes_after_break(&text[at..]) else { return Some(at - longest) };
        let mut bytes = u64::from(u32::from_le_bytes(behind));
        for &byte in text[at - longest..at].iter().rev() {
            bytes = bytes << 8 | u64::from(byte);
            if self.look_up(bytes) != 0 {
                return Some(at - longest);
            }
        }
        None
    }

    /// Returns a nonzero number if one of the texts may begin with the first four bytes of `bytes`.
    #[inline]
    fn look_up(&self, bytes: u64) -> u8 {
        let hash = self.hash(bytes);
        self.table[self.slot(hash)] & self.second_mask(hash)
    }

    /// Hashes the first four bytes of `bytes`. Upper and lower case, and some pairs of other
    /// characters, have the same hash.
    #[inline]
    fn hash(&self, bytes: u64) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "four bytes are meant")]
        let window = (bytes as u32 | 0x2020_2020) & self.mask;
        // Fibonacci hashing: the upper bits of the product depend on all bytes.
        window.wrapping_mul(0x9e37_79b1)
    }

    #[inline]
    fn slot(&self, hash: u32) -> usize {
        (hash >> self.shift) as usize
    }

    /// Returns a mask with one bit set, chosen by three bits of the hash that do not select the
    /// slot.
    #[inline]
    fn second_mask(&self, hash: u32) -> u8 {
        1 << (hash >> (self.shift - 3) & 7)
    }
}

/// Returns the first three bytes of `text`, which begins with a line break or an escape sequence, in lower case and
/// without line breaks and escape sequences; `None` if there are fewer.
fn bytes_after_break(text: &[u8]) -> Option<[u8; WIDTH]> {
    if let [b'\n', first, second, third, ..] = *text
        && first.min(second).min(third) >= b' '
    {
        return Some([first, second, third, 0]);
    }
    let mut escape = EscapeParser::default();
    let mut behind = [0; WIDTH];
    let mut length = 0;
    for &byte in text {
        if let ByteRole::Text(byte) = escape.next(byte) {
            behind[length] = byte;
            length += 1;
            if length == WIDTH - 1 {
                return Some(behind);
            }
        }
    }
    None
}

/// Returns a position, or the start of the escape sequence that contains it. `escape` is the offset
/// of the last ESC before the position.
fn move_out_of_escape(text: &[u8], place: usize, escape: Option<usize>) -> usize {
    let Some(begun) = escape.filter(|begun| place - begun <= MAX_ESCAPE_BYTES) else {
        return place;
    };
    let mut escape = EscapeParser::default();
    for byte in &text[begun..place] {
        escape.next(*byte);
    }
    if escape.is_ground() { place } else { begun }
}

fn is_break(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r' | 0x1b)
}

fn window(bytes: &[u8]) -> u64 {
    u32::from_le_bytes(bytes.try_into().expect("windows have the width")).into()
}

/// Returns a mask with the high bit set for each of eight bytes that is below 0x20.
fn controls(bytes: u64) -> u64 {
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let others = ((bytes & !HIGH) + 0x6060_6060_6060_6060) | bytes;
    !others & HIGH
}

/// Length limit of an escape sequence, which bounds the held-back input.
const MAX_ESCAPE_BYTES: usize = 256;

/// Role of a byte in [`normalize`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteRole {
    /// A byte that is kept, in lower case.
    Text(u8),
    /// A line break or a byte of an escape sequence, which is dropped.
    Gap,
}

/// Parser of ECMA-48 escape sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EscapeParser {
    state: EscapeState,
    length: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum EscapeState {
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

impl EscapeParser {
    /// Returns whether the stream is outside of an escape sequence.
    pub fn is_ground(self) -> bool {
        self.state == EscapeState::Ground
    }

    /// Reads the next byte of the stream.
    #[inline]
    pub fn next(&mut self, byte: u8) -> ByteRole {
        if self.state == EscapeState::Ground && byte >= b' ' {
            ByteRole::Text(fold_case(byte))
        } else {
            self.advance(byte)
        }
    }

    fn advance(&mut self, byte: u8) -> ByteRole {
        if self.length >= MAX_ESCAPE_BYTES {
            *self = EscapeParser::default();
        }
        let state = match (self.state, byte) {
            (EscapeState::Begun, b'[') => EscapeState::Control,
            (EscapeState::Begun, b']' | b'P' | b'X' | b'^' | b'_') => EscapeState::String,
            (EscapeState::Begun | EscapeState::Intermediate, 0x20..=0x2f) => {
                EscapeState::Intermediate
            }
            (EscapeState::Begun | EscapeState::Intermediate, 0x30..=0x7e) => return self.end(),
            (EscapeState::Control, 0x20..=0x3f) => EscapeState::Control,
            (EscapeState::Control, 0x40..=0x7e) => return self.end(),
            (EscapeState::String, 0x07) => return self.end(),
            (EscapeState::StringEnd, b'\\') => return self.end(),
            (EscapeState::String, 0x1b) => EscapeState::StringEnd,
            // A control string ends at a line break, even if unterminated.
            (EscapeState::String, byte) if !is_line_break(byte) => EscapeState::String,
            (EscapeState::StringEnd, byte) => {
                *self = EscapeParser { state: EscapeState::Begun, length: 1 };
                return self.next(byte);
            }
            (_, 0x1b) => {
                *self = EscapeParser { state: EscapeState::Begun, length: 1 };
                return ByteRole::Gap;
            }
            (_, byte) => {
                *self = EscapeParser::default();
                return if is_line_break(byte) {
                    ByteRole::Gap
                } else {
                    ByteRole::Text(fold_case(byte))
                };
            }
        };
        self.state = state;
        self.length += 1;
        ByteRole::Gap
    }

    fn end(&mut self) -> ByteRole {
        *self = EscapeParser::default();
        ByteRole::Gap
    }
}

/// Returns a text in lower case, without line breaks and escape sequences. Only ASCII letters change case.
pub fn normalize(text: &str) -> Vec<u8> {
    let mut escape = EscapeParser::default();
    let parts = text.bytes().map(|byte| escape.next(byte));
    parts
        .filter_map(|part| if let ByteRole::Text(byte) = part { Some(byte) } else { None })
        .collect()
}

fn fold_case(byte: u8) -> u8 {
    byte.to_ascii_lowercase()
}

fn is_line_break(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_and_line_breaks_are_not_text() {
        for (text, expected) in [
            ("aB\r\nc\n\nD", "abcd"),
            ("\x1b[1;31ma\x1b[0mb\x1b[K", "ab"),
            ("a\x1b]0;title\x07b\x1b]8;;http://x\x1b\\c", "abc"),
            ("\x1b(Ba\x1b7b\x1bcc\x1bPq\x1b\\d", "abcd"),
            // A truncated sequence ends at the first byte that cannot belong to it.
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
    fn unterminated_escape_sequence_becomes_text() {
        let text = format!("a\x1b]{}", "x".repeat(1000));
        let expected = format!("a{}", "x".repeat(1002 - MAX_ESCAPE_BYTES));
        assert_eq!(normalize(&text), expected.as_bytes());
    }
}
