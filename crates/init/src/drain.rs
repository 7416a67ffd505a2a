//! Time limits for reading output of processes that outlive their step's command.

use std::time::{Duration, Instant};

/// Time without output after which the output counts as over.
pub const QUIET: Duration = Duration::from_millis(100);

/// Maximum time for reading output after the command has exited.
pub const LIMIT: Duration = Duration::from_secs(2);

/// The end of a step's output after its command has exited: 100 ms without a byte, or 2 s in all.
#[derive(Clone, Copy, Debug)]
pub struct Drain {
    since: Instant,
    last_bytes: Instant,
}

impl Drain {
    /// Starts the time limits.
    pub fn start() -> Self {
        let now = Instant::now();
        Drain { since: now, last_bytes: now }
    }

    /// Restarts the time without output, after bytes were read.
    pub fn prolong(&mut self) {
        self.last_bytes = Instant::now();
    }

    /// Returns the time at which the output is over, unless bytes are read before.
    pub fn ends_at(&self) -> Instant {
        (self.last_bytes + QUIET).min(self.since + LIMIT)
    }

    /// Returns whether the output is over.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.ends_at()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_ends_after_a_silence_or_the_maximum_time() {
        let since = Instant::now();
        let ends_after = |written| {
            let drain = Drain { since, last_bytes: since + Duration::from_millis(written) };
            drain.ends_at() - since
        };
        assert_eq!(ends_after(0), QUIET);
        assert_eq!(ends_after(700), QUIET + Duration::from_millis(700));
        assert_eq!(ends_after(1950), LIMIT);
        assert_eq!(ends_after(5000), LIMIT);
    }
}
