//! `resources` of a container, as limits of its cgroup.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use oci_hooks_engine::bundle::ResourceLimits;

use container_hook_job::quantity::Quantity;
use container_hook_job::template::{FieldPath, TemplateFault};

/// CPU shares of a whole CPU on Kubernetes.
const SHARES: u64 = 1024;
/// Minimum CPU shares of the kernel.
const LEAST_SHARES: u64 = 2;

/// Sets the limits and requests of a container.
pub fn apply(
    container: &Container,
    place: &FieldPath,
    to: &mut ResourceLimits,
) -> Result<(), TemplateFault> {
    let Some(asked) = &container.resources else { return Ok(()) };
    let place = place.at("resources");
    for (name, quantity) in quantities(asked.limits.as_ref(), &place.at("limits"))? {
        match name {
            "cpu" => {
                // The template's limit replaces the workflow's, whether `--cpus` or `--cpu-quota`.
                (to.nano_cpus, to.cpu_quota, to.cpu_period) = (Some(quantity.nanos()), None, None);
            }
            "memory" => (to.memory_bytes, to.memory_swap_bytes) = (Some(quantity.units()), None),
            _ => {}
        }
    }
    for (name, quantity) in quantities(asked.requests.as_ref(), &place.at("requests"))? {
        match name {
            "cpu" => {
                let shares = u128::from(quantity.nanos()) * u128::from(SHARES) / 1_000_000_000;
                let shares = u64::try_from(shares).unwrap_or(u64::MAX);
                to.cpu_shares = Some(shares.max(LEAST_SHARES));
            }
            "memory" => to.memory_reservation_bytes = Some(quantity.units()),
            _ => {}
        }
    }
    match (to.memory_bytes, to.memory_reservation_bytes) {
        (Some(limit), Some(request)) if request > limit => Err(place
            .at("requests/memory")
            .fault("is more than the container's limit: ask for less, or raise the limit")),
        _ => Ok(()),
    }
}

/// Returns a quantity of a container, such as `limits.cpu`; none if it is not set.
pub fn quantity(asked: Option<&ResourceRequirements>, resource: &str) -> Option<Quantity> {
    let (kind, name) = resource.split_once('.')?;
    let asked = asked?;
    let limit = || asked.limits.as_ref().and_then(|limits| limits.get(name));
    let text = match kind {
        "limits" => limit(),
        // A request defaults to the limit.
        "requests" => asked.requests.as_ref().and_then(|all| all.get(name)).or_else(limit),
        _ => None,
    };
    Quantity::parse(&text?.0)
}

/// Reads quantities; resources without a cgroup limit are faults.
fn quantities<'a>(
    all: Option<&'a BTreeMap<String, Text>>,
    place: &FieldPath,
) -> Result<Vec<(&'a str, Quantity)>, TemplateFault> {
    let mut read = Vec::new();
    for (name, text) in all.into_iter().flatten() {
        let here = place.key(name);
        match name.as_str() {
            "cpu" | "memory" => {}
            // Not applied: a template cannot limit disk space.
            "ephemeral-storage" => continue,
            name if name.starts_with("hugepages-") => {
                return Err(here.fault("huge pages are not supported: remove it"));
            }
            _ => {
                return Err(here.fault(
                    "there is no device plugin on a single host: add an annotation to the template, and a \
                     hooks.d hook that matches the annotation and adds the device",
                ));
            }
        }
        let quantity = Quantity::parse(&text.0).ok_or_else(|| {
            here.fault(format!("{:?} is not a quantity: expected for example 500m or 2Gi", text.0))
        })?;
        if quantity.nanos() == 0 {
            // 0 means no limit, as on Kubernetes.
            continue;
        }
        read.push((name.as_str(), quantity));
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pod::testing::merge_template;

    fn apply_resources(resources: Value) -> Result<ResourceLimits, String> {
        let template = json!({"spec": {"containers": [{"name": "$job", "resources": resources}]}});
        let (merged, place) = merge_template(&template);
        let container = merged.pod.spec.as_ref().unwrap().containers[0].clone();
        let mut to = ResourceLimits { cpu_quota: Some(1000), ..ResourceLimits::default() };
        let place = place.at("spec/containers/0");
        apply(&container, &place, &mut to).map_err(|fault| fault.to_string()).map(|()| to)
    }

    #[test]
    fn limits_and_requests_become_cgroup_limits() {
        let to = apply_resources(json!({
            "limits": {"cpu": "1500m", "memory": "2Gi"}, "requests": {"cpu": "250m", "memory": "1Gi"},
        }));
        let to = to.unwrap();
        assert_eq!((to.nano_cpus, to.cpu_quota), (Some(1_500_000_000), None));
        assert_eq!((to.memory_bytes, to.memory_reservation_bytes), (Some(2 << 30), Some(1 << 30)));
        assert_eq!(to.cpu_shares, Some(256));
        assert_eq!(
            apply_resources(json!({"requests": {"cpu": "1m"}})).unwrap().cpu_shares,
            Some(2)
        );
    }

    #[test]
    fn resources_without_a_cgroup_limit_are_rejected_with_position() {
        for (resources, expected) in [
            (
                json!({"limits": {"nvidia.com/gpu": "1"}}),
                "limits/nvidia.com~1gpu: there is no device",
            ),
            (json!({"limits": {"hugepages-2Mi": "1Gi"}}), "limits/hugepages-2Mi: huge pages"),
            (json!({"requests": {"cpu": "-1"}}), "requests/cpu: \"-1\" is not a quantity"),
            (
                json!({"limits": {"memory": "1Gi"}, "requests": {"memory": "2Gi"}}),
                "requests/memory: is more than",
            ),
        ] {
            let fault = apply_resources(resources).unwrap_err();
            let expected = format!(": /spec/containers/0/resources/{expected}");
            assert!(fault.starts_with("/t:1:") && fault.contains(&expected), "{fault}");
        }
    }
}
