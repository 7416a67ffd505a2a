//! The decision when to load: once the watched paths are quiet, and not too often.

use std::time::{Duration, Instant};

use super::MonitorError;
use super::interest::ReportedChanges;
use super::watch::WatchSet;

/// Limit of the delay caused by a file that is written continuously, in multiples of the coalescing time.
const MAX_COALESCE: u32 = 10;

const LONGEST_COALESCE: Duration = Duration::from_secs(3600);

/// Inverse of the maximum share of time spent loading: one fifth, regardless of the number of
/// events.
const MAX_LOAD: u32 = 5;

/// The watches, with the time of the next load.
pub struct LoadTrigger {
    pub watches: WatchSet,
    coalesce: Duration,
    pending: Option<PendingEvents>,
    times: LoadTimes,
}

/// Times of loads, which limit how often the next ones start.
#[derive(Clone, Copy)]
struct LoadTimes {
    /// End of the last load.
    end: Instant,
    /// Duration of the last load that read all files.
    full: Duration,
    /// Duration of the last load that read only changed files.
    partial: Duration,
}

/// Times of the events since the last load.
#[derive(Clone, Copy)]
struct PendingEvents {
    first: Instant,
    last: Instant,
}

impl LoadTrigger {
    /// Creates a trigger with an empty set of watches.
    pub fn new(coalesce: Duration, max_watches: usize) -> Result<Self, MonitorError> {
        Ok(LoadTrigger {
            watches: WatchSet::new(max_watches)?,
            coalesce: coalesce.min(LONGEST_COALESCE),
            pending: None,
            times: LoadTimes { end: Instant::now(), full: Duration::ZERO, partial: Duration::ZERO },
        })
    }

    /// Reads events, and returns the changes if a load is due; never waits.
    pub fn poll(&mut self) -> Result<Option<ReportedChanges>, MonitorError> {
        let matters = self.watches.read()?;
        let now = Instant::now();
        if matters {
            let first = self.pending.map_or(now, |pending| pending.first);
            self.pending = Some(PendingEvents { first, last: now });
        }
        let is_due = self.due_time().is_some_and(|due| due <= now);
        Ok(is_due.then(|| self.watches.take_changes()))
    }

    /// Returns the time of the next load, if there were events since the last one.
    pub fn due_time(&self) -> Option<Instant> {
        let PendingEvents { first, last } = self.pending?;
        let LoadTimes { end, full, partial } = self.times;
        let took = if self.watches.may_change_all() { full } else { partial };
        let quiet = last + self.coalesce;
        let latest = first + self.coalesce * MAX_COALESCE;
        Some(quiet.min(latest).max(end + took * (MAX_LOAD - 1)))
    }

    /// Returns the changes for a load that reads everything now.
    pub fn force(&mut self) -> Result<ReportedChanges, MonitorError> {
        self.watches.read()?;
        Ok(ReportedChanges { all: true, ..self.watches.take_changes() })
    }

    /// Records a load that ends now.
    pub fn note_load(&mut self, start: Instant, is_full: bool) {
        self.pending = None;
        self.times.end = Instant::now();
        let took = if is_full { &mut self.times.full } else { &mut self.times.partial };
        *took = self.times.end - start;
    }
}
