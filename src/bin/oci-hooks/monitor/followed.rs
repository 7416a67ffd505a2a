//! Files that the monitor follows: hook files, or CDI specifications.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use oci_hooks::hooks::LoadedHooks;
use oci_hooks::hooks::monitor::{DeviceMonitor, Monitor, MonitorError};

use super::event::{self, EventJson, SnapshotJson};

/// A monitor of hook files or CDI specifications whose changes are printed.
pub trait FileMonitor {
    /// Returns the descriptor that is readable when there are events to read.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Returns the time of the next load, if there were events.
    fn due_time(&self) -> Option<Instant>;

    /// Loads if a load is due, or anyway if `is_forced`, and returns the changes; never waits.
    fn changes(&mut self, is_forced: bool) -> Result<Vec<EventJson<'_>>, MonitorError>;

    fn snapshot(&self) -> SnapshotJson<'_>;

    /// Returns the status line for `systemctl status`.
    fn status(&self) -> String;
}

/// A monitor of hook files, with the result of the last load.
pub struct HookMonitor {
    monitor: Monitor,
    loaded: Arc<LoadedHooks>,
}

impl HookMonitor {
    pub fn new(monitor: Monitor) -> Self {
        HookMonitor { loaded: monitor.snapshot(), monitor }
    }
}

impl FileMonitor for HookMonitor {
    fn fd(&self) -> BorrowedFd<'_> {
        self.monitor.as_fd()
    }

    fn due_time(&self) -> Option<Instant> {
        self.monitor.due_time()
    }

    fn changes(&mut self, is_forced: bool) -> Result<Vec<EventJson<'_>>, MonitorError> {
        let changes = if is_forced { self.monitor.rescan()? } else { self.monitor.poll()? };
        self.loaded = self.monitor.snapshot();
        Ok(event::combine_changes(&changes, &self.loaded, Timestamp::now()))
    }

    fn snapshot(&self) -> SnapshotJson<'_> {
        SnapshotJson::of_hooks(&self.loaded, Timestamp::now())
    }

    fn status(&self) -> String {
        let LoadedHooks { hooks, problems, .. } = &*self.loaded;
        format!("STATUS=Hooks: {}, problems: {}", hooks.len(), problems.len())
    }
}

impl FileMonitor for DeviceMonitor {
    fn fd(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }

    fn due_time(&self) -> Option<Instant> {
        DeviceMonitor::due_time(self)
    }

    fn changes(&mut self, is_forced: bool) -> Result<Vec<EventJson<'_>>, MonitorError> {
        let changes = if is_forced { self.rescan()? } else { self.poll()? };
        Ok(event::combine_device_changes(&changes, self.registry(), Timestamp::now()))
    }

    fn snapshot(&self) -> SnapshotJson<'_> {
        SnapshotJson::of_devices(self.dirs(), self.registry(), Timestamp::now())
    }

    fn status(&self) -> String {
        let problems = self.registry().problems().len() + self.registry().conflicts().len();
        format!("STATUS=Devices: {}, problems: {problems}", self.registry().devices().count())
    }
}
