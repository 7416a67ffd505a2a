//! How long to wait before the next try.

use std::time::Duration;

const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

/// Waits that double from one to the next.
pub(crate) struct Backoff(Duration);

impl Backoff {
    pub(crate) fn new() -> Self {
        Backoff(SHORTEST)
    }

    /// Returns the time to wait now.
    pub(crate) fn next(&mut self) -> Duration {
        let now = self.0;
        self.0 = (now * 2).min(LONGEST);
        now
    }

    /// Starts over, since something worked.
    pub(crate) fn reset(&mut self) {
        self.0 = SHORTEST;
    }
}

#[test]
fn waits_double_up_to_a_limit() {
    let mut backoff = Backoff::new();
    let waits: Vec<_> = (0..9).map(|_| backoff.next().as_millis()).collect();
    assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
    backoff.reset();
    assert_eq!(backoff.next(), SHORTEST);
}
