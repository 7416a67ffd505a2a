//! Checks the fields of a template against the table of fields.

use std::collections::BTreeMap;
use std::sync::Arc;

use container_hook_job::template::{FieldPath, MergedPod, TemplateFault, TemplateFaults};
use serde_json::Value;

use super::fields::{FieldTreatment, PodField};

/// Checks each field of a template in a merged pod; `file` is the template. Returns the fields without
/// effect, a line for each reason.
///
/// # Errors
///
/// Fails with all fields that cannot be applied on a single host.
pub fn check(merged: &Arc<MergedPod>, file: &str) -> Result<Vec<String>, TemplateFaults> {
    let pod = serde_json::to_value(&merged.pod).expect("a pod has only keys that are strings");
    let mut found = CheckFindings::default();
    found.check_value(&pod, "", &FieldPath::top(Arc::clone(merged), file));
    if !found.faults.is_empty() {
        return Err(TemplateFaults(found.faults));
    }
    let lines = found.ineffective.into_iter().map(|(why, mut paths)| {
        paths.sort_unstable();
        paths.dedup();
        let verb = if paths.len() == 1 { "has" } else { "have" };
        format!("{} {verb} no effect on a single host: {why}", paths.join(", "))
    });
    Ok(lines.collect())
}

#[derive(Default)]
struct CheckFindings {
    faults: Vec<TemplateFault>,
    ineffective: BTreeMap<&'static str, Vec<String>>,
}

impl CheckFindings {
    fn check_value(&mut self, value: &Value, path: &str, place: &FieldPath) {
        match value {
            Value::Array(items) => {
                for (at, item) in items.iter().enumerate() {
                    self.check_value(item, path, &place.item(at));
                }
            }
            Value::Object(members) => {
                for (name, value) in members.iter().filter(|(_, value)| !value.is_null()) {
                    let path =
                        if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    self.field(value, path, &place.key(name));
                }
            }
            _ => {}
        }
    }

    fn field(&mut self, value: &Value, path: String, place: &FieldPath) {
        match PodField::find(&path).map(|field| field.treatment) {
            Some(FieldTreatment::Applied(_)) if PodField::has_fields(&path) => {
                self.check_value(value, &path, place);
            }
            Some(FieldTreatment::Applied(_)) => {}
            // Only fields of the template are reported.
            _ if !place.is_from_template() => {}
            Some(FieldTreatment::Ineffective(why)) => {
                self.ineffective.entry(why).or_default().push(path);
            }
            Some(FieldTreatment::Rejected(why)) => {
                self.faults.push(place.fault(format!("cannot be applied on one host: {why}")));
            }
            None => self.faults.push(place.fault("is not a known field: remove it")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pod::testing::merge_template;

    fn checked(template: Value) -> Result<Vec<String>, String> {
        check(&merge_template(&template).0, "/t").map_err(|faults| faults.to_string())
    }

    #[test]
    fn rejected_fields_are_reported_with_position_and_reason() {
        let template = json!({"spec": {
            "initContainers": [{"name": "a", "image": "b", "volumeDevices": []}],
            "containers": [{"name": "$job", "readinessProbe": {"grpc": {"port": 1}}}],
            "volumes": [{"name": "v", "nfs": {"server": "s", "path": "/"}}],
        }});
        let said = checked(template).unwrap_err();
        for (line, (path, why)) in said.lines().zip([
            ("containers/0/readinessProbe/grpc", "use exec or tcpSocket"),
            ("initContainers/0/volumeDevices", "use a hooks.d hook that adds the device"),
            ("volumes/0/nfs", "mount it on the host, and use `hostPath`"),
        ]) {
            let expected = format!(": /spec/{path}: cannot be applied on one host: {why}");
            assert!(line.starts_with("/t:1:") && line.ends_with(&expected), "{line}");
        }
        assert_eq!(said.lines().count(), 3);
    }

    #[test]
    fn fields_without_effect_are_reported_once_per_reason() {
        let template = json!({"spec": {
            "affinity": {"podAffinity": {}}, "nodeName": "a", "serviceAccountName": "x",
            "containers": [{"name": "$job", "tty": true}, {"name": "b", "image": "c", "tty": true}],
        }, "metadata": {"labels": {"affinity": "x"}}});
        assert_eq!(
            checked(template).unwrap(),
            [
                "spec.containers.tty has no effect on a single host: containers have no terminal",
                "spec.serviceAccountName has no effect on a single host: there is no cluster",
                "spec.affinity, spec.nodeName have no effect on a single host: there is only one host",
            ]
        );
    }
}
