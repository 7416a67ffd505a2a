//! What works in the namespaces that jobs of an ordinary user have: called in some.

use super::super::super::host::Host;
use super::super::{Check, network, storage};
use super::uplink;
use crate::sys::uplink::UplinkChoice;

/// Mounts layers and removes what is in them, looks at what networks of jobs need, and asks the host by the
/// program that leads to the world.
pub fn checks(host: Host<'_>, choice: &UplinkChoice) -> Vec<Check> {
    let mut checks = vec![storage::overlay(host.store, host.store.place.privilege)];
    checks.extend(network::own());
    checks.push(uplink::check(choice, host.store));
    checks
}
