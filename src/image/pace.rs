//! Pace: what a transfer has to bring, or it is given up.

use std::time::Duration;

/// The least that a transfer brings on average; what is slower counts as stuck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Bytes per second; 0 if any will do.
    pub bytes_per_second: u64,
    /// The time that the average is taken over.
    pub over: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        // A layer of 100 MB takes three hours at that: no registry that is worth waiting for is so
        // slow, nor any line.
        Pace { bytes_per_second: 10 << 10, over: Duration::from_secs(30) }
    }
}

/// What came in a time that was too long for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TooSlow {
    pub bytes: u64,
    pub time: Duration,
}

/// Compares a transfer with a pace, one stretch of time after the other.
#[derive(Debug)]
pub struct Meter {
    pace: Pace,
    bytes: u64,
    time: Duration,
}

impl Meter {
    /// Returns one for a transfer that begins now.
    pub fn new(pace: Pace) -> Self {
        Meter { pace, bytes: 0, time: Duration::ZERO }
    }

    /// Takes note of what came in a time.
    ///
    /// # Errors
    ///
    /// Fails if it was less than the pace asks for.
    pub fn add(&mut self, bytes: u64, time: Duration) -> Result<(), TooSlow> {
        self.bytes = self.bytes.saturating_add(bytes);
        self.time = self.time.saturating_add(time);
        if self.time < self.pace.over {
            return Ok(());
        }
        let came = TooSlow { bytes: self.bytes, time: self.time };
        (self.bytes, self.time) = (0, Duration::ZERO);
        let expected =
            u128::from(self.pace.bytes_per_second) * came.time.as_nanos() / 1_000_000_000;
        if u128::from(came.bytes) < expected { Err(came) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace { bytes_per_second: 1000, over: Duration::from_secs(10) };

    #[test]
    fn what_comes_in_bursts_is_fast_enough_on_average() {
        let mut meter = Meter::new(PACE);
        for _ in 0..5 {
            assert_eq!(meter.add(10_000, Duration::from_secs(1)), Ok(()));
            assert_eq!(meter.add(0, Duration::from_secs(9)), Ok(()));
        }
    }

    #[test]
    fn what_trickles_is_too_slow_after_the_time_and_not_before() {
        let mut meter = Meter::new(PACE);
        // What came fast at first does not excuse what comes later.
        assert_eq!(meter.add(1 << 30, Duration::from_secs(10)), Ok(()));
        for _ in 0..9 {
            assert_eq!(meter.add(1, Duration::from_secs(1)), Ok(()));
        }
        let came = TooSlow { bytes: 10, time: Duration::from_secs(10) };
        assert_eq!(meter.add(1, Duration::from_secs(1)), Err(came));
        let any = Pace { bytes_per_second: 0, ..PACE };
        assert_eq!(Meter::new(any).add(0, Duration::from_secs(100)), Ok(()));
    }
}
