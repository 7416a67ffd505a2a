//! What one pull may take: no server keeps it waiting for long, however it goes about it.

use std::io::{self, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::RegistryError;
use crate::image::pace::{Meter, Pace};

/// What one pull may take.
#[derive(Debug)]
pub struct Budget {
    /// The name of the image, with its registry.
    image: String,
    pace: Pace,
    total: Duration,
    started: Instant,
}

/// What a server sends, as long as it keeps up the pace and the pull has time.
pub struct Paced<R> {
    reader: R,
    server: String,
    meter: Meter,
    budget: Arc<Budget>,
}

impl Budget {
    /// Returns that of a pull which begins now.
    pub fn new(image: String, pace: Pace, total: Duration) -> Arc<Self> {
        Arc::new(Budget { image, pace, total, started: Instant::now() })
    }

    /// Fails if the time is over.
    pub fn check(&self) -> Result<(), RegistryError> {
        if self.total.is_zero() || self.started.elapsed() < self.total {
            return Ok(());
        }
        let (image, limit) = (self.image.clone(), self.total);
        Err(RegistryError::TooLong { image, limit })
    }

    /// Watches over what a server sends.
    pub fn watch<R>(self: &Arc<Self>, server: String, reader: R) -> Paced<R> {
        Paced { reader, server, meter: Meter::new(self.pace), budget: Arc::clone(self) }
    }
}

impl<R: Read> Read for Paced<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.budget.check().map_err(io::Error::other)?;
        // Only what the server takes counts, not what is done with the data in between.
        let start = Instant::now();
        let count = self.reader.read(buffer)?;
        let result = self.meter.add(count as u64, start.elapsed());
        result.map_err(|came| {
            io::Error::other(RegistryError::TooSlow {
                server: self.server.clone(),
                image: self.budget.image.clone(),
                received_bytes: came.bytes,
                time: came.time,
                bytes_per_second: self.budget.pace.bytes_per_second,
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
    fn what_was_measured_is_said_with_the_server_and_the_image() {
        let pace = Pace { bytes_per_second: 1 << 40, over: Duration::from_millis(1) };
        let budget = Budget::new("docker.io/a/b".to_owned(), pace, Duration::ZERO);
        // However fast, a terabyte a second it is not.
        let said = read(&budget, io::repeat(0).take(1 << 30)).unwrap_err().to_string();
        assert!(said.starts_with("mirror.example sends docker.io/a/b too slowly: "), "{said}");
        assert!(
            said.contains(" bytes in 0 s, expected at least 1099511627776 bytes/s: "),
            "{said}"
        );
    }

    #[test]
    fn a_pull_without_a_limit_may_take_as_long_as_it_takes() {
        let pace = Pace { bytes_per_second: 0, ..Pace::default() };
        let budget = Budget::new("docker.io/a/b".to_owned(), pace, Duration::ZERO);
        assert_eq!(read(&budget, io::repeat(0).take(1000)).unwrap(), 1000);
        let budget = Budget::new("docker.io/a/b".to_owned(), pace, Duration::from_nanos(1));
        let said = read(&budget, io::repeat(0)).unwrap_err();
        assert!(matches!(said, RegistryError::TooLong { .. }), "{said}");
    }
}
