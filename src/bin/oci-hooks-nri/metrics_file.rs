//! The file that the node exporter reads.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use oci_hooks::nri::Metrics;
use oci_hooks::sys::error::chain;
use oci_hooks::sys::fs::{Durability, FileAt, ReplaceError, ReplaceOptions, Symlinks};
use tracing::warn;

/// Nobody reads it more often than this.
const INTERVAL: Duration = Duration::from_secs(1);

/// Metrics, and the file that has them as they were a moment ago.
#[derive(Default)]
pub struct MetricsFile {
    pub path: Option<PathBuf>,
    written: Option<Instant>,
    is_stale: bool,
    has_failed: bool,
}

impl MetricsFile {
    /// Notes that the file is not up to date.
    pub fn set_stale(&mut self) {
        self.is_stale = self.path.is_some();
    }

    /// Returns when the file is to be written.
    pub fn due(&self) -> Option<Instant> {
        let now = Instant::now();
        self.is_stale.then(|| self.written.map_or(now, |written| written + INTERVAL))
    }

    /// Writes the file if it is time to.
    pub fn write_if_due(&mut self, metrics: &Metrics) {
        if self.due().is_some_and(|due| due <= Instant::now()) {
            self.write(metrics);
        }
    }

    /// Replaces the file. An error is logged once.
    pub fn write(&mut self, metrics: &Metrics) {
        let Some(path) = &self.path else { return };
        let options = ReplaceOptions {
            mode: Some(0o644),
            durability: Durability::Unsynced,
            ..ReplaceOptions::default()
        };
        let replace = |text: String| -> Result<(), ReplaceError> {
            FileAt::open(path, Symlinks::Refuse)?.replace(text.as_bytes(), &options)
        };
        let result = replace(metrics.text());
        if let Err(error) = &result
            && !self.has_failed
        {
            warn!(error = %chain(error), "cannot write metrics");
        }
        self.has_failed = result.is_err();
        self.written = Some(Instant::now());
        self.is_stale = false;
    }
}
