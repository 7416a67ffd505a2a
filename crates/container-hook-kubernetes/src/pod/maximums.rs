//! Enforces the maximums of `[policy.max]` on the containers of a pod.
//!
//! The workflow's limits are already lowered, so limits that exceed the maximum come from the template. Most
//! versions of Kubernetes have no limits for pods, so the containers share the job's maximum.

use std::collections::BTreeMap;

use container_hook_job::HookError;
use container_hook_job::policy::{ExceededMaximum, MaxTable, Policy};
use container_hook_job::quantity::Quantity;
use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use oci_hooks_files::quantity::Cpus;

use super::options::cpu_quantity;

struct LimitedResource {
    name: &'static str,
    most: Option<(u64, MaxTable)>,
    /// Maximum of all containers together; `None` without one.
    of_job: Option<u64>,
    read: fn(Quantity) -> u64,
    write: fn(u64) -> String,
    exceeded: fn(String, u64, MaxTable) -> ExceededMaximum,
    what: &'static str,
}

/// Lowers the limits of a pod's containers, and sets missing ones; returns a note for each limit that was too
/// high.
pub fn lower_limits(policy: &Policy, spec: &mut PodSpec) -> Result<Vec<String>, HookError> {
    let max = &policy.max;
    let resources = [
        LimitedResource {
            name: "memory",
            most: max.memory_bytes(),
            of_job: max.job.memory.map(|size| size.0),
            read: Quantity::units,
            write: |bytes| bytes.to_string(),
            exceeded: ExceededMaximum::memory,
            what: "the pod template's limit of memory",
        },
        LimitedResource {
            name: "cpu",
            most: max.nano_cpus(),
            of_job: max.job.cpus.map(Cpus::nanos),
            read: Quantity::nanos,
            write: cpu_quantity,
            exceeded: ExceededMaximum::cpus,
            what: "the pod template's limit of CPUs",
        },
    ];
    let mut notes = Vec::new();
    for resource in resources {
        let Some((most, table)) = resource.most else { continue };
        let mut exceeded = Vec::new();
        let inits = spec.init_containers.iter_mut().flatten();
        for container in spec.containers.iter_mut().chain(inits) {
            let said = resource.limit(container);
            if said.is_some_and(|said| said > most) {
                let asked = format!("{} for container {}", resource.what, container.name);
                exceeded.push((resource.exceeded)(asked, most, table));
            }
            resource.set(container, said.unwrap_or(most).min(most));
        }
        notes.extend(policy.report_exceeded(exceeded)?);
        if let Some(of_job) = resource.of_job {
            resource.share(&mut spec.containers, of_job);
        }
    }
    Ok(notes)
}

impl LimitedResource {
    fn limit(&self, container: &Container) -> Option<u64> {
        let limits = container.resources.as_ref()?.limits.as_ref()?;
        Quantity::parse(&limits.get(self.name)?.0).map(self.read)
    }

    fn set(&self, container: &mut Container, limit: u64) {
        let resources = container.resources.get_or_insert_default();
        let limits = resources.limits.get_or_insert_with(BTreeMap::new);
        // An unchanged limit keeps its notation.
        let known = limits.get(self.name).and_then(|text| Quantity::parse(&text.0));
        if known.map(self.read) != Some(limit) {
            limits.insert(self.name.to_owned(), Text((self.write)(limit)));
        }
        let request = resources.requests.as_mut().and_then(|all| all.get_mut(self.name));
        if let Some(request) = request
            && Quantity::parse(&request.0).map(self.read).is_some_and(|asked| asked > limit)
        {
            *request = Text((self.write)(limit));
        }
    }

    /// Scales the containers' limits down if their sum exceeds the job's maximum.
    fn share(&self, containers: &mut [Container], most: u64) {
        let limits: Vec<u64> =
            containers.iter().map(|container| self.limit(container).unwrap_or_default()).collect();
        let all: u128 = limits.iter().map(|limit| u128::from(*limit)).sum();
        if all <= u128::from(most) {
            return;
        }
        for (container, limit) in containers.iter_mut().zip(limits) {
            let part = u128::from(limit) * u128::from(most) / all;
            self.set(container, u64::try_from(part).unwrap_or(most).max(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(resources: &[serde_json::Value]) -> PodSpec {
        let containers = resources.iter().map(|one| json!({"name": "x", "resources": one}));
        serde_json::from_value(json!({"containers": containers.collect::<Vec<_>>()})).unwrap()
    }

    fn limits(spec: &PodSpec, name: &str) -> Vec<String> {
        let limits = spec
            .containers
            .iter()
            .map(|container| container.resources.clone().unwrap().limits.unwrap()[name].0.clone());
        limits.collect()
    }

    #[test]
    fn limits_are_lowered_or_set_to_the_maximum() {
        let policy: Policy = toml::from_str("[max]\nmemory = \"1GiB\"\ncpus = 1.5").unwrap();
        let over = json!({"limits": {"memory": "2Gi", "cpu": "1"}, "requests": {"memory": "2Gi"}});
        let mut spec = spec(&[over, json!({"limits": {"memory": "512Mi"}}), json!(null)]);
        let notes = lower_limits(&policy, &mut spec).unwrap();
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert_eq!(limits(&spec, "memory"), ["1073741824", "512Mi", "1073741824"]);
        assert_eq!(limits(&spec, "cpu"), ["1", "1500m", "1500m"]);
        let requests = spec.containers[0].resources.clone().unwrap().requests.unwrap();
        assert_eq!(requests["memory"].0, "1073741824");
        let refuse: Policy =
            toml::from_str("[max]\nmemory = \"1GiB\"\nwhen-exceeded = \"deny\"").unwrap();
        let mut spec = self::spec(&[json!({"limits": {"memory": "2Gi"}})]);
        assert!(lower_limits(&refuse, &mut spec).is_err());
    }

    #[test]
    fn containers_share_the_maximum_of_the_job() {
        let policy: Policy = toml::from_str("[max.job]\nmemory = \"4KiB\"").unwrap();
        let mut spec = spec(&[json!({"limits": {"memory": "1Ki"}}), json!(null), json!(null)]);
        lower_limits(&policy, &mut spec).unwrap();
        assert_eq!(limits(&spec, "memory"), ["455", "1820", "1820"]);
        let mut spec = self::spec(&[json!({"limits": {"memory": "1Ki"}})]);
        lower_limits(&policy, &mut spec).unwrap();
        assert_eq!(limits(&spec, "memory"), ["1Ki"]);
    }
}
