use memchr::memchr3_iter;

use super::normalize::{Escape, MAX_ESCAPE_BYTES, Part};

/// Finds where one of many texts may begin, several times as fast as an automaton reads.
///
/// Nearly all of a log is nothing to mask. A place is judged by a hash of its next four bytes, upper
/// and lower case alike, which costs the same for one phrase and for a thousand, where packed
/// searchers end at 64 patterns. Only where a line or an escape sequence breaks the text are the
/// bytes behind the break read for it. What is found may be nothing; what is not found is not there.
pub(super) struct Gate {
    /// Leaves as many bytes of the four as the shortest text has.
    mask: u32,
    /// Every second place is enough where each text has its second four bytes in the table too.
    step: usize,
    /// Whether breaks matter.
    breaks: bool,
    /// By hash, the second hashes of the texts that have it, as bits.
    table: Box<[u8; 1 << BITS]>,
}

/// A log touches little of the table, which is 256 KiB: few of all four bytes are in its words. In a
/// smaller one, what a few hundred forms begin with is met by chance too often.
const BITS: u32 = 18;

/// How many bytes a place is judged by.
const WIDTH: usize = 4;

/// How many places are judged between two branches.
const BLOCK: usize = 8;

/// How much is read for whole texts before breaks are looked for.
const SPAN: usize = 2048;

/// How much is loaded for a block: the last place but one is judged by what stands after it.
const BLOCK_READS: usize = BLOCK + WIDTH;

/// Where a text may begin that no break parts near its beginning.
enum Whole {
    At(usize),
    None { to: usize },
}

impl Gate {
    /// Takes texts as they begin in the stream and, if any may be broken, in what is normalized of it.
    pub(super) fn new<'t>(texts: impl Iterator<Item = &'t [u8]> + Clone, breaks: bool) -> Self {
        let shortest = texts.clone().map(<[u8]>::len).min().unwrap_or(0);
        let mask = match shortest {
            0 | 1 => 0xff,
            2 => 0xffff,
            3 => 0xff_ffff,
            _ => u32::MAX,
        };
        let step = if shortest > WIDTH { 2 } else { 1 };
        let mut gate = Gate { mask, step, breaks, table: Box::new([0; 1 << BITS]) };
        for text in texts {
            for from in 0..step {
                let mut head = [0; WIDTH];
                let bytes = text.iter().skip(from).take(WIDTH);
                head.iter_mut().zip(bytes).for_each(|(head, byte)| *head = *byte);
                let hash = gate.hash(u32::from_le_bytes(head).into());
                gate.table[slot(hash)] |= second(hash);
            }
        }
        gate
    }

    /// Returns how much of the text can be passed over: no text begins in it, not even one that
    /// goes on after all this.
    pub(super) fn find(&self, text: &[u8]) -> usize {
        if self.step == 2 { self.find_by::<2>(text) } else { self.find_by::<1>(text) }
    }

    #[inline]
    fn find_by<const STEP: usize>(&self, text: &[u8]) -> usize {
        let mut from = 0;
        let mut escape = None;
        loop {
            let whole = self.find_whole::<STEP>(text, from);
            let (end, last_break) = match whole {
                Whole::None { to } => (to, to),
                Whole::At(place) => (place, text.len().min(place + WIDTH + STEP)),
            };
            let breaks = if self.breaks { from..last_break } else { from..from };
            for at in memchr3_iter(b'\n', b'\r', 0x1b, &text[breaks]) {
                let at = from + at;
                if let Some(place) = self.at_break::<STEP>(text, at)
                    && place < end
                {
                    return outside(text, place, escape);
                }
                if text[at] == 0x1b && at < end {
                    escape = Some(at);
                }
            }
            match whole {
                Whole::None { to } => from = to,
                Whole::At(place) => return outside(text, place, escape),
            }
        }
    }

    /// Looks for texts that no break parts near their beginning.
    fn find_whole<const STEP: usize>(&self, text: &[u8], from: usize) -> Whole {
        let mut at = from;
        for block in text[from..].windows(BLOCK_READS).step_by(BLOCK).take(SPAN / BLOCK) {
            let block: &[u8; BLOCK_READS] = block.try_into().expect("windows have the length");
            let hash = |index: usize| self.hash(window(&block[index * STEP..][..WIDTH]));
            let slots = (0..BLOCK / STEP).map(|index| self.table[slot(hash(index))]);
            if slots.fold(0, |any, seconds| any | seconds) != 0 {
                let mut indices = 0..BLOCK / STEP;
                let is_found = |index| self.table[slot(hash(index))] & second(hash(index)) != 0;
                if let Some(index) = indices.find(|&index| is_found(index)) {
                    return Whole::At((at + index * STEP).saturating_sub(STEP - 1));
                }
            }
            at += BLOCK;
        }
        if at - from == SPAN {
            return Whole::None { to: at };
        }
        let windows = text[at..].windows(WIDTH).step_by(STEP);
        let found = windows.map(window).position(|window| self.look_up(window) != 0);
        let found = found.map_or(usize::MAX, |index| (at + index * STEP).saturating_sub(STEP - 1));
        Whole::At(found.min(text.len().saturating_sub(WIDTH + STEP - 2)))
    }

    /// Returns where a text may begin that this break parts.
    #[inline]
    fn at_break<const STEP: usize>(&self, text: &[u8], at: usize) -> Option<usize> {
        // A line feed alone is by far the most frequent.
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
        self.at_any_break::<STEP>(text, at)
    }

    fn at_any_break<const STEP: usize>(&self, text: &[u8], at: usize) -> Option<usize> {
        let before = text[..at].iter().rev().take(WIDTH + STEP - 2);
        let longest = before.take_while(|byte| !is_break(**byte)).count();
        if longest == 0 {
            return None;
        }
        let Some(behind) = behind(&text[at..]) else { return Some(at - longest) };
        let mut bytes = u64::from(u32::from_le_bytes(behind));
        for &byte in text[at - longest..at].iter().rev() {
            bytes = bytes << 8 | u64::from(byte);
            if self.look_up(bytes) != 0 {
                return Some(at - longest);
            }
        }
        None
    }

    /// Returns whether a text may begin with the first four of these bytes, as a number but 0.
    #[inline]
    fn look_up(&self, bytes: u64) -> u8 {
        let hash = self.hash(bytes);
        self.table[slot(hash)] & second(hash)
    }

    /// Hashes the first four of these bytes, with lower for upper case, and some other characters
    /// for one another.
    #[inline]
    fn hash(&self, bytes: u64) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "four bytes are meant")]
        let window = (bytes as u32 | 0x2020_2020) & self.mask;
        // Fibonacci hashing: the upper bits of the product depend on all bytes.
        window.wrapping_mul(0x9e37_79b1)
    }
}

/// Returns the three bytes that follow a break, and more breaks, in the normalized text.
fn behind(text: &[u8]) -> Option<[u8; WIDTH]> {
    if let [b'\n', first, second, third, ..] = *text
        && first.min(second).min(third) >= b' '
    {
        return Some([first, second, third, 0]);
    }
    let mut escape = Escape::default();
    let mut behind = [0; WIDTH];
    let mut length = 0;
    for &byte in text {
        if let Part::Text(byte) = escape.next(byte) {
            behind[length] = byte;
            length += 1;
            if length == WIDTH - 1 {
                return Some(behind);
            }
        }
    }
    None
}

/// Returns a place, or where the escape sequence begins that it is in.
fn outside(text: &[u8], place: usize, escape: Option<usize>) -> usize {
    let Some(begun) = escape.filter(|begun| place - begun <= MAX_ESCAPE_BYTES) else {
        return place;
    };
    let mut escape = Escape::default();
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

/// Returns the highest bit of each of eight bytes that is below 0x20.
fn controls(bytes: u64) -> u64 {
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let others = ((bytes & !HIGH) + 0x6060_6060_6060_6060) | bytes;
    !others & HIGH
}

fn slot(hash: u32) -> usize {
    (hash >> (u32::BITS - BITS)) as usize
}

/// Returns one of eight bits, by other bits of the hash than the slot.
fn second(hash: u32) -> u8 {
    1 << (hash >> (u32::BITS - BITS - 3) & 7)
}
