//! Masks one stream while it is written.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::automaton::NodeId;
use super::masking::{Masking, loose_forms, secret_forms};
use super::patterns::{MaskingPatterns, TextSet, TooMuchToMask, url_keys};
use super::prefilter::{ByteRole, EscapeParser};
use super::{LogStream, OutputSource};

/// The replacement of masked text.
pub const MASK: &[u8] = b"[MASKED]";

/// A masker of one stream; the output does not depend on how the input is split into writes.
///
/// Non-overlapping occurrences of each phrase are masked, from left to right. Overlapping occurrences of
/// different phrases share one mask. Also masked are the values of some URL parameters, up to the next `?`,
/// `&`, white space or control character, and runs of `[0-9A-Za-z._=-]` after a token prefix; each part
/// of them without a phrase gets a mask. All matching is on the input, not on masked output: a phrase in a
/// token, or across the end of a prefix, reveals nothing.
///
/// Loose phrases are matched in the normalized input: in lower case, without line breaks and terminal
/// escape sequences. Line breaks and escape sequences within a loose phrase are masked too.
///
/// Only the end of the input that may become a phrase is held back.
pub struct Masker {
    patterns: Arc<MaskingPatterns>,
    phrase: NodeId,
    loose: LooseSearch,
    prefix: NodeId,
    url_key: NodeId,
    in_url_value: bool,
    in_token: bool,
    /// Offset of `held` in the stream. All bytes before `base` are written.
    base: u64,
    held: Vec<u8>,
    /// Ranges masked for a phrase, sorted and disjoint. If a range begins before `base`, its mask is
    /// already written.
    phrases: Vec<Range<u64>>,
    /// Ranges masked for a URL parameter or a prefix, sorted and disjoint.
    values: Vec<Range<u64>>,
    /// Offset at which the last occurrence of each phrase ends.
    last_end: Vec<u64>,
    last: LastOutput,
}

/// Kind of the last output.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LastOutput {
    Text,
    Phrase,
    Value,
}

impl Masker {
    /// Returns a masker for the given phrases and token prefixes. Fails if they are too large.
    pub fn new(masking: &Masking) -> Result<Self, TooMuchToMask> {
        Ok(Self::with(Arc::new(MaskingPatterns::new(masking)?)))
    }

    pub(super) fn with(patterns: Arc<MaskingPatterns>) -> Self {
        Masker {
            phrase: patterns.phrases.start(),
            loose: LooseSearch::new(&patterns.loose, 0),
            prefix: patterns.prefixes.start(),
            url_key: url_keys().start(),
            in_url_value: false,
            in_token: false,
            base: 0,
            held: Vec::new(),
            phrases: Vec::new(),
            values: Vec::new(),
            last_end: vec![0; patterns.phrases.count()],
            last: LastOutput::Text,
            patterns,
        }
    }

    /// Adds phrases and loose phrases, which are also masked in the held-back input.
    pub fn add(&mut self, phrases: &[String], loose: &[String]) -> Result<(), TooMuchToMask> {
        if !self.patterns.contains_all(phrases, loose) {
            self.adopt(Arc::new(self.patterns.with(phrases, loose)?));
        }
        Ok(())
    }

    /// Switches to patterns with other phrases, and searches the held-back input for them.
    fn adopt(&mut self, patterns: Arc<MaskingPatterns>) {
        self.patterns = patterns;
        self.phrase = self.patterns.phrases.start();
        self.phrases.retain(|hidden| hidden.start < self.base);
        self.last_end = vec![self.base; self.patterns.phrases.count()];
        self.loose.adopt(&self.patterns.loose, self.base);
        for (at, byte) in (self.base..).zip(std::mem::take(&mut self.held)) {
            self.match_phrase(byte, at);
            self.match_loose(byte, at);
            self.held.push(byte);
        }
    }

    /// Reads the next chunk, and appends to `out` the input that can no longer become a phrase.
    pub fn write(&mut self, chunk: &[u8], out: &mut Vec<u8>) {
        let start = self.base + self.held.len() as u64;
        let mut at = 0;
        while at < chunk.len() {
            if self.is_idle() {
                at += self.patterns.prefilter.find(&chunk[at..]);
            }
            self.read_byte(chunk[at], start + at as u64);
            at += 1;
        }
        let decided = self.exact_hold_offset(start + chunk.len() as u64);
        let decided = self.loose.hold_offset().map_or(decided, |held| held.min(decided));
        self.render(chunk, decided, out);
    }

    /// Returns whether some input is held back only because it may become a loose phrase.
    pub fn holds_loose(&self) -> bool {
        self.base < self.exact_hold_offset(self.base + self.held.len() as u64)
    }

    /// Appends to `out` the input that is held back only because it may become a loose phrase. If
    /// it becomes one later, it is not masked.
    pub fn release(&mut self, out: &mut Vec<u8>) {
        self.loose.reset(&self.patterns.loose);
        self.render(&[], self.exact_hold_offset(self.base + self.held.len() as u64), out);
    }

    /// Returns the offset from which an incomplete phrase, other than a loose one, may extend to
    /// `end`, the end of the input.
    fn exact_hold_offset(&self, end: u64) -> u64 {
        end - self.patterns.phrases.held_length(self.phrase) as u64
    }

    /// Appends to `out` the held-back input, and resets the state.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        self.render(&[], self.base + self.held.len() as u64, out);
        self.phrase = self.patterns.phrases.start();
        self.loose = LooseSearch::new(&self.patterns.loose, self.base);
        self.prefix = self.patterns.prefixes.start();
        self.url_key = url_keys().start();
        self.in_url_value = false;
        self.in_token = false;
        self.last = LastOutput::Text;
    }

    /// Returns whether no phrase, token, URL parameter or escape sequence has begun, so that input
    /// may be skipped.
    fn is_idle(&self) -> bool {
        self.phrase == self.patterns.phrases.start()
            && self.prefix == self.patterns.prefixes.start()
            && self.url_key == url_keys().start()
            && !self.in_token
            && !self.in_url_value
            && self.loose.is_idle(&self.patterns.loose)
    }

    fn read_byte(&mut self, byte: u8, at: u64) {
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
        self.match_phrase(byte, at);
        self.match_loose(byte, at);
    }

    fn match_phrase(&mut self, byte: u8, at: u64) {
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
                add_hidden_range(&mut self.phrases, start..end);
            }
        }
    }

    fn match_loose(&mut self, byte: u8, at: u64) {
        let found = |range| add_hidden_range(&mut self.phrases, range);
        self.loose.read_byte(&self.patterns.loose, byte, at, found);
    }

    /// Appends to `out` the masked input before `decided`, and holds back the rest.
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
                    self.last = LastOutput::Phrase;
                    at = phrase.end;
                    continue;
                }
                end = end.min(phrase.start);
            }
            if let Some(value) = values.peek() {
                if value.start <= at {
                    if self.last != LastOutput::Value {
                        out.extend_from_slice(MASK);
                    }
                    self.last = LastOutput::Value;
                    at = end.min(value.end);
                    continue;
                }
                end = end.min(value.start);
            }
            self.last = LastOutput::Text;
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

/// Adds a range, which ends no earlier than existing ones, and merges overlapping ranges.
fn add_hidden_range(hidden: &mut Vec<Range<u64>>, mut new: Range<u64>) {
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

/// Maximum number of bytes of line breaks and escape sequences between two bytes of a loose phrase,
/// which bounds the held-back input.
const MAX_GAP_BYTES: usize = 512;

/// State of the search for loose phrases, which are found in any case, and with line breaks or
/// escape sequences between their bytes.
struct LooseSearch {
    state: NodeId,
    escape: EscapeParser,
    /// Number of bytes of line breaks and escape sequences since the last other byte.
    gap: usize,
    /// Offsets of the bytes that may be the beginning of a loose phrase.
    places: VecDeque<u64>,
    /// Offset at which the last occurrence of each loose phrase ends.
    last_end: Vec<u64>,
}

impl LooseSearch {
    pub(super) fn new(texts: &TextSet, base: u64) -> Self {
        LooseSearch {
            state: texts.start(),
            escape: EscapeParser::default(),
            gap: 0,
            places: VecDeque::new(),
            last_end: vec![base; texts.count()],
        }
    }

    /// Restarts the search with other phrases. An escape sequence that has begun continues.
    fn adopt(&mut self, texts: &TextSet, base: u64) {
        *self = LooseSearch { escape: self.escape, ..LooseSearch::new(texts, base) };
    }

    /// Discards the beginning of a loose phrase.
    fn reset(&mut self, texts: &TextSet) {
        self.state = texts.start();
        self.places.clear();
    }

    /// Returns whether no loose phrase and no escape sequence has begun.
    fn is_idle(&self, texts: &TextSet) -> bool {
        self.state == texts.start() && self.escape.is_ground()
    }

    /// Returns the offset of the first byte that may be part of an incomplete loose phrase.
    fn hold_offset(&self) -> Option<u64> {
        self.places.front().copied()
    }

    /// Reads the byte at an offset, and passes the ranges of loose phrases that end there to
    /// `found`.
    fn read_byte(&mut self, texts: &TextSet, byte: u8, at: u64, mut found: impl FnMut(Range<u64>)) {
        if texts.count() == 0 {
            return;
        }
        let ByteRole::Text(byte) = self.escape.next(byte) else {
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
        let held = texts.held_length(self.state);
        self.places.drain(..self.places.len() - held);
    }
}

/// All streams of a job.
pub const STREAMS: [(OutputSource, LogStream); 4] = [
    (OutputSource::Runner, LogStream::Out),
    (OutputSource::Runner, LogStream::Err),
    (OutputSource::Step, LogStream::Out),
    (OutputSource::Step, LogStream::Err),
];

/// Returns the index of a stream in [`STREAMS`].
pub fn index(source: OutputSource, stream: LogStream) -> usize {
    let source = match source {
        OutputSource::Runner => 0,
        OutputSource::Step => 2,
    };
    match stream {
        LogStream::Out => source,
        LogStream::Err => source + 1,
    }
}

/// A masker for each stream, all with the same patterns.
pub struct Maskers {
    patterns: Arc<MaskingPatterns>,
    maskers: [Masker; STREAMS.len()],
    /// Time of the last write to each stream, if input is held back only because it may become a
    /// loose phrase.
    since: [Option<Instant>; STREAMS.len()],
}

/// Time for which output is held back, after the last write to its stream, because it may become a
/// loose phrase. If it becomes one later, it is not masked.
const HOLD_TIMEOUT: Duration = Duration::from_millis(250);

impl Maskers {
    pub(super) fn new(masking: &Masking) -> Result<Self, TooMuchToMask> {
        let patterns = Arc::new(MaskingPatterns::new(masking)?);
        let maskers = STREAMS.map(|_| Masker::with(patterns.clone()));
        Ok(Maskers { patterns, maskers, since: [None; STREAMS.len()] })
    }

    /// Returns a masker for another stream, with the same secrets.
    pub fn masker(&self) -> Masker {
        Masker::with(self.patterns.clone())
    }

    /// Masks a secret in all its forms from now on.
    pub fn add_secret(&mut self, secret: &str) -> Result<(), TooMuchToMask> {
        let (forms, loose) = (secret_forms(secret), loose_forms(secret));
        if self.patterns.contains_all(&forms, &loose) {
            return Ok(());
        }
        self.patterns = Arc::new(self.patterns.with(&forms, &loose)?);
        for masker in &mut self.maskers {
            masker.adopt(self.patterns.clone());
        }
        Ok(())
    }

    /// Masks bytes of a stream, given by its [`index`].
    pub fn write(&mut self, index: usize, bytes: &[u8], out: &mut Vec<u8>) {
        let masker = &mut self.maskers[index];
        masker.write(bytes, out);
        // The runner writes whole messages.
        if STREAMS[index].0 == OutputSource::Runner {
            masker.finish(out);
        }
        self.since[index] = masker.holds_loose().then(Instant::now);
    }

    /// Appends to `out` all held-back input of a stream.
    pub fn finish(&mut self, index: usize, out: &mut Vec<u8>) {
        self.maskers[index].finish(out);
        self.since[index] = None;
    }

    /// Appends to `out` the input of a stream that is held back only because it may become a loose
    /// phrase, if nothing was written to the stream for [`HOLD_TIMEOUT`].
    pub fn release(&mut self, index: usize, now: Instant, out: &mut Vec<u8>) {
        if self.since[index].is_some_and(|since| since + HOLD_TIMEOUT <= now) {
            self.maskers[index].release(out);
            self.since[index] = None;
        }
    }

    /// Returns the time at which [`release`](Self::release) has to be called, if input is held
    /// back.
    pub fn next_release(&self) -> Option<Instant> {
        self.since.iter().flatten().min().map(|since| *since + HOLD_TIMEOUT)
    }
}

#[cfg(test)]
mod tests;
