//! `resources` of a container, as limits of its cgroup.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use crate::bundle::Resources;
use crate::container_hook::quantity::Quantity;
use crate::container_hook::template::{Fault, FieldPath};

/// The weight of a whole CPU on Kubernetes.
const SHARES: u64 = 1024;
/// The least weight that the kernel takes.
const LEAST_SHARES: u64 = 2;

/// Sets what a container says of its resources.
pub fn apply(container: &Container, place: &FieldPath, to: &mut Resources) -> Result<(), Fault> {
    let Some(asked) = &container.resources else { return Ok(()) };
    let place = place.at("resources");
    for (name, quantity) in quantities(asked.limits.as_ref(), &place.at("limits"))? {
        match name {
            "cpu" => {
                // The template's limit takes the place of the workflow's, however that is written.
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

/// Returns one quantity of a container, as in `limits.cpu`; none if it does not say it.
pub fn quantity(asked: Option<&ResourceRequirements>, resource: &str) -> Option<Quantity> {
    let (kind, name) = resource.split_once('.')?;
    let asked = asked?;
    let limit = || asked.limits.as_ref().and_then(|limits| limits.get(name));
    let text = match kind {
        "limits" => limit(),
        // What is not said of a request is as the limit.
        "requests" => asked.requests.as_ref().and_then(|all| all.get(name)).or_else(limit),
        _ => None,
    };
    Quantity::parse(&text?.0)
}

/// Reads quantities; those that a cgroup cannot have are faults.
fn quantities<'a>(
    all: Option<&'a BTreeMap<String, Text>>,
    place: &FieldPath,
) -> Result<Vec<(&'a str, Quantity)>, Fault> {
    let mut read = Vec::new();
    for (name, text) in all.into_iter().flatten() {
        let here = place.key(name);
        match name.as_str() {
            "cpu" | "memory" => {}
            // The disk is the host's business; `check` says that this means nothing.
            "ephemeral-storage" => continue,
            name if name.starts_with("hugepages-") => {
                return Err(here.fault("huge pages are not given to containers: remove it"));
            }
            _ => {
                return Err(here.fault(
                    "there is no device plugin on one host: give the pod an annotation, and a \
                     hooks.d hook that matches it and adds the device",
                ));
            }
        }
        let quantity = Quantity::parse(&text.0).ok_or_else(|| {
            here.fault(format!("{:?} is not a quantity: expected for example 500m or 2Gi", text.0))
        })?;
        if quantity.nanos() == 0 {
            // As if nothing was said, as on Kubernetes.
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
    use crate::container_hook::template::fault::tests::merged;

    fn applied(resources: Value) -> Result<Resources, String> {
        let template = json!({"spec": {"containers": [{"name": "$job", "resources": resources}]}});
        let (merged, place) = merged(&template);
        let container = merged.pod.spec.as_ref().unwrap().containers[0].clone();
        let mut to = Resources { cpu_quota: Some(1000), ..Resources::default() };
        let place = place.at("spec/containers/0");
        apply(&container, &place, &mut to).map_err(|fault| fault.to_string()).map(|()| to)
    }

    #[test]
    fn limits_and_requests_are_those_of_the_cgroup() {
        let to = applied(json!({
            "limits": {"cpu": "1500m", "memory": "2Gi"}, "requests": {"cpu": "250m", "memory": "1Gi"},
        }));
        let to = to.unwrap();
        assert_eq!((to.nano_cpus, to.cpu_quota), (Some(1_500_000_000), None));
        assert_eq!((to.memory_bytes, to.memory_reservation_bytes), (Some(2 << 30), Some(1 << 30)));
        assert_eq!(to.cpu_shares, Some(256));
        assert_eq!(applied(json!({"requests": {"cpu": "1m"}})).unwrap().cpu_shares, Some(2));
    }

    #[test]
    fn what_no_cgroup_has_is_refused_with_its_place() {
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
            let fault = applied(resources).unwrap_err();
            let expected = format!(": /spec/containers/0/resources/{expected}");
            assert!(fault.starts_with("/t:1:") && fault.contains(&expected), "{fault}");
        }
    }
}
