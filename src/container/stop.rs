//! Ending containers as they wish: told first, killed when their time is up.

use std::thread;
use std::time::Instant;

use super::engine::Engine;
use super::lifecycle::Check;
use super::record::{Record, Role};
use crate::sys::error::chain;
use crate::sys::identity;
use crate::sys::thread::beside;

impl Engine {
    /// Asks all those containers to end that were made to be asked, and waits until they have or
    /// their time is up; sidecars come after all others. Returns what went wrong, which is no reason
    /// not to remove them.
    pub fn stop_all(&self, records: &[Record]) -> Vec<String> {
        let (sidecars, others): (Vec<_>, Vec<_>) = records
            .iter()
            .filter(|record| record.stop.is_some())
            .partition(|record| record.role == Role::Sidecar);
        [others, sidecars].iter().flat_map(|records| self.stop_at_once(records)).collect()
    }

    fn stop_at_once(&self, records: &[&Record]) -> Vec<String> {
        thread::scope(|scope| {
            let stopping: Vec<_> =
                records.iter().map(|record| beside(scope, || self.stop(record))).collect();
            stopping.into_iter().filter_map(|one| one.join().err()).collect()
        })
    }

    fn stop(&self, record: &Record) -> Result<(), String> {
        let said = |what: &str| format!("{} {}: {what}", record.role.name(), record.name);
        let process = record.process.or_else(|| self.directory(&record.id).process(&record.id));
        let (Some(stop), Some(process)) = (&record.stop, process.and_then(|p| p.open())) else {
            return Ok(());
        };
        let end = Instant::now() + stop.grace;
        let left = || end.saturating_duration_since(Instant::now());
        let before = match &stop.before {
            Some(Check::Sleep(time)) => {
                thread::sleep((*time).min(left()));
                Ok(())
            }
            Some(check) => match self.check(record, check, left()) {
                Ok(result) => result.map_err(|how| said(&format!("preStop: {how}"))),
                Err(error) => Err(said(&format!("preStop: {}", chain(&error)))),
            },
            None => Ok(()),
        };
        if let Some(signal) = &stop.signal {
            record.runtime.kill(&record.id, signal).map_err(|error| said(&chain(&error)))?;
            let _ = identity::wait(&process, left());
        }
        before
    }
}
