//! Limits of a pull's time and rate, so that no server can stall it.

use std::io::{self, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::RegistryError;
use crate::min_rate::{MinRate, RateMeter};

/// Limits of one pull.
#[derive(Debug)]
pub struct Budget {
    /// Name of the image, with its registry.
    image: String,
    min_rate: MinRate,
    total: Duration,
    started: Instant,
}

/// Reader of a response, limited by the minimum rate and the time limit of the pull.
pub struct BudgetReader<R> {
    reader: R,
    server: String,
    meter: RateMeter,
    budget: Arc<Budget>,
}

impl Budget {
    /// Returns the budget of a pull that begins now.
    pub fn new(image: String, min_rate: MinRate, total: Duration) -> Arc<Self> {
        Arc::new(Budget { image, min_rate, total, started: Instant::now() })
    }

    /// Fails if the time is over.
    pub fn check(&self) -> Result<(), RegistryError> {
        if self.total.is_zero() || self.started.elapsed() < self.total {
            return Ok(());
        }
        let (image, limit) = (self.image.clone(), self.total);
        Err(RegistryError::TooLong { image, limit })
    }

    /// Limits the reading of a response.
    pub fn watch<R>(self: &Arc<Self>, server: String, reader: R) -> BudgetReader<R> {
        BudgetReader {
            reader,
            server,
            meter: RateMeter::new(self.min_rate),
            budget: Arc::clone(self),
        }
    }
}

impl<R: Read> Read for BudgetReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.budget.check().map_err(io::Error::other)?;
        // Only waiting for the server counts, not the processing of data between reads.
        let start = Instant::now();
        let count = self.reader.read(buffer)?;
        let result = self.meter.add(count as u64, start.elapsed());
        result.map_err(|came| {
            io::Error::other(RegistryError::TooSlow {
                server: self.server.clone(),
                image: self.budget.image.clone(),
                received_bytes: came.bytes,
                time: came.time,
                bytes_per_second: self.budget.min_rate.bytes_per_second,
            })
        })?;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(budget: &Arc<Budget>, source: impl Read) -> Result<u64, RegistryError> {
        let mut body = budget.watch("mirror.example".to_owned(), source);
        io::copy(&mut body, &mut io::sink()).map_err(|error| error.downcast().unwrap())
    }

    #[test]
    fn exceeded_budget_names_server_and_image() {
        let min_rate = MinRate { bytes_per_second: 1 << 40, over: Duration::from_millis(1) };
        let budget = Budget::new("docker.io/a/b".to_owned(), min_rate, Duration::ZERO);
        // No machine reads a terabyte a second.
        let said = read(&budget, io::repeat(0).take(1 << 30)).unwrap_err().to_string();
        assert!(said.starts_with("mirror.example sends docker.io/a/b too slowly: "), "{said}");
        assert!(said.contains(" bytes in "), "{said}");
        assert!(said.contains(" s, expected at least 1099511627776 bytes/s: "), "{said}");
    }

    #[test]
    fn pull_without_a_limit_never_times_out() {
        let min_rate = MinRate { bytes_per_second: 0, ..MinRate::default() };
        let budget = Budget::new("docker.io/a/b".to_owned(), min_rate, Duration::ZERO);
        assert_eq!(read(&budget, io::repeat(0).take(1000)).unwrap(), 1000);
        let budget = Budget::new("docker.io/a/b".to_owned(), min_rate, Duration::from_nanos(1));
        let said = read(&budget, io::repeat(0)).unwrap_err();
        assert!(matches!(said, RegistryError::TooLong { .. }), "{said}");
    }
}
