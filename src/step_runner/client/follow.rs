//! Following logs and results, which resumes after lost connections.

use tonic::codec::Streaming;

use super::super::wire::document::{FollowStepsRequest, FollowStepsResponse};
use super::super::wire::proto::{FollowLogsRequest, FollowLogsResponse, StepResult};
use super::connection::Client;
use super::error::ClientError;
use super::retry::Attempts;

/// Follows the log of a job; see [`Client::follow_log`].
#[derive(Debug)]
pub struct Log {
    client: Client,
    id: String,
    offset: u64,
    stream: Option<Streaming<FollowLogsResponse>>,
}

impl Log {
    pub(super) fn new(client: Client, id: &str, offset: u64) -> Self {
        Log { client, id: id.to_owned(), offset, stream: None }
    }

    /// Waits for the next bytes; `None` when the job has ended.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        let mut attempts = Attempts::new(self.client.retry());
        loop {
            match self.try_next().await {
                Ok(Some(response)) => {
                    self.offset += response.data.len() as u64;
                    return Ok(Some(response.data));
                }
                Ok(None) => return Ok(None),
                Err(error) => {
                    self.stream = None;
                    attempts.wait(error).await?;
                }
            }
        }
    }

    /// Returns the offset of the next byte.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    async fn try_next(&mut self) -> Result<Option<FollowLogsResponse>, ClientError> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                // No log is that long.
                let offset = i64::try_from(self.offset).unwrap_or(i64::MAX);
                let request = FollowLogsRequest { id: self.id.clone(), offset };
                let stream = self.client.gitlab().follow_logs(request).await;
                self.stream.insert(self.client.response(stream)?)
            }
        };
        stream.message().await.map_err(|status| self.client.error(status))
    }
}

/// Follows the results of a job's steps; see [`Client::follow_steps`].
#[derive(Debug)]
pub struct Steps {
    client: Client,
    id: String,
    next: u32,
    stream: Option<Streaming<FollowStepsResponse>>,
}

impl Steps {
    pub(super) fn new(client: Client, id: &str, skip: u32) -> Self {
        Steps { client, id: id.to_owned(), next: skip, stream: None }
    }

    /// Waits for the result of the next step to end. The result of the job is the last one, then follows
    /// `None`.
    pub async fn next(&mut self) -> Result<Option<StepResult>, ClientError> {
        let mut attempts = Attempts::new(self.client.retry());
        loop {
            match self.try_next().await {
                Ok(Some(response)) => {
                    self.next += 1;
                    return Ok(Some(response.result.unwrap_or_default()));
                }
                Ok(None) => return Ok(None),
                Err(error) => {
                    self.stream = None;
                    attempts.wait(error).await?;
                }
            }
        }
    }

    async fn try_next(&mut self) -> Result<Option<FollowStepsResponse>, ClientError> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                let offset = i32::try_from(self.next).unwrap_or(i32::MAX);
                let request = FollowStepsRequest { id: self.id.clone(), offset };
                let stream = self.client.document().follow_steps(request).await;
                self.stream.insert(self.client.response(stream)?)
            }
        };
        stream.message().await.map_err(|status| self.client.error(status))
    }
}
