//! Names of hosts that `hostAliases` does not take: `services:` may have `my_db`, which is no name of DNS.
//!
//! With such names a pod has a file of ours at `/etc/hosts` instead of the kubelet's, which has them all; it is
//! in a secret, for want of a smaller right, and nobody can write to it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Pod, Secret, SecretVolumeSource, Volume, VolumeMount};

use super::secrets::secret;
use crate::container_hook::runner::PREFIX;

/// The name of the volume and of the file in it.
const VOLUME: &str = "oci-hooks-hosts";
const FILE: &str = "hosts";
const PATH: &str = "/etc/hosts";

/// What every `/etc/hosts` has.
const OWN: &str = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n";

/// The annotation of the pod of a job with these names of services, for pods of steps.
pub fn annotation() -> String {
    format!("{PREFIX}service-names")
}

/// Gives the first containers of a pod, those of the request, a file with these names and addresses and those
/// that the pod has; returns the secret with it. None if there are no such names.
pub fn mount(
    pod: &mut Pod,
    odd: &[(String, String)],
    name: String,
    containers: usize,
) -> Option<Secret> {
    let spec = pod.spec.as_mut()?;
    // Pods with the node's network have the node's names.
    if odd.is_empty() || spec.host_network == Some(true) {
        return None;
    }
    let mut text = OWN.to_owned();
    let own_name = spec.hostname.as_ref().or(pod.metadata.name.as_ref());
    let own_name = own_name.map(|name| ("127.0.1.1", name.as_str()));
    let aliases = spec.host_aliases.iter().flatten();
    let known = aliases.flat_map(|alias| {
        let names = alias.hostnames.iter().flatten();
        names.map(|name| (alias.ip.as_str(), name.as_str()))
    });
    let odd = odd.iter().map(|(address, name)| (address.as_str(), name.as_str()));
    for (address, name) in own_name.into_iter().chain(known).chain(odd) {
        writeln!(text, "{address}\t{name}").expect("a text takes all");
    }
    for container in spec.containers.iter_mut().take(containers) {
        let mounts = container.volume_mounts.get_or_insert_default();
        if mounts.iter().all(|mount| mount.mount_path != PATH) {
            mounts.push(VolumeMount {
                name: VOLUME.to_owned(),
                mount_path: PATH.to_owned(),
                sub_path: Some(FILE.to_owned()),
                read_only: Some(true),
                ..VolumeMount::default()
            });
        }
    }
    let source = SecretVolumeSource {
        secret_name: Some(name.clone()),
        default_mode: Some(0o644),
        ..SecretVolumeSource::default()
    };
    let volume = Volume { name: VOLUME.to_owned(), secret: Some(source), ..Volume::default() };
    spec.volumes.get_or_insert_default().push(volume);
    let data = BTreeMap::from([(FILE.to_owned(), ByteString(text.into_bytes()))]);
    Some(secret(name, "Opaque", data))
}
