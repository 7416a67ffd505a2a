//! One call, repeated while that may help.

use std::time::Duration;

use http::Request;
use http::header::RETRY_AFTER;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use kube::client::Body;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;

use super::Cluster;
use super::error::{ClusterError, Fault, Operation, Refusal, innermost};
use crate::sys::error::chain;

/// How long a server that was away denies what it permits.
const SETTLING: Duration = Duration::from_secs(10);
/// The longest answer that is read.
const MAX_ANSWER_BYTES: usize = 64 << 20;

impl Cluster {
    /// Makes a call, and returns the body of its answer.
    pub(super) async fn call(
        &self,
        operation: &Operation,
        request: &Request<Vec<u8>>,
    ) -> Result<Vec<u8>, ClusterError> {
        let began = Instant::now();
        let mut pauses = self.policy.pauses();
        // A server that has just come back denies everything, until it has read its Roles.
        let mut back_since = None;
        loop {
            let fault = match self.attempt(operation, request).await {
                Ok(answer) => return Ok(answer),
                Err(fault) => fault,
            };
            let is_denied = matches!(&fault, Fault::Refused(refusal) if refusal.is_denied());
            if fault.may_pass() {
                back_since = Some(Instant::now());
            }
            let is_settling = back_since.is_some_and(|since| since.elapsed() < SETTLING);
            let may_pass = fault.may_pass() || is_denied && is_settling;
            let pause = pauses.next(fault.retry_after());
            if !may_pass || began.elapsed() + pause > self.policy.limit {
                return Err(ClusterError::Call { operation: operation.clone(), fault });
            }
            debug!(%operation, error = chain(&fault), ?pause, "calling the API server again");
            sleep(pause).await;
        }
    }

    /// Makes a call whose answer is an object.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        operation: &Operation,
        request: &Request<Vec<u8>>,
    ) -> Result<T, ClusterError> {
        let answer = self.call(operation, request).await?;
        serde_json::from_slice(&answer).map_err(|error| {
            let fault = Fault::Malformed { problem: error.to_string() };
            ClusterError::Call { operation: operation.clone(), fault }
        })
    }

    async fn attempt(
        &self,
        operation: &Operation,
        request: &Request<Vec<u8>>,
    ) -> Result<Vec<u8>, Fault> {
        let limit = self.policy.answer;
        let answer = timeout(limit, async {
            let request = request.clone().map(Body::from);
            let answer =
                self.client.send(request).await.map_err(|error| Fault::of_connection(&error))?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await.map_err(|error| {
                let problem = innermost(error.as_ref());
                match error.is::<LengthLimitError>() {
                    true => Fault::Malformed { problem },
                    false => Fault::Unreachable { problem, permanent: false },
                }
            })?;
            Ok((head, body.to_bytes()))
        });
        let (head, body) = answer.await.map_err(|_| Fault::TimedOut(limit))??;
        if head.status.is_success() {
            return Ok(body.into());
        }
        let after = head.headers.get(RETRY_AFTER).and_then(|after| after.to_str().ok());
        let refusal = Refusal::new(operation, head.status.as_u16(), after, &body);
        Err(Fault::Refused(Box::new(refusal)))
    }
}
