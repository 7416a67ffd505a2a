//! Search for secrets in the normalized text of a stream.

use std::collections::VecDeque;
use std::ops::Range;

use aho_corasick::automaton::StateID;

use super::normalize::{Escape, Part};
use super::patterns::Texts;

/// Limit of line breaks and escape sequences between two bytes of a secret: what is held back is bounded.
pub(super) const MAX_GAP_BYTES: usize = 512;

/// Search state: bytes of the normalized text that may become a secret.
pub(super) struct Loose {
    state: StateID,
    escape: Escape,
    /// Bytes of breaks and escape sequences since the last byte of the text.
    gap: usize,
    /// Offsets of the bytes that may become a secret.
    places: VecDeque<u64>,
    /// End of the last occurrence, by text.
    last_end: Vec<u64>,
}

impl Loose {
    pub(super) fn new(texts: &Texts, base: u64) -> Self {
        Loose {
            state: texts.start(),
            escape: Escape::default(),
            gap: 0,
            places: VecDeque::new(),
            last_end: vec![base; texts.count()],
        }
    }

    /// Restarts with other texts, within the same escape sequence.
    pub(super) fn adopt(&mut self, texts: &Texts, base: u64) {
        *self = Loose { escape: self.escape, ..Loose::new(texts, base) };
    }

    /// Discards what was read so far.
    pub(super) fn reset(&mut self, texts: &Texts) {
        self.state = texts.start();
        self.places.clear();
    }

    /// Returns whether the state is the initial one.
    pub(super) fn is_idle(&self, texts: &Texts) -> bool {
        self.state == texts.start() && self.escape.is_ground()
    }

    /// Returns the start of the bytes that may become a secret, or a longer one.
    pub(super) fn held_from(&self) -> Option<u64> {
        self.places.front().copied()
    }

    /// Reads the byte at an offset and reports the secrets that end there.
    pub(super) fn see(
        &mut self,
        texts: &Texts,
        byte: u8,
        at: u64,
        mut found: impl FnMut(Range<u64>),
    ) {
        if texts.count() == 0 {
            return;
        }
        let Part::Text(byte) = self.escape.next(byte) else {
            self.gap += 1;
            if self.gap > MAX_GAP_BYTES {
                self.reset(texts);
            }
            return;
        };
        self.gap = 0;
        self.state = texts.next(self.state, byte);
        self.places.push_back(at);
        if texts.is_match(self.state) {
            for (text, length) in texts.matches(self.state) {
                let start = self.places[self.places.len() - length];
                if start >= self.last_end[text] {
                    self.last_end[text] = at + 1;
                    found(start..at + 1);
                }
            }
        }
        let held = if self.state == texts.start() { 0 } else { texts.held(self.state) };
        self.places.drain(..self.places.len() - held);
    }
}
