//! What annotations ask of the Container Device Interface (CDI).

use std::collections::BTreeMap;

use serde::Serialize;

/// What annotations for CDI begin with; the rest of the key is up to whoever writes it.
const PREFIX: &str = "cdi.k8s.io/";

/// An annotation that names devices, which CRI-O and containerd add to the container, with CDI's own
/// hooks.
#[derive(Serialize)]
pub(super) struct CdiRequest {
    pub(super) annotation: String,
    /// Fully qualified names, as `nvidia.com/gpu=all`.
    pub(super) devices: Vec<String>,
}

/// Finds the annotations that ask for devices.
pub(super) fn requests(annotations: &BTreeMap<String, String>) -> Vec<CdiRequest> {
    let requests = annotations.iter().filter(|(key, _)| key.starts_with(PREFIX));
    let requests = requests.map(|(key, value)| CdiRequest {
        annotation: key.clone(),
        devices: value.split(',').map(|device| device.trim().to_owned()).collect(),
    });
    requests.collect()
}
