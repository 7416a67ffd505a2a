/// Finds where one of many texts may begin, several times as fast as an automaton reads.
///
/// Nearly all of a log is nothing to mask. Each place is judged by a hash of its next four bytes,
/// which costs the same for one phrase and for a thousand, where packed searchers end at 64
/// patterns. What it finds may be nothing; what it does not find is not there.
pub(super) struct Gate {
    /// Leaves as many bytes of the four as the shortest text has.
    mask: u32,
    /// By hash, the second hashes of the texts that have it, as bits.
    table: Box<[u8; 1 << BITS]>,
}

/// A log touches little of the table, which is 64 KiB: few of all four bytes are in its words.
const BITS: u32 = 16;

/// How many places are judged between two branches.
const STRIDE: usize = 8;

impl Gate {
    /// How many bytes a place is judged by. Nothing is said of places with fewer after them.
    pub(super) const WIDTH: usize = 4;

    /// Takes the first bytes of each text, padded with zeros, and the length of the shortest.
    pub(super) fn new(heads: impl Iterator<Item = [u8; Self::WIDTH]>, shortest: usize) -> Self {
        let mask = match shortest {
            0 | 1 => 0xff,
            2 => 0xffff,
            3 => 0xff_ffff,
            _ => u32::MAX,
        };
        let mut gate = Gate { mask, table: Box::new([0; 1 << BITS]) };
        for head in heads {
            let hash = gate.hash(&head);
            gate.table[slot(hash)] |= second(hash);
        }
        gate
    }

    /// Returns the first place where a text may begin.
    pub(super) fn find(&self, text: &[u8]) -> Option<usize> {
        let mut at = 0;
        while let Some(stride) = text.get(at..at + STRIDE + Self::WIDTH - 1) {
            let slots = stride.windows(Self::WIDTH).map(|head| self.table[slot(self.hash(head))]);
            if slots.fold(0, |any, seconds| any | seconds) != 0 {
                let found = stride.windows(Self::WIDTH).position(|head| self.may_begin(head));
                if let Some(found) = found {
                    return Some(at + found);
                }
            }
            at += STRIDE;
        }
        let found = text[at..].windows(Self::WIDTH).position(|head| self.may_begin(head))?;
        Some(at + found)
    }

    fn may_begin(&self, head: &[u8]) -> bool {
        let hash = self.hash(head);
        self.table[slot(hash)] & second(hash) != 0
    }

    fn hash(&self, head: &[u8]) -> u32 {
        let head = head.try_into().expect("windows have the width");
        // Fibonacci hashing: the upper bits of the product depend on all bytes.
        (u32::from_le_bytes(head) & self.mask).wrapping_mul(0x9e37_79b1)
    }
}

fn slot(hash: u32) -> usize {
    (hash >> (u32::BITS - BITS)) as usize
}

/// Returns one of eight bits, by other bits of the hash than the slot.
fn second(hash: u32) -> u8 {
    1 << (hash >> (u32::BITS - BITS - 3) & 7)
}
