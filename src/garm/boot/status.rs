//! What GARM is told and asked.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::error::BootError;
use super::guest::Guest;
use super::release::OsRelease;
use super::spec::BootSpec;
use crate::garm::http::{Http, HttpError, Retry};
use crate::sys::error::chain;

/// How long GARM may take to learn that it went wrong, even after the time was over.
const LAST_WORDS: Duration = Duration::from_secs(30);

/// How much of a message is told.
const MAX_MESSAGE_CHARS: usize = 1000;

/// How long all may take.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    start: Instant,
    timeout: Duration,
}

impl Deadline {
    pub(super) fn new(timeout: Duration) -> Self {
        Deadline { start: Instant::now(), timeout }
    }

    /// Returns what is left of the time.
    pub fn left(self) -> Result<Duration, BootError> {
        let left = self.timeout.saturating_sub(self.start.elapsed());
        if left.is_zero() { Err(BootError::TimedOut { timeout: self.timeout }) } else { Ok(left) }
    }

    /// Returns when it is over; none if that is too far off for a clock.
    fn at(self) -> Option<Instant> {
        self.start.checked_add(self.timeout)
    }
}

/// GARM, as an instance sees it.
pub struct Garm<'a> {
    spec: &'a BootSpec,
    http: &'a Http,
    pub retry: Retry,
    deadline: Deadline,
}

impl<'a> Garm<'a> {
    pub(super) fn new(
        spec: &'a BootSpec,
        http: &'a Http,
        retry: Retry,
        deadline: Deadline,
    ) -> Self {
        Garm { spec, http, retry, deadline }
    }

    /// Returns when the time is over.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline.at()
    }

    /// Gets one of the instance's documents.
    pub fn get(&self, path: &str, limit_bytes: u64) -> Result<Vec<u8>, BootError> {
        let url = format!("{}/{path}", self.spec.metadata_url);
        self.patiently(|| self.http.get(&url, Some(&self.spec.token), limit_bytes))
    }

    /// Reports that it begins. GARM takes `idle` from nobody who did not.
    pub fn installing(&self, guest: &mut impl Guest, message: &str) -> Result<(), BootError> {
        guest.note(message);
        self.patiently(|| self.post("status", &status("installing", message)))
    }

    /// Reports progress to people; one try.
    pub fn progress(&self, guest: &mut impl Guest, message: &str) -> Result<(), BootError> {
        self.deadline.left()?;
        guest.note(message);
        match self.post("status", &status("installing", message)) {
            // Those who are refused are not wanted any more.
            Err(error) if !error.is_transient() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Reports the distribution of the instance.
    pub fn system_info(&self, release: &OsRelease, agent_id: Option<i64>) -> Result<(), BootError> {
        let (name, version) = (&release.id, &release.version);
        let document = json!({"os_name": name, "os_version": version, "agent_id": agent_id});
        self.patiently(|| self.post("system-info/", &document))
    }

    /// Waits until the runner listens, and reports then that it waits for its job: until GARM answers
    /// or the runner is gone. Returns why GARM was not told. The token is worth nothing after that.
    pub fn idle(&self, agent_id: Option<i64>, listening: &Receiver<()>) -> Option<HttpError> {
        listening.recv().ok()?;
        let mut document = status("idle", "the runner listens for jobs");
        document["agent_id"] = agent_id.into();
        let mut was_lost = false;
        loop {
            match self.post("status", &document) {
                Ok(()) => return None,
                // It was taken, and only the answer did not come through.
                Err(HttpError::Status { status: 401, .. }) if was_lost => return None,
                Err(error) if !error.is_transient() => return Some(error),
                Err(error) => {
                    was_lost = true;
                    if listening.recv_timeout(self.retry.pause) != Err(RecvTimeoutError::Timeout) {
                        return Some(error);
                    }
                }
            }
        }
    }

    /// Reports the failure.
    pub fn failed(&self, error: &BootError) -> Result<(), HttpError> {
        let reason = chain(error).replace(&self.spec.token, "***");
        let start = Instant::now();
        let is_time = || start.elapsed() < LAST_WORDS;
        self.retry.run_while(is_time, || self.post("status", &status("failed", &reason)))
    }

    fn post(&self, path: &str, document: &Value) -> Result<(), HttpError> {
        let url = format!("{}/{path}", self.spec.callback_url);
        self.http.post_json(&url, Some(&self.spec.token), document)
    }

    fn patiently<T>(&self, f: impl FnMut() -> Result<T, HttpError>) -> Result<T, BootError> {
        self.deadline.left()?;
        Ok(self.retry.run_while(|| self.deadline.left().is_ok(), f)?)
    }
}

/// Returns what is told of a status, in one line.
fn status(status: &str, message: &str) -> Value {
    let line = message.chars().map(|c| if c.is_control() { ' ' } else { c });
    let message: String = line.take(MAX_MESSAGE_CHARS).collect();
    json!({"status": status, "message": message})
}
