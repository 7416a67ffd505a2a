//! Requests of a boot to GARM.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use oci_hooks_files::error::chain;
use serde_json::{Value, json};

use super::error::BootError;
use super::guest::Guest;
use super::release::OsRelease;
use super::spec::BootSpec;
use crate::http::{HttpClient, HttpError, HttpRetry};

/// Timeout for reporting a failure, even after the deadline.
const FAILURE_REPORT_TIMEOUT: Duration = Duration::from_secs(30);

/// Size limit of a registration token, larger than any real one.
const MAX_TOKEN_BYTES: u64 = 16 << 10;

/// Length limit of a message.
const MAX_MESSAGE_CHARS: usize = 1000;

/// Time by which a runner must listen for jobs.
#[derive(Clone, Copy, Debug)]
pub struct BootDeadline {
    start: Instant,
    timeout: Duration,
}

impl BootDeadline {
    pub(super) fn new(timeout: Duration) -> Self {
        BootDeadline { start: Instant::now(), timeout }
    }

    /// Returns the remaining time; fails after the deadline.
    pub fn remaining_time(self) -> Result<Duration, BootError> {
        let left = self.timeout.saturating_sub(self.start.elapsed());
        if left.is_zero() { Err(BootError::TimedOut { timeout: self.timeout }) } else { Ok(left) }
    }

    /// Returns the time of the deadline; none if it is out of the clock's range.
    fn end_time(self) -> Option<Instant> {
        self.start.checked_add(self.timeout)
    }
}

/// GARM's API for one instance.
pub struct GarmApi<'a> {
    spec: &'a BootSpec,
    http: &'a HttpClient,
    pub retry: HttpRetry,
    deadline: BootDeadline,
}

impl<'a> GarmApi<'a> {
    pub(super) fn new(
        spec: &'a BootSpec,
        http: &'a HttpClient,
        retry: HttpRetry,
        deadline: BootDeadline,
    ) -> Self {
        GarmApi { spec, http, retry, deadline }
    }

    /// Returns the time of the deadline.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline.end_time()
    }

    /// Gets a document about the instance, at a path below the metadata URL; retries until the deadline.
    pub fn get(&self, path: &str, limit_bytes: u64) -> Result<Vec<u8>, BootError> {
        let url = format!("{}/{path}", self.spec.metadata_url);
        self.retry_call(|| self.http.get(&url, Some(&self.spec.token), limit_bytes))
    }

    /// Reports the beginning of the boot. GARM accepts `idle` only after this report.
    pub fn report_installing(
        &self,
        guest: &mut impl Guest,
        message: &str,
    ) -> Result<(), BootError> {
        guest.note(message);
        self.retry_call(|| self.post("status", &status("installing", message)))
    }

    /// Reports progress for display, without retries.
    pub fn progress(&self, guest: &mut impl Guest, message: &str) -> Result<(), BootError> {
        self.deadline.remaining_time()?;
        guest.note(message);
        match self.post("status", &status("installing", message)) {
            // If GARM rejects the report, it no longer wants the instance.
            Err(error) if !error.is_transient() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Reports the registration, and gets the token for it.
    pub fn registration_token(&self, guest: &mut impl Guest) -> Result<String, BootError> {
        self.progress(guest, "registering the runner")?;
        // GARM has only this endpoint for tokens.
        let token = self.get("runner-registration-token/", MAX_TOKEN_BYTES)?;
        Ok(String::from_utf8_lossy(&token).trim().to_owned())
    }

    /// Reports the distribution of the instance.
    pub fn system_info(&self, release: &OsRelease, agent_id: Option<i64>) -> Result<(), BootError> {
        let (name, version) = (&release.id, &release.version);
        let document = json!({"os_name": name, "os_version": version, "agent_id": agent_id});
        self.retry_call(|| self.post("system-info/", &document))
    }

    /// Waits until the runner listens for jobs, and reports `idle`, with retries until GARM answers or the runner
    /// exits. Returns the error if the report failed. The token is invalid after this report.
    pub fn idle(&self, agent_id: Option<i64>, listening: &Receiver<()>) -> Option<HttpError> {
        listening.recv().ok()?;
        let mut document = status("idle", "the runner listens for jobs");
        document["agent_id"] = agent_id.into();
        let mut was_lost = false;
        loop {
            match self.post("status", &document) {
                Ok(()) => return None,
                // GARM accepted an earlier report whose response was lost.
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

    /// Reports a failure.
    pub fn report_failed(&self, error: &BootError) -> Result<(), HttpError> {
        let reason = chain(error).replace(&self.spec.token, "***");
        let start = Instant::now();
        let is_time = || start.elapsed() < FAILURE_REPORT_TIMEOUT;
        self.retry.run_while(is_time, || self.post("status", &status("failed", &reason)))
    }

    fn post(&self, path: &str, document: &Value) -> Result<(), HttpError> {
        let url = format!("{}/{path}", self.spec.callback_url);
        self.http.post_json(&url, Some(&self.spec.token), document)
    }

    fn retry_call<T>(&self, f: impl FnMut() -> Result<T, HttpError>) -> Result<T, BootError> {
        self.deadline.remaining_time()?;
        Ok(self.retry.run_while(|| self.deadline.remaining_time().is_ok(), f)?)
    }
}

/// Returns the document of a status report, with the message in one line.
fn status(status: &str, message: &str) -> Value {
    let line = message.chars().map(|c| if c.is_control() { ' ' } else { c });
    let message: String = line.take(MAX_MESSAGE_CHARS).collect();
    json!({"status": status, "message": message})
}
