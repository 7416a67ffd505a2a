//! What is configured of registries.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::image::Pace;

/// How registries are reached.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientOptions {
    /// What is special about some registries, by `HOST` or `HOST:PORT`; `docker.io` for Docker Hub.
    pub registries: BTreeMap<String, RegistryOptions>,
    /// An HTTP proxy for everything, as `http://[USER:PASSWORD@]HOST:PORT`.
    pub proxy: Option<String>,
    /// Hosts that are reached without the proxy, as in `NO_PROXY`: `DOMAIN`, `.DOMAIN`, `ADDRESS`,
    /// `ADDRESS/BITS`, each but the last with `:PORT` or without. This machine is always one.
    pub no_proxy: Vec<String>,
    /// A file with CA certificates, PEM, for a host that has none of its own.
    pub fallback_ca_file: Option<PathBuf>,
    /// Whether layers that only other servers have are fetched from there.
    pub foreign_layers: bool,
    /// How many layers are downloaded and unpacked at once.
    pub layers_at_once: usize,
    /// How often something is tried again, and when.
    pub retry: Retry,
    /// How long a connection may take.
    pub connect_timeout: Duration,
    /// How long a server may be silent.
    pub idle_timeout: Duration,
    /// How fast a server must send.
    pub pace: Pace,
    /// How long an image may take altogether; zero if as long as it takes.
    pub max_time: Duration,
    pub user_agent: String,
}

/// What is special about one registry.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RegistryOptions {
    /// Whether its certificate is not checked, and plain HTTP will do.
    ///
    /// Registries on the loopback interface are so without `ca_files`, as in Docker.
    pub insecure: bool,
    /// Files with CA certificates that its certificate may be signed by, in PEM; those
    /// of the system do not count then.
    pub ca_files: Vec<PathBuf>,
    /// Registries that are asked first, as `HOST[:PORT][/PATH]`.
    pub mirrors: Vec<String>,
}

/// How often something that failed for the moment is tried again, and when.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    /// How often it is tried altogether.
    pub attempts: u32,
    /// The time before the second attempt; each later one waits twice as long.
    pub delay: Duration,
    /// The longest wait, also if the server asks for more.
    pub max_delay: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            registries: BTreeMap::new(),
            proxy: None,
            no_proxy: Vec::new(),
            fallback_ca_file: None,
            foreign_layers: false,
            layers_at_once: 4,
            retry: Retry::default(),
            connect_timeout: Duration::from_secs(15),
            idle_timeout: Duration::from_secs(60),
            pace: Pace::default(),
            // A job at GitHub may take no longer, unless its author says so.
            max_time: Duration::from_secs(6 * 3600),
            user_agent: concat!("oci-hooks/", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }
}

impl Default for Retry {
    fn default() -> Self {
        Retry { attempts: 5, delay: Duration::from_millis(500), max_delay: Duration::from_secs(20) }
    }
}

impl Retry {
    /// Returns how long to wait after this many failures; none if it was the last attempt.
    pub(super) fn delay_after(self, failures: u32) -> Option<Duration> {
        let doubled = self.delay.saturating_mul(1 << failures.saturating_sub(1).min(16));
        (failures < self.attempts).then(|| doubled.min(self.max_delay))
    }
}
