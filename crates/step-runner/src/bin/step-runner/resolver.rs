//! The resolver of step references, configured from the environment.

use std::env;
use std::path::PathBuf;

use oci_hooks_image::{ClientOptions, RegistryClient, RegistryError};
use step_runner::resolve::{RemoteAccess, Resolver};

use crate::environment;
use crate::error::StepRunnerError;

/// Returns a resolver with the cache directory and proxies of the environment.
pub fn open() -> Result<Resolver, StepRunnerError> {
    let any = |names: [&str; 4]| {
        names.iter().find_map(|name| env::var(name).ok().filter(|value| !value.is_empty()))
    };
    let no_proxy = any(["NO_PROXY", "no_proxy", "", ""]).unwrap_or_default();
    let options = ClientOptions {
        proxy: any(["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"]),
        no_proxy: no_proxy.split(',').map(|host| host.trim().to_owned()).collect(),
        fallback_ca_file: bundled_file("ca-certs.pem"),
        hint: |error| {
            let is_certificate = matches!(error, RegistryError::Tls { .. });
            is_certificate.then_some("set SSL_CERT_FILE to a file with its CA certificate")
        },
        ..ClientOptions::default()
    };
    let remote = RemoteAccess::new(cache()?, RegistryClient::new(options)?);
    Ok(Resolver::new(RemoteAccess { fallback_git: bundled_file("git/bin/git"), ..remote }))
}

/// Returns the path, beside this program, to which `bootstrap` copies a file of GitLab's helper
/// image.
fn bundled_file(name: &str) -> Option<PathBuf> {
    Some(env::current_exe().ok()?.with_file_name(name))
}

/// Returns the cache directory of remote steps.
fn cache() -> Result<PathBuf, StepRunnerError> {
    let below = |name: &str, rest: &str| {
        let dir = env::var_os(name).filter(|dir| !dir.is_empty())?;
        Some(PathBuf::from(dir).join(rest))
    };
    let own =
        below("XDG_CACHE_HOME", "step-runner").or_else(|| below("HOME", ".cache/step-runner"));
    // Homes in images may be read-only or belong to another user.
    match own.filter(|dir| environment::is_writable(dir)) {
        Some(dir) => Ok(dir),
        // The cache must be private: other users must not provide code for jobs.
        None => Ok(environment::private_dir()?.join("cache")),
    }
}
