use std::sync::Arc;
use std::time::{Duration, Instant};

use super::forms::{loose_forms, secret_forms};
use super::masker::Masker;
use super::masking::Masking;
use super::patterns::{Patterns, TooMuchToMask};
use super::{Source, Stream};

/// Every stream of a job.
pub(super) const STREAMS: [(Source, Stream); 4] = [
    (Source::Runner, Stream::Out),
    (Source::Runner, Stream::Err),
    (Source::Step, Stream::Out),
    (Source::Step, Stream::Err),
];

/// Returns the index of a stream in [`STREAMS`].
pub(super) fn index(source: Source, stream: Stream) -> usize {
    let source = match source {
        Source::Runner => 0,
        Source::Step => 2,
    };
    match stream {
        Stream::Out => source,
        Stream::Err => source + 1,
    }
}

/// A masker for each stream, all with the same patterns.
pub(super) struct Maskers {
    patterns: Arc<Patterns>,
    maskers: [Masker; STREAMS.len()],
    /// Since when something is held back only for a loose phrase, by stream.
    since: [Option<Instant>; STREAMS.len()],
}

/// How long output is held back for a loose phrase: the end of a line, or a secret in another case. After
/// that, an incomplete secret is not masked.
pub(super) const HOLD_TIMEOUT: Duration = Duration::from_millis(250);

impl Maskers {
    pub(super) fn new(masking: &Masking) -> Result<Self, TooMuchToMask> {
        let patterns = Arc::new(Patterns::new(masking)?);
        let maskers = STREAMS.map(|_| Masker::with(patterns.clone()));
        Ok(Maskers { patterns, maskers, since: [None; STREAMS.len()] })
    }

    /// Masks a secret in all its forms from now on.
    pub(super) fn add_secret(&mut self, secret: &str) -> Result<(), TooMuchToMask> {
        let (forms, loose) = (secret_forms(secret), loose_forms(secret));
        if self.patterns.have(&forms, &loose) {
            return Ok(());
        }
        self.patterns = Arc::new(self.patterns.with(&forms, &loose)?);
        for masker in &mut self.maskers {
            masker.adopt(self.patterns.clone());
        }
        Ok(())
    }

    /// Masks bytes of a stream, given by its [`index`].
    pub(super) fn write(&mut self, index: usize, bytes: &[u8], out: &mut Vec<u8>) {
        let masker = &mut self.maskers[index];
        masker.write(bytes, out);
        // The runner writes whole messages.
        if STREAMS[index].0 == Source::Runner {
            masker.finish(out);
        }
        self.since[index] = masker.holds_loose().then(Instant::now);
    }

    /// Appends to `out` all that is held back of a stream.
    pub(super) fn finish(&mut self, index: usize, out: &mut Vec<u8>) {
        self.maskers[index].finish(out);
        self.since[index] = None;
    }

    /// Appends to `out` what has been held back of a stream for [`HOLD_TIMEOUT`].
    pub(super) fn release(&mut self, index: usize, now: Instant, out: &mut Vec<u8>) {
        if self.since[index].is_some_and(|since| since + HOLD_TIMEOUT <= now) {
            self.maskers[index].release(out);
            self.since[index] = None;
        }
    }

    /// Returns when there is something to release.
    pub(super) fn next_release(&self) -> Option<Instant> {
        self.since.iter().flatten().min().map(|since| *since + HOLD_TIMEOUT)
    }
}
