//! Agent mode of GARM 0.2, in which an agent in the instance keeps a connection to GARM and serves shells.
//!
//! This provider runs no agent. Its supervisor reports what the agent would report, except for heartbeats, but it serves
//! no shell.

use oci_hooks_files::error::chain;
use serde::Deserialize;

use super::spec::BootSpec;
use crate::http::{HttpClient, HttpError};

/// Size limit of the instance's metadata, larger than any real one.
const MAX_METADATA_BYTES: u64 = 4 << 20;

/// Note for the log of an instance in agent mode.
const NO_AGENT: &str = "agent mode: GARM gets no heartbeats of this runner, because garm-provider-runc runs no \
     agent; it reports the status by callbacks";

/// The pool has a shell enabled, which only an agent can serve.
#[derive(Debug, thiserror::Error)]
#[error(
    "the pool has a shell enabled, which needs GARM's agent, and garm-provider-runc runs none: disable it with \
     `garm-cli pool update POOL_ID --enable-shell=false` (for a scale set `garm-cli scaleset update`), or turn off \
     agent mode in GARM"
)]
pub struct PoolShellError;

/// The part of an instance's metadata about the agent. GARM before 0.2 sends none.
#[derive(Default, Deserialize)]
#[serde(default)]
struct AgentMetadata {
    agent_mode: bool,
    agent_shell_enabled: bool,
}

/// Checks that the instance needs no agent. Returns a note for its log if GARM is in agent mode or did not answer.
pub fn check(spec: &BootSpec, http: &HttpClient) -> Result<Option<String>, PoolShellError> {
    // Without a runner, GARM's script runs, which installs the agent.
    if spec.runner.is_none() {
        return Ok(None);
    }
    let url = format!("{}/runner-metadata/", spec.metadata_url);
    let metadata = match http.get(&url, Some(&spec.token), MAX_METADATA_BYTES) {
        Ok(text) => serde_json::from_slice::<AgentMetadata>(&text).unwrap_or_default(),
        // GARM before 0.2 has no agents.
        Err(HttpError::Status { status: 404, .. }) => return Ok(None),
        // Not an error: if GARM stays unreachable, the boot that follows retries its own requests,
        // and fails.
        Err(error) => {
            return Ok(Some(format!(
                "cannot ask GARM whether agent mode is on: {}",
                chain(&error)
            )));
        }
    };
    match (metadata.agent_mode, metadata.agent_shell_enabled) {
        (true, true) => Err(PoolShellError),
        (true, false) => Ok(Some(NO_AGENT.to_owned())),
        (false, _) => Ok(None),
    }
}
