//! HTTP as all our clients speak it: origins, redirects, proxies, certificates and timeouts.
//!
//! Whom a client trusts with what is its own: which addresses are off limits, whether plain HTTP will do,
//! what is tried again.

mod agent;
mod origin;
mod proxy;
mod redirect;

pub(crate) use agent::{
    AgentOptions, MAX_CERTIFICATES_BYTES, certificates, config, host_roots, tls,
};
pub(crate) use origin::{Origin, canonical};
pub(crate) use proxy::{is_direct, proxy_at, redacted};
pub(crate) use redirect::{MAX_REDIRECTS, TOO_MANY_REDIRECTS, redirect};
