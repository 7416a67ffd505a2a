//! What a supervisor is told to boot, handed over in memory.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::garm::http::Proxy;

/// Everything that is needed to bring a runner up.
#[derive(Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BootSpec {
    /// Where to say how it goes; without `/status` or `/` at its end.
    pub callback_url: String,
    /// Where the credentials are; without `/` at its end.
    pub metadata_url: String,
    /// What is shown at both: never written anywhere.
    pub token: String,
    /// Certificates to trust besides those of the host and of the image, PEM.
    pub ca_pem: String,
    /// Proxies, for us and for the runner.
    pub proxy: Proxy,
    pub env: BTreeMap<String, String>,
    pub packages: Vec<String>,
    /// Scripts to run first, as root, in the order of their names.
    pub pre_install: BTreeMap<String, Vec<u8>>,
    /// The runner; none if GARM's own script is run, which brings one up by itself.
    pub runner: Option<RunnerSpec>,
    /// How long it may take until the runner listens for jobs.
    pub timeout: Duration,
    /// What GARM's users should know of the image.
    pub warning: Option<String>,
}

/// The runner of an instance.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunnerSpec {
    pub forge: Forge,
    /// Where it is in the instance.
    pub dir: PathBuf,
    /// The program, for a forge whose runner is one file.
    pub program: PathBuf,
    /// The number of its user.
    pub uid: u32,
    /// The number of that user's group.
    pub gid: u32,
    /// The home directory of that user.
    pub home: PathBuf,
    /// Whether GARM registered it already.
    pub jit: bool,
    pub url: String,
    pub name: String,
    pub labels: Vec<String>,
    /// Its group; empty if none.
    pub group: String,
    /// Whether it is not from the image, which may lack what it needs.
    pub is_downloaded: bool,
    /// Whether `bin/installdependencies.sh` is run if the runner does not start without.
    pub install_dependencies: bool,
}

/// Whose runner an instance has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Forge {
    Github,
    Gitea,
}

impl fmt::Debug for BootSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Scripts and variables may hold secrets as the token is one.
        f.debug_struct("BootSpec")
            .field("callback_url", &self.callback_url)
            .field("runner", &self.runner)
            .finish_non_exhaustive()
    }
}
