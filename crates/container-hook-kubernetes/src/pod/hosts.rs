//! Host names that `hostAliases` rejects: `services:` may have names such as `my_db`, which is no DNS name.
//!
//! With such names, containers get a generated `/etc/hosts` with all names instead of the kubelet's. It is
//! mounted read-only from a secret, since config maps would need a further permission.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use container_hook_job::runner::PREFIX;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Pod, Secret, SecretVolumeSource, Volume, VolumeMount};

use super::secrets::secret;

/// Name of the volume with the file for `/etc/hosts`.
const VOLUME: &str = "oci-hooks-hosts";
/// Name of the file in the volume.
const FILE: &str = "hosts";
const PATH: &str = "/etc/hosts";

/// Default entries of `/etc/hosts`.
const OWN: &str = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n";

/// Annotation of a job's pod with the names of its services that `hostAliases` rejects, for pods of steps.
pub fn annotation() -> String {
    format!("{PREFIX}service-names")
}

/// Mounts a generated `/etc/hosts` in the first `containers` of a pod, which are those of the
/// request, and returns its secret. `odd` has the addresses and host names that `hostAliases`
/// rejects; the result is `None` if it is empty or the pod has the node's network.
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
