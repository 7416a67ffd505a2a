//! Resource requests of containers with limits.
//!
//! Without a request, Kubernetes requests the whole limit: a job would reserve what it rarely uses, and its
//! container steps would wait for it.

use std::collections::BTreeMap;

use container_hook_job::kubernetes::KubernetesSettings;
use container_hook_job::quantity::Quantity;
use container_hook_job::template::MergedPod;
use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use super::options::cpu_quantity;

/// Adds a resource request to containers whose limit of CPUs or memory has none: the amount in the
/// settings, at most the limit. No request is added for limits of the template: Kubernetes requests
/// the whole limit.
pub fn add(settings: &KubernetesSettings, merged: &MergedPod, spec: &mut PodSpec) {
    let inits = spec.init_containers.iter_mut().flatten().enumerate();
    let inits = inits.map(|(at, container)| (format!("/spec/initContainers/{at}"), container));
    let containers = spec.containers.iter_mut().enumerate();
    let containers =
        containers.map(|(at, container)| (format!("/spec/containers/{at}"), container));
    for (pointer, container) in containers.chain(inits) {
        let is_of_template = |name: &str| {
            let origin = merged.origin(&format!("{pointer}/resources/limits/{name}"));
            origin.is_some_and(|origin| origin.position().is_some())
        };
        if !is_of_template("cpu") {
            request(container, "cpu", Quantity::nanos, settings.cpu_request.nanos(), cpu_quantity);
        }
        if !is_of_template("memory") {
            let text = |bytes: u64| bytes.to_string();
            request(container, "memory", Quantity::units, settings.memory_request.0, text);
        }
    }
}

fn request(
    container: &mut Container,
    name: &str,
    read: fn(Quantity) -> u64,
    wanted: u64,
    write: fn(u64) -> String,
) {
    let Some(resources) = &mut container.resources else { return };
    let limit = resources.limits.as_ref().and_then(|limits| Quantity::parse(&limits.get(name)?.0));
    let Some(limit) = limit.map(read) else { return };
    let requests = resources.requests.get_or_insert_with(BTreeMap::new);
    requests.entry(name.to_owned()).or_insert_with(|| Text(write(wanted.min(limit))));
}
