//! Minimum rates of transfers; slower transfers are aborted.

use std::time::Duration;

/// Minimum average rate of a transfer; a slower transfer counts as stuck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinRate {
    /// Bytes per second; 0 for no minimum.
    pub bytes_per_second: u64,
    pub over: Duration,
}

impl Default for MinRate {
    fn default() -> Self {
        // A layer of 100 MB takes three hours at this rate: no usable registry or network is so
        // slow.
        MinRate { bytes_per_second: 10 << 10, over: Duration::from_secs(30) }
    }
}

/// Bytes transferred in a period, fewer than the minimum rate requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowTransfer {
    pub bytes: u64,
    pub time: Duration,
}

/// Checks a transfer against a minimum rate, one period after the other.
#[derive(Debug)]
pub struct RateMeter {
    min_rate: MinRate,
    bytes: u64,
    time: Duration,
}

impl RateMeter {
    /// Returns a meter for a transfer that begins now.
    pub fn new(min_rate: MinRate) -> Self {
        RateMeter { min_rate, bytes: 0, time: Duration::ZERO }
    }

    /// Adds bytes transferred in a time.
    ///
    /// # Errors
    ///
    /// Fails if a period has ended and the rate was below the minimum.
    pub fn add(&mut self, bytes: u64, time: Duration) -> Result<(), SlowTransfer> {
        self.bytes = self.bytes.saturating_add(bytes);
        self.time = self.time.saturating_add(time);
        if self.time < self.min_rate.over {
            return Ok(());
        }
        let came = SlowTransfer { bytes: self.bytes, time: self.time };
        (self.bytes, self.time) = (0, Duration::ZERO);
        let expected =
            u128::from(self.min_rate.bytes_per_second) * came.time.as_nanos() / 1_000_000_000;
        if u128::from(came.bytes) < expected { Err(came) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN_RATE: MinRate = MinRate { bytes_per_second: 1000, over: Duration::from_secs(10) };

    #[test]
    fn bursts_are_fast_enough_on_average() {
        let mut meter = RateMeter::new(MIN_RATE);
        for _ in 0..5 {
            assert_eq!(meter.add(10_000, Duration::from_secs(1)), Ok(()));
            assert_eq!(meter.add(0, Duration::from_secs(9)), Ok(()));
        }
    }

    #[test]
    fn trickling_is_too_slow_only_after_the_grace_time() {
        let mut meter = RateMeter::new(MIN_RATE);
        // A fast start does not excuse a slow transfer later.
        assert_eq!(meter.add(1 << 30, Duration::from_secs(10)), Ok(()));
        for _ in 0..9 {
            assert_eq!(meter.add(1, Duration::from_secs(1)), Ok(()));
        }
        let came = SlowTransfer { bytes: 10, time: Duration::from_secs(10) };
        assert_eq!(meter.add(1, Duration::from_secs(1)), Err(came));
        let any = MinRate { bytes_per_second: 0, ..MIN_RATE };
        assert_eq!(RateMeter::new(any).add(0, Duration::from_secs(100)), Ok(()));
    }
}
