//! API calls with retries.

use std::time::Duration;

use http::Request;
use http::header::RETRY_AFTER;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use kube::client::Body;
use oci_hooks_files::error::chain;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;

use super::ClusterClient;
use super::error::{ApiOperation, ApiRejection, CallFault, ClusterError, innermost_cause};

/// Time during which a restarted server may deny permitted calls.
const SETTLING: Duration = Duration::from_secs(10);
/// Maximum size of an answer.
const MAX_ANSWER_BYTES: usize = 64 << 20;

impl ClusterClient {
    /// Makes a call, retries it after temporary failures, and returns the body of the answer.
    pub(super) async fn call(
        &self,
        operation: &ApiOperation,
        request: &Request<Vec<u8>>,
    ) -> Result<Vec<u8>, ClusterError> {
        let began = Instant::now();
        let mut pauses = self.policy.pauses();
        // A restarted server denies every call until it has read its Roles.
        let mut back_since = None;
        loop {
            let fault = match self.attempt(operation, request).await {
                Ok(answer) => return Ok(answer),
                Err(fault) => fault,
            };
            let is_denied =
                matches!(&fault, CallFault::Rejected(rejection) if rejection.is_denied());
            if fault.is_temporary() {
                back_since = Some(Instant::now());
            }
            let is_settling = back_since.is_some_and(|since| since.elapsed() < SETTLING);
            let may_pass = fault.is_temporary() || is_denied && is_settling;
            let pause = pauses.next(fault.retry_after());
            if !may_pass || began.elapsed() + pause > self.policy.limit {
                return Err(ClusterError::Call { operation: operation.clone(), fault });
            }
            debug!(%operation, error = chain(&fault), ?pause, "calling the API server again");
            sleep(pause).await;
        }
    }

    /// Makes a call and parses the object in the answer.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        operation: &ApiOperation,
        request: &Request<Vec<u8>>,
    ) -> Result<T, ClusterError> {
        let answer = self.call(operation, request).await?;
        serde_json::from_slice(&answer).map_err(|error| {
            let fault = CallFault::Malformed { problem: error.to_string() };
            ClusterError::Call { operation: operation.clone(), fault }
        })
    }

    async fn attempt(
        &self,
        operation: &ApiOperation,
        request: &Request<Vec<u8>>,
    ) -> Result<Vec<u8>, CallFault> {
        let limit = self.policy.answer;
        let answer = timeout(limit, async {
            let request = request.clone().map(Body::from);
            let answer = self
                .client
                .send(request)
                .await
                .map_err(|error| CallFault::of_connection(&error))?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await.map_err(|error| {
                let problem = innermost_cause(error.as_ref());
                match error.is::<LengthLimitError>() {
                    true => CallFault::Malformed { problem },
                    false => CallFault::Unreachable { problem, permanent: false },
                }
            })?;
            Ok((head, body.to_bytes()))
        });
        let (head, body) = answer.await.map_err(|_| CallFault::TimedOut(limit))??;
        if head.status.is_success() {
            return Ok(body.into());
        }
        let after = head.headers.get(RETRY_AFTER).and_then(|after| after.to_str().ok());
        let rejection = ApiRejection::new(operation, head.status.as_u16(), after, &body);
        Err(CallFault::Rejected(Box::new(rejection)))
    }
}
