//! Runs a job to its end.

use super::super::wire::proto::RunRequest;
use super::super::wire::proto::step_result::Status;
use super::connection::Client;
use super::error::ClientError;

/// Result of [`Client::execute`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExecuteOutcome {
    pub status: Status,
    pub message: String,
    /// Exit code of the command that failed; 1 if the job failed otherwise, 0 on success.
    pub exit_code: i32,
}

impl Client {
    /// Runs a job, passes its log to `take` as it arrives, and closes the job.
    ///
    /// Resumes after a lost connection. If the future is dropped or fails, the job continues: the same
    /// request resumes it, with the log from the beginning.
    pub async fn execute(
        &self,
        request: RunRequest,
        mut take: impl FnMut(&[u8]),
    ) -> Result<ExecuteOutcome, ClientError> {
        let id = request.id.clone();
        self.run(request).await?;
        let lost = |error: ClientError| {
            if error.is_no_such_job() { ClientError::Lost { id: id.clone() } } else { error }
        };
        let mut log = self.follow_log(&id, 0);
        while let Some(bytes) = log.next().await.map_err(lost)? {
            take(&bytes);
        }
        let job = self.status(&id).await.map_err(lost)?.pop();
        let job = job.ok_or_else(|| ClientError::Lost { id: id.clone() })?;
        self.close(&id).await?;
        let status = job.status();
        let exit_code = match status {
            Status::Success => 0,
            _ => exit_code(&job.message).unwrap_or(1),
        };
        Ok(ExecuteOutcome { status, message: job.message, exit_code })
    }
}

/// Finds the exit code at the end of a message, where GitLab's runner looks for it.
fn exit_code(message: &str) -> Option<i32> {
    let (_, code) = message.rsplit_once("exit status ")?;
    match code.strip_prefix("0x") {
        Some(code) => i32::from_str_radix(code, 16).ok(),
        None => code.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_at_the_end_of_the_message() {
        assert_eq!(exit_code("step \"a\": exec: exit status 3"), Some(3));
        assert_eq!(exit_code("exec: exit status 1: exec: exit status 0x2a"), Some(42));
        for none in ["", "exit status 3 or so", "exec: signal: killed", "exit status "] {
            assert_eq!(exit_code(none), None, "{none}");
        }
    }
}
