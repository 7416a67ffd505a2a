//! Checks that run inside the namespaces of a rootless job.

use oci_hooks_engine::network::UplinkChoice;

use super::super::super::host::HostSections;
use super::super::{HostCheck, network, storage};
use super::uplink;

/// Checks overlays, container networks and the uplink.
pub fn checks(host: HostSections<'_>, choice: &UplinkChoice) -> Vec<HostCheck> {
    let mut checks = vec![storage::overlay(host.store, host.store.place.privilege)];
    checks.extend(network::check_own_namespace());
    checks.push(uplink::check(choice, host.store));
    checks
}
