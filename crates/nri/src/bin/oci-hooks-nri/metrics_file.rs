//! The metrics file for the node exporter.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use oci_hooks_files::error::chain;
use oci_hooks_files::fs::replace_unsynced;
use oci_hooks_nri::Metrics;
use tracing::warn;

/// Minimum interval between two writes.
const INTERVAL: Duration = Duration::from_secs(1);

/// Writes the metrics to a file, with a short delay.
#[derive(Default)]
pub struct MetricsFile {
    pub path: Option<PathBuf>,
    written: Option<Instant>,
    is_stale: bool,
    has_failed: bool,
}

impl MetricsFile {
    /// Marks the file as outdated.
    pub fn set_stale(&mut self) {
        self.is_stale = self.path.is_some();
    }

    /// Returns the time of the next write; `None` if the file is up to date.
    pub fn due_time(&self) -> Option<Instant> {
        let now = Instant::now();
        self.is_stale.then(|| self.written.map_or(now, |written| written + INTERVAL))
    }

    /// Writes the file if the write is due.
    pub fn write_if_due(&mut self, metrics: &Metrics) {
        if self.due_time().is_some_and(|due| due <= Instant::now()) {
            self.write(metrics);
        }
    }

    /// Replaces the file. Repeated errors are logged once.
    pub fn write(&mut self, metrics: &Metrics) {
        let Some(path) = &self.path else { return };
        let result = replace_unsynced(path, metrics.text().as_bytes(), 0o644);
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
