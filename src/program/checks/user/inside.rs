//! What works in the namespaces that jobs of an ordinary user have: called in some.

use super::super::super::host::Host;
use super::super::{Check, network, storage};

/// Mounts layers and removes what is in them, and looks at what networks of jobs need.
pub fn checks(host: Host<'_>) -> Vec<Check> {
    let mut checks = vec![storage::overlay(host.store, host.place.privilege)];
    checks.extend(network::own());
    checks
}
