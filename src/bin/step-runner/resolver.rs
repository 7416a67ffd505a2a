//! The resolver of step references, configured from the environment.

use std::env;
use std::path::PathBuf;

use oci_hooks::image::{ClientOptions, RegistryClient};
use oci_hooks::step_runner::resolve::{Remote, Resolver};

use crate::environment;
use crate::error::Error;

/// The variable that says who fetches from git repositories: `auto`, `native` or `program`.
const GIT: &str = "STEP_RUNNER_GIT";

/// Returns a resolver with the cache directory and proxies of the environment.
pub fn open() -> Result<Resolver, Error> {
    let any = |names: [&str; 4]| {
        names.iter().find_map(|name| env::var(name).ok()).filter(|value| !value.is_empty())
    };
    let no_proxy = any(["NO_PROXY", "no_proxy", "", ""]).unwrap_or_default();
    let mut options = ClientOptions::default();
    options.proxy = any(["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"]);
    options.no_proxy = no_proxy.split(',').map(|host| host.trim().to_owned()).collect();
    options.fallback_ca_file = certificates();
    let registries = RegistryClient::new(options)?;
    let mut remote = Remote::new(cache()?, registries);
    if let Some(method) = env::var(GIT).ok().filter(|method| !method.is_empty()) {
        remote.git = method.parse().map_err(Error::Git)?;
    }
    Ok(Resolver::new(remote))
}

/// Returns the file that `bootstrap` puts beside the program with CA certificates of the helper image.
fn certificates() -> Option<PathBuf> {
    Some(env::current_exe().ok()?.with_file_name("ca-certs.pem"))
}

/// Returns the cache directory of remote steps.
fn cache() -> Result<PathBuf, Error> {
    let below = |name: &str, rest: &str| {
        let dir = env::var_os(name).filter(|dir| !dir.is_empty())?;
        Some(PathBuf::from(dir).join(rest))
    };
    let own =
        below("XDG_CACHE_HOME", "step-runner").or_else(|| below("HOME", ".cache/step-runner"));
    // Homes of images may be read-only, or another user's.
    match own.filter(|dir| environment::is_writable(dir)) {
        Some(dir) => Ok(dir),
        // The temporary directory is shared: other users must not provide what jobs run.
        None => Ok(environment::private_dir()?.join("cache")),
    }
}
