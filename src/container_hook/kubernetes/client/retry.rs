//! When a call is made again, and after how long.

use std::time::Duration;

use crate::sys::fs::random_u64;

/// How calls that fail for a while are repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The pause after the first failure; each one after it is twice as long.
    pub first: Duration,
    /// The longest pause that is our choice. The server may ask for more.
    pub longest: Duration,
    /// How long one call may take with all of its repetitions.
    pub limit: Duration,
    /// How long a single answer may take.
    pub answer: Duration,
}

impl Default for RetryPolicy {
    /// Outlasts the restart of an API server.
    fn default() -> Self {
        RetryPolicy {
            first: Duration::from_millis(100),
            longest: Duration::from_secs(10),
            limit: Duration::from_secs(120),
            answer: Duration::from_secs(30),
        }
    }
}

impl RetryPolicy {
    /// For commands that somebody waits for at a terminal.
    #[must_use]
    pub fn brief() -> Self {
        RetryPolicy {
            limit: Duration::from_secs(5),
            answer: Duration::from_secs(10),
            ..Self::default()
        }
    }

    pub(super) fn pauses(&self) -> Pauses {
        Pauses { next: self.first, longest: self.longest }
    }
}

/// Pauses that grow, each with a random part: callers that failed together do not come back together.
pub(super) struct Pauses {
    next: Duration,
    longest: Duration,
}

impl Pauses {
    /// Returns the next pause, which is not shorter than what the server asked for.
    pub(super) fn next(&mut self, asked: Option<Duration>) -> Duration {
        let full = self.next.min(self.longest);
        self.next = full * 2;
        // Between half of it and all of it.
        let random = u32::try_from(random_u64() % 1000).unwrap_or_default();
        let pause = full / 2 + full / 2 * random / 1000;
        asked.map_or(pause, |asked| asked + pause.min(Duration::from_secs(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_longest_and_are_never_shorter_than_asked() {
        let policy = RetryPolicy { longest: Duration::from_millis(350), ..RetryPolicy::default() };
        let mut pauses = policy.pauses();
        for full in [100, 200, 350, 350] {
            let pause = pauses.next(None);
            let full = Duration::from_millis(full);
            assert!(full / 2 <= pause && pause <= full, "{pause:?} of {full:?}");
        }
        let asked = Duration::from_secs(7);
        assert!(pauses.next(Some(asked)) >= asked);
    }
}
