//! How servers are reached: proxies and certificates, of the variables that git and curl read.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use ureq::tls::RootCerts;
use ureq::{Agent, Proxy};

use super::super::options::Git;
use super::failure::Failure;
use crate::http::{
    AgentOptions, MAX_CERTIFICATES_BYTES, Origin, certificates, config, host_roots, is_direct,
    proxy_at, redacted, tls,
};
use crate::sys::fs::read_bounded;

/// How long a server may take until a connection stands, and how long it may then be silent.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Files with certificates of authorities, the first one that is named counts.
const CERTIFICATES: [&str; 3] = ["GIT_SSL_CAINFO", "CURL_CA_BUNDLE", "SSL_CERT_FILE"];

/// Some servers answer nobody but git.
const USER_AGENT: &str = concat!("git/step-runner-", env!("CARGO_PKG_VERSION"));

/// Returns what talks to a server.
pub(super) fn agent(git: &Git<'_>, origin: &Origin) -> Result<Agent, Failure> {
    let env = git.env;
    Ok(Agent::new_with_config(config(AgentOptions {
        user_agent: USER_AGENT,
        proxy: proxy(env, origin)?,
        tls: tls(roots(env, git.fallback_ca_file)?, false),
        connect_timeout: CONNECT_TIMEOUT,
        idle_timeout: IDLE_TIMEOUT,
    })))
}

/// Returns the first of these variables that is not empty.
fn any<'a>(env: &'a BTreeMap<String, String>, names: &[&str]) -> Option<&'a str> {
    let values = names.iter().filter_map(|name| env.get(*name));
    values.map(String::as_str).find(|value| !value.is_empty())
}

fn proxy(env: &BTreeMap<String, String>, origin: &Origin) -> Result<Option<Proxy>, Failure> {
    // Not `HTTP_PROXY`, which curl does not read either: a web server may have made it of a header.
    let names: &[&str] = match origin.is_https {
        true => &["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"],
        false => &["http_proxy", "all_proxy", "ALL_PROXY"],
    };
    let Some(address) = any(env, names) else { return Ok(None) };
    let direct = any(env, &["no_proxy", "NO_PROXY"]).unwrap_or_default();
    let direct: Vec<_> = direct.split(',').map(|entry| entry.trim().to_owned()).collect();
    if is_direct(origin, &direct) {
        return Ok(None);
    }
    let unknown = || Failure::Message(format!("invalid proxy address {:?}", redacted(address)));
    proxy_at(address).map(Some).ok_or_else(unknown)
}

fn roots(env: &BTreeMap<String, String>, fallback: Option<&Path>) -> Result<RootCerts, Failure> {
    let Some(path) = any(env, &CERTIFICATES) else {
        return Ok(host_roots(|| read_bounded(fallback?, MAX_CERTIFICATES_BYTES).ok()));
    };
    let wrong = |error: &dyn std::error::Error| {
        Failure::Message(format!("cannot read certificates from {path:?}: {error}"))
    };
    let pem = read_bounded(Path::new(path), MAX_CERTIFICATES_BYTES).map_err(|e| wrong(&e))?;
    let found = certificates(&pem).map_err(|error| wrong(&error))?;
    Ok(RootCerts::new_with_certs(&found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_are_those_of_the_scheme_and_not_for_everybody() {
        let env = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let host = |env: &BTreeMap<String, String>, url: &str| {
            let origin = Origin::of(&url.parse().unwrap()).unwrap();
            proxy(env, &origin).unwrap().map(|proxy| proxy.host().to_owned())
        };
        let both = env(&[
            ("HTTPS_PROXY", "http://a:1"),
            ("http_proxy", "http://u:p@b:1"),
            ("HTTP_PROXY", "http://c:1"),
            ("no_proxy", "near.example, 10.0.0.0/8"),
        ]);
        assert_eq!(host(&both, "https://far.example/").as_deref(), Some("a"));
        assert_eq!(host(&both, "http://far.example/").as_deref(), Some("b"));
        for near in ["https://near.example/", "https://10.1.2.3/", "http://localhost/"] {
            assert_eq!(host(&both, near), None, "{near}");
        }
        let all = env(&[("ALL_PROXY", "http://all:1"), ("https_proxy", "")]);
        assert_eq!(host(&all, "https://far.example/").as_deref(), Some("all"));
        assert_eq!(host(&env(&[("HTTP_PROXY", "http://c:1")]), "http://far.example/"), None);
    }

    #[test]
    fn a_named_file_without_certificates_is_an_error() {
        let env = BTreeMap::from([("SSL_CERT_FILE".to_owned(), "/no/such/file".to_owned())]);
        let Err(Failure::Message(message)) = roots(&env, None) else { panic!("it is not there") };
        assert!(message.contains("/no/such/file"), "{message}");
    }
}
