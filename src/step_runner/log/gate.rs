/// Finds where one of many texts may begin, several times as fast as an automaton reads.
///
/// Nearly all of a log is nothing to mask. Each place is judged by its next four bytes, hashed into
/// a table of 8 KiB: that costs the same for one phrase and for a thousand, where packed searchers
/// end at 64 patterns. What it finds may be nothing; what it does not find is not there.
pub(super) struct Gate {
    /// Leaves as many bytes of the four as the shortest text has.
    mask: u32,
    table: Box<[u64; WORDS]>,
}

const BITS: u32 = 16;
const WORDS: usize = 1 << (BITS - 6);
/// How many places are judged between two branches.
const STRIDE: usize = 8;

impl Gate {
    /// How many bytes a place is judged by. Nothing is said of places with fewer after them.
    pub(super) const WIDTH: usize = 4;

    /// Takes the texts, none of which is empty, as the first bytes of each, at most four, padded
    /// with zeros, and the length of the shortest.
    pub(super) fn new(heads: impl Iterator<Item = [u8; Self::WIDTH]>, shortest: usize) -> Self {
        let mask = match shortest {
            0 | 1 => 0xff,
            2 => 0xffff,
            3 => 0xff_ffff,
            _ => u32::MAX,
        };
        let mut gate = Gate { mask, table: Box::new([0; WORDS]) };
        for head in heads {
            let slot = gate.slot(head);
            gate.table[slot / 64] |= 1 << (slot % 64);
        }
        gate
    }

    /// Returns the first place where a text may begin.
    pub(super) fn find(&self, text: &[u8]) -> Option<usize> {
        let mut at = 0;
        while let Some(stride) = text.get(at..at + STRIDE + Self::WIDTH - 1) {
            let any = stride.windows(Self::WIDTH).fold(0, |any, head| any | self.bit(head));
            if any & 1 == 1 {
                break;
            }
            at += STRIDE;
        }
        let rest = text[at..].windows(Self::WIDTH);
        rest.map(|head| self.bit(head)).position(|bit| bit & 1 == 1).map(|found| at + found)
    }

    /// Returns a number whose lowest bit says if a text may begin with this.
    fn bit(&self, head: &[u8]) -> u64 {
        let slot = self.slot(head.try_into().expect("windows have the width"));
        self.table[slot / 64] >> (slot % 64)
    }

    fn slot(&self, head: [u8; Self::WIDTH]) -> usize {
        // Fibonacci hashing: the upper bits of the product depend on all bytes.
        let hash = (u32::from_le_bytes(head) & self.mask).wrapping_mul(0x9e37_79b1);
        (hash >> (u32::BITS - BITS)) as usize
    }
}
