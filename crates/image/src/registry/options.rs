//! Options of the registry client.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::error::RegistryError;
use crate::MinRate;

/// Options of a [`RegistryClient`](super::RegistryClient).
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Options of single registries, by `HOST` or `HOST:PORT`; `docker.io` for Docker Hub.
    pub registries: BTreeMap<String, RegistryOptions>,
    /// HTTP proxy for all requests, as `http://[USER:PASSWORD@]HOST:PORT`.
    pub proxy: Option<String>,
    /// Hosts that are reached without the proxy, as in `NO_PROXY`: `DOMAIN`, `.DOMAIN`, `ADDRESS`,
    /// `ADDRESS/BITS`, each but the last with or without `:PORT`. This machine is always included.
    pub no_proxy: Vec<String>,
    /// PEM file with CA certificates, for hosts without any.
    pub fallback_ca_file: Option<PathBuf>,
    /// If set, layers that the registry lacks are fetched from the URLs in their descriptors.
    pub foreign_layers: bool,
    /// Number of layers downloaded and unpacked in parallel.
    pub layers_at_once: usize,
    pub retry: RetryOptions,
    pub connect_timeout: Duration,
    /// Timeout of a response, and of each read.
    pub idle_timeout: Duration,
    pub min_rate: MinRate,
    /// Time limit of pulling an image; zero for none.
    pub max_time: Duration,
    pub user_agent: String,
    /// Returns a hint on the setting of the program that may prevent an error of a pull.
    pub hint: fn(&RegistryError) -> Option<&'static str>,
}

/// Options of one registry.
#[derive(Clone, Debug, Default)]
pub struct RegistryOptions {
    /// If set, the certificate is not checked and plain HTTP is allowed.
    ///
    /// As in Docker, this is the default for registries on the loopback interface without
    /// `ca_files`.
    pub insecure: bool,
    /// PEM files with CA certificates, which replace those of the system.
    pub ca_files: Vec<PathBuf>,
    /// Registries that are asked first, as `HOST[:PORT][/PATH]`.
    pub mirrors: Vec<String>,
}

/// Retries of transient failures.
#[derive(Clone, Copy, Debug)]
pub struct RetryOptions {
    /// Number of attempts, including the first.
    pub attempts: u32,
    /// Delay before the second attempt; it doubles for each later one.
    pub delay: Duration,
    /// Longest delay. If the server asks for more, the request is not retried.
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
            retry: RetryOptions::default(),
            connect_timeout: Duration::from_secs(15),
            idle_timeout: Duration::from_secs(60),
            min_rate: MinRate::default(),
            // Default time limit of a job at GitHub.
            max_time: Duration::from_secs(6 * 3600),
            user_agent: concat!("oci-hooks/", env!("CARGO_PKG_VERSION")).to_owned(),
            hint: |_| None,
        }
    }
}

impl Default for RetryOptions {
    fn default() -> Self {
        RetryOptions {
            attempts: 5,
            delay: Duration::from_millis(500),
            max_delay: Duration::from_secs(20),
        }
    }
}

impl RetryOptions {
    /// Returns the delay after this many failures, or `None` after the last attempt.
    pub(super) fn delay_after(self, failures: u32) -> Option<Duration> {
        let doubled = self.delay.saturating_mul(1 << failures.saturating_sub(1).min(16));
        (failures < self.attempts).then(|| doubled.min(self.max_delay))
    }
}
