//! Limits of the commands of a function, besides those of their job.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use super::super::builtin::{Cancellation, JobState, Limits};
use super::super::log::Output;
use super::cancel::Reason;
use super::command::Processes;
use super::pump::is_over;

/// Limits to return to.
pub(super) struct Outer {
    limits: Limits,
    cleanup_ends: Option<Instant>,
}

/// What ends the work that is being done.
pub(super) struct Ends<'a> {
    /// Readable when it has to stop, if it does that on a cancellation.
    pub(super) stop: Option<BorrowedFd<'a>>,
    pub(super) deadline: Option<Instant>,
    /// Whether it had its time when the deadline is over, and is killed without more ado.
    pub(super) in_cleanup: bool,
}

impl<'a> Processes<'a> {
    pub(super) fn ends(&self) -> Ends<'a> {
        let is_spared = self.limits.cancellation == Cancellation::Spares;
        match self.cleanup_ends {
            Some(end) if !is_spared => Ends { stop: None, deadline: Some(end), in_cleanup: true },
            _ => Ends {
                stop: (!is_spared).then(|| self.cancel.stop_event()),
                deadline: self.deadline.into_iter().chain(self.limits.deadline).min(),
                in_cleanup: false,
            },
        }
    }

    /// Sets limits for commands until [`Processes::leave`].
    pub(super) fn enter(&mut self, limits: Limits) -> Outer {
        let outer = Outer { limits: self.limits, cleanup_ends: self.cleanup_ends };
        self.limits = limits;
        outer
    }

    /// Sets the limits from before [`Processes::enter`].
    pub(super) fn leave(&mut self, outer: Outer) {
        self.limits = outer.limits;
        if self.cancel.reason().is_none() {
            self.cleanup_ends = outer.cleanup_ends;
        }
    }

    /// Returns whether commands may still run.
    pub(super) fn state(&self) -> JobState {
        match self.cancel.reason() {
            _ if self.cancel.is_killed() => JobState::Killed,
            _ if is_over(self.deadline) => JobState::TimedOut,
            Some(Reason::Timeout) => JobState::TimedOut,
            Some(Reason::Asked) => JobState::Cancelled,
            None => JobState::Running,
        }
    }

    /// Forwards output for some time, or until a command would have to stop.
    pub(super) fn pause(&mut self, time: Duration, output: &mut dyn Output) {
        let Ends { stop, deadline, .. } = self.ends();
        let end = deadline.into_iter().chain([Instant::now() + time]).min();
        let kill_event = self.cancel.kill_event();
        // Without a pause, what comes next reports what is wrong.
        let _ = self.pipes.pump(&[stop.unwrap_or(kill_event), kill_event], end, output);
    }
}
