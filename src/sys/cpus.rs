//! Numbers of CPUs, as people write them.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Processors, and parts of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cpus {
    nanos: u64,
}

/// An invalid CPU count.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("invalid CPU count {0}: expected 0.01–65536, for example 2 or 0.5")]
pub struct CpusError(f64);

impl Cpus {
    /// Returns a number of CPUs, which may be a fraction.
    pub fn new(count: f64) -> Result<Self, CpusError> {
        // Less is less than the kernel can share out.
        if !(0.01..=65_536.0).contains(&count) {
            return Err(CpusError(count));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is in range"
        )]
        Ok(Cpus { nanos: (count * 1e9).round() as u64 })
    }

    /// Returns them as billionths of one.
    pub fn nanos(self) -> u64 {
        self.nanos
    }

    /// Returns the number of CPUs.
    pub fn count(self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "it was made of such a number")]
        let nanos = self.nanos as f64;
        nanos / 1e9
    }
}

impl Serialize for Cpus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.count())
    }
}

impl<'de> Deserialize<'de> for Cpus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cpus::new(f64::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}
