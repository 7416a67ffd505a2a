use std::sync::Arc;

use super::forms::secret_forms;
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

/// Returns the place of a stream in [`STREAMS`].
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
}

impl Maskers {
    pub(super) fn new(masking: &Masking) -> Result<Self, TooMuchToMask> {
        let patterns = Arc::new(Patterns::new(masking)?);
        let maskers = STREAMS.map(|_| Masker::with(patterns.clone()));
        Ok(Maskers { patterns, maskers })
    }

    /// Masks a secret in all its forms from now on.
    pub(super) fn add_secret(&mut self, secret: &str) -> Result<(), TooMuchToMask> {
        let forms = secret_forms(secret);
        if self.patterns.have(&forms) {
            return Ok(());
        }
        self.patterns = Arc::new(self.patterns.with(&forms)?);
        for masker in &mut self.maskers {
            masker.adopt(self.patterns.clone());
        }
        Ok(())
    }

    /// Returns the masker of a stream, by its [`index`].
    pub(super) fn of(&mut self, index: usize) -> &mut Masker {
        &mut self.maskers[index]
    }
}
