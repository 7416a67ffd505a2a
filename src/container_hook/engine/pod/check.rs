//! Asking the table about everything that a template says.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::fields::{Field, Treatment};
use crate::container_hook::template::Merged;
use crate::container_hook::template::{Fault, Faults, FieldPath};

/// Checks each field that a template has in a merged pod; `file` is the template. Returns what has
/// no effect, a line for each reason.
///
/// # Errors
///
/// Returns all fields that cannot be applied on one host.
pub fn check(merged: &Arc<Merged>, file: &str) -> Result<Vec<String>, Faults> {
    let pod = serde_json::to_value(&merged.pod).expect("a pod has only keys that are strings");
    let mut found = Found::default();
    found.look_into(&pod, "", &FieldPath::top(Arc::clone(merged), file));
    if !found.faults.is_empty() {
        return Err(Faults(found.faults));
    }
    let lines = found.meaningless.into_iter().map(|(why, mut paths)| {
        paths.sort_unstable();
        paths.dedup();
        let verb = if paths.len() == 1 { "has" } else { "have" };
        format!("{} {verb} no effect on a single host: {why}", paths.join(", "))
    });
    Ok(lines.collect())
}

#[derive(Default)]
struct Found {
    faults: Vec<Fault>,
    meaningless: BTreeMap<&'static str, Vec<String>>,
}

impl Found {
    fn look_into(&mut self, value: &Value, path: &str, place: &FieldPath) {
        match value {
            Value::Array(items) => {
                for (at, item) in items.iter().enumerate() {
                    self.look_into(item, path, &place.item(at));
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
        match Field::find(&path).map(|field| field.treatment) {
            Some(Treatment::Applied(_)) if Field::has_fields(&path) => {
                self.look_into(value, &path, place);
            }
            Some(Treatment::Applied(_)) => {}
            // Nothing but what the template says is anybody's fault.
            _ if !place.is_from_template() => {}
            Some(Treatment::Meaningless(why)) => {
                self.meaningless.entry(why).or_default().push(path);
            }
            Some(Treatment::Refused(why)) => {
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
    use crate::container_hook::template::fault::tests::merged;

    fn checked(template: Value) -> Result<Vec<String>, String> {
        check(&merged(&template).0, "/t").map_err(|faults| faults.to_string())
    }

    #[test]
    fn what_is_refused_has_its_place_and_reason() {
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
    fn what_means_nothing_is_said_once_for_each_reason() {
        let template = json!({"spec": {
            "affinity": {"podAffinity": {}}, "nodeName": "a", "serviceAccountName": "x",
            "containers": [{"name": "$job", "tty": true}, {"name": "b", "image": "c", "tty": true}],
        }, "metadata": {"labels": {"affinity": "x"}}});
        assert_eq!(
            checked(template).unwrap(),
            [
                "spec.containers.tty has no effect on a single host: nobody is at the \
                 container's terminal",
                "spec.serviceAccountName has no effect on a single host: there is no cluster",
                "spec.affinity, spec.nodeName have no effect on a single host: there is one host",
            ]
        );
    }
}
