//! Masking one stream, as it is written.

use std::ops::Range;
use std::sync::Arc;

use aho_corasick::automaton::StateID;

use super::loose::Loose;
use super::masking::Masking;
use super::patterns::{Patterns, TooMuchToMask, url_keys};

/// What stands for what is masked.
pub const MASK: &[u8] = b"[MASKED]";

/// Masks one stream; what comes out does not depend on how it was cut into writes.
///
/// Of each phrase, the occurrences that do not overlap one another are hidden, from left to right.
/// Where occurrences of several phrases overlap, all they cover is hidden, under one mask. Hidden
/// too are the values of some URL parameters, to the next `?`, `&`, white space or control
/// character, and runs of `[0-9A-Za-z._=-]` after a token prefix; each piece of them without a
/// phrase in it gets a mask. All is looked for in what was written, not in what is left of it: a
/// phrase in a token, or over the end of a prefix, uncovers nothing.
///
/// Loose phrases are looked for in the same way in what was written without line breaks and terminal
/// escape sequences, in lower case. What stands between their bytes is hidden with them.
///
/// Only the end of what was written that may become a phrase is held back.
pub struct Masker {
    patterns: Arc<Patterns>,
    phrase: StateID,
    loose: Loose,
    prefix: StateID,
    url_key: StateID,
    in_url_value: bool,
    in_token: bool,
    /// Where in the stream `held` begins. All before it is written.
    base: u64,
    held: Vec<u8>,
    /// Hidden for a phrase, ascending, apart. If one begins before `base`, its mask is written.
    phrases: Vec<Range<u64>>,
    /// Hidden for a URL parameter or a prefix, ascending, apart.
    values: Vec<Range<u64>>,
    /// By phrase, where its last occurrence ended.
    last_end: Vec<u64>,
    last: Last,
}

/// What was written last.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Text,
    Phrase,
    Value,
}

impl Masker {
    /// Compiles what is to be masked.
    pub fn new(masking: &Masking) -> Result<Self, TooMuchToMask> {
        Ok(Self::with(Arc::new(Patterns::new(masking)?)))
    }

    pub(super) fn with(patterns: Arc<Patterns>) -> Self {
        Masker {
            phrase: patterns.phrases.start(),
            loose: Loose::new(&patterns.loose, 0),
            prefix: patterns.prefixes.start(),
            url_key: url_keys().start(),
            in_url_value: false,
            in_token: false,
            base: 0,
            held: Vec::new(),
            phrases: Vec::new(),
            values: Vec::new(),
            last_end: vec![0; patterns.phrases.count()],
            last: Last::Text,
            patterns,
        }
    }

    /// Masks phrases from now on, what is held back included.
    pub fn add(&mut self, phrases: &[String]) -> Result<(), TooMuchToMask> {
        if !self.patterns.have(phrases, &[]) {
            self.adopt(Arc::new(self.patterns.with(phrases, &[])?));
        }
        Ok(())
    }

    /// Goes on with patterns that differ in their phrases.
    pub(super) fn adopt(&mut self, patterns: Arc<Patterns>) {
        self.patterns = patterns;
        self.phrase = self.patterns.phrases.start();
        self.phrases.retain(|hidden| hidden.start < self.base);
        self.last_end = vec![self.base; self.patterns.phrases.count()];
        self.loose.adopt(&self.patterns.loose, self.base);
        for (at, byte) in (self.base..).zip(std::mem::take(&mut self.held)) {
            self.see_phrase(byte, at);
            self.see_loose(byte, at);
            self.held.push(byte);
        }
    }

    /// Takes what comes next and adds to `out` what is decided.
    pub fn write(&mut self, chunk: &[u8], out: &mut Vec<u8>) {
        let start = self.base + self.held.len() as u64;
        let mut at = 0;
        while at < chunk.len() {
            if self.is_idle() {
                at += self.patterns.gate.find(&chunk[at..]);
            }
            self.see(chunk[at], start + at as u64);
            at += 1;
        }
        let decided = self.exact_from(start + chunk.len() as u64);
        let decided = self.loose.held_from().map_or(decided, |held| held.min(decided));
        self.render(chunk, decided, out);
    }

    /// Returns whether something is held back that begins no phrase but for its case, or after
    /// which a line has ended.
    pub fn holds_loose(&self) -> bool {
        self.base < self.exact_from(self.base + self.held.len() as u64)
    }

    /// Adds to `out` what is held back only for a loose phrase, which then does not begin there.
    pub fn release(&mut self, out: &mut Vec<u8>) {
        self.loose.reset(&self.patterns.loose);
        self.render(&[], self.exact_from(self.base + self.held.len() as u64), out);
    }

    /// Returns where a phrase may begin that is not yet whole at the end of what was written.
    fn exact_from(&self, end: u64) -> u64 {
        end - self.patterns.phrases.held(self.phrase) as u64
    }

    /// Adds to `out` what was held back; what comes next begins anew.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        self.render(&[], self.base + self.held.len() as u64, out);
        self.phrase = self.patterns.phrases.start();
        self.loose = Loose::new(&self.patterns.loose, self.base);
        self.prefix = self.patterns.prefixes.start();
        self.url_key = url_keys().start();
        self.in_url_value = false;
        self.in_token = false;
        self.last = Last::Text;
    }

    /// Returns whether nothing that was read so far has to do with what comes.
    fn is_idle(&self) -> bool {
        self.phrase == self.patterns.phrases.start()
            && self.prefix == self.patterns.prefixes.start()
            && self.url_key == url_keys().start()
            && !self.in_token
            && !self.in_url_value
            && self.loose.is_idle(&self.patterns.loose)
    }

    fn see(&mut self, byte: u8, at: u64) {
        self.in_url_value &= !ends_url_value(byte);
        self.in_token &= is_of_token(byte);
        if self.in_url_value || self.in_token {
            match self.values.last_mut() {
                Some(last) if last.end == at => last.end += 1,
                _ => self.values.push(at..at + 1),
            }
        }
        self.url_key = url_keys().next(self.url_key, byte);
        self.in_url_value |= url_keys().is_match(self.url_key);
        let prefixes = &self.patterns.prefixes;
        self.prefix = prefixes.next(self.prefix, byte);
        self.in_token |= prefixes.is_match(self.prefix);
        self.see_phrase(byte, at);
        self.see_loose(byte, at);
    }

    fn see_phrase(&mut self, byte: u8, at: u64) {
        let phrases = &self.patterns.phrases;
        self.phrase = phrases.next(self.phrase, byte);
        if !phrases.is_match(self.phrase) {
            return;
        }
        let end = at + 1;
        for (phrase, length) in phrases.matches(self.phrase) {
            let start = end - length as u64;
            if start >= self.last_end[phrase] {
                self.last_end[phrase] = end;
                hide(&mut self.phrases, start..end);
            }
        }
    }

    fn see_loose(&mut self, byte: u8, at: u64) {
        let found = |range| hide(&mut self.phrases, range);
        self.loose.see(&self.patterns.loose, byte, at, found);
    }

    /// Adds to `out` what stands before `decided`, and holds the rest.
    fn render(&mut self, chunk: &[u8], decided: u64, out: &mut Vec<u8>) {
        let mut at = self.base;
        let mut phrases = self.phrases.iter().peekable();
        let mut values = self.values.iter().peekable();
        while at < decided {
            while phrases.next_if(|hidden| hidden.end <= at).is_some() {}
            while values.next_if(|hidden| hidden.end <= at).is_some() {}
            let mut end = decided;
            if let Some(phrase) = phrases.peek() {
                if phrase.start <= at {
                    if phrase.start == at {
                        out.extend_from_slice(MASK);
                    }
                    self.last = Last::Phrase;
                    at = phrase.end;
                    continue;
                }
                end = end.min(phrase.start);
            }
            if let Some(value) = values.peek() {
                if value.start <= at {
                    if self.last != Last::Value {
                        out.extend_from_slice(MASK);
                    }
                    self.last = Last::Value;
                    at = end.min(value.end);
                    continue;
                }
                end = end.min(value.start);
            }
            self.last = Last::Text;
            let bytes = place(at - self.base)..place(end - self.base);
            let held = self.held.len();
            out.extend_from_slice(&self.held[bytes.start.min(held)..bytes.end.min(held)]);
            out.extend_from_slice(&chunk[bytes.start.max(held) - held..bytes.end.max(held) - held]);
            at = end;
        }
        let gone = place(decided - self.base);
        let gone_of_chunk = gone.saturating_sub(self.held.len());
        self.held.drain(..gone.min(self.held.len()));
        self.held.extend_from_slice(&chunk[gone_of_chunk..]);
        self.base = decided;
        self.phrases.retain(|hidden| hidden.end > decided);
        self.values.retain(|hidden| hidden.end > decided);
    }
}

/// Adds a range that ends no earlier than what is there, but for one that was cut.
fn hide(hidden: &mut Vec<Range<u64>>, mut new: Range<u64>) {
    while let Some(last) = hidden.pop_if(|last| last.end > new.start) {
        new = last.start.min(new.start)..last.end.max(new.end);
    }
    hidden.push(new);
}

fn place(offset: u64) -> usize {
    usize::try_from(offset).expect("it lies in what was held or given")
}

fn ends_url_value(byte: u8) -> bool {
    matches!(byte, b'?' | b'&' | b' ') || byte.is_ascii_control()
}

fn is_of_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'=' | b'-')
}

#[cfg(test)]
mod tests;
