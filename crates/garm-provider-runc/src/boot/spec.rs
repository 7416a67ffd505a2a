//! Boot spec: the part of a supervisor's task about its runner, never written to disk.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::http::HttpOptions;

/// Inputs for preparing an instance and booting its runner.
#[derive(Clone, Serialize, Deserialize)]
pub struct BootSpec {
    /// Base URL for status reports, without trailing `/status` or `/`.
    pub callback_url: String,
    /// Base URL of credentials, without trailing `/`.
    pub metadata_url: String,
    /// Bearer token for both URLs, never written to disk.
    pub token: String,
    /// CA certificates and proxies for the supervisor and the runner.
    pub http: HttpOptions,
    pub env: BTreeMap<String, String>,
    pub packages: Vec<String>,
    /// Scripts to run first, as root, ordered by name.
    pub pre_install: BTreeMap<String, Vec<u8>>,
    /// Runner; none if GARM's script installs and starts it.
    pub runner: Option<RunnerSpec>,
    /// Timeout until the runner listens for jobs.
    pub timeout: Duration,
    /// Warning about the image for GARM's users.
    pub warning: Option<String>,
}

/// Inputs for registering and running the runner of an instance.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunnerSpec {
    pub forge: Forge,
    /// Directory of GitHub's runner in the instance.
    pub dir: PathBuf,
    /// Path of the program, for a forge whose runner is a single file.
    pub program: PathBuf,
    /// User id of the runner.
    pub uid: u32,
    /// Group id of the runner.
    pub gid: u32,
    /// Home directory of the user.
    pub home: PathBuf,
    /// If set, GARM has registered the runner.
    pub jit: bool,
    pub url: String,
    pub name: String,
    pub labels: Vec<String>,
    /// Runner group at the forge; empty if none.
    pub group: String,
    /// If set, the runner is not from the image, which may lack its dependencies.
    pub is_downloaded: bool,
    /// If set, `bin/installdependencies.sh` is run if the runner does not start without it.
    pub install_dependencies: bool,
}

/// Kind of forge that gives a runner its jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Forge {
    Github,
    Gitea,
}
