//! Our pods compared with those of GitHub's hook: each difference has a documented reason.

use std::collections::BTreeMap;
use std::fs;

use k8s_openapi::api::core::v1::Secret;
use oci_hooks_files::error::chain;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{PodFixture, PodManifest, data};

#[derive(Deserialize)]
struct GoldenCase {
    name: String,
    runner: String,
    image: Option<String>,
    template: Option<String>,
    #[serde(default)]
    template_is_missing: bool,
    calls: Vec<GoldenCall>,
}

#[derive(Deserialize)]
struct GoldenCall {
    command: String,
    args: Value,
    refused: Option<u32>,
    pod: Option<Value>,
    secret: Option<Value>,
    ports: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DifferenceRule {
    #[serde(default)]
    cases: Vec<String>,
    command: Option<String>,
    path: String,
    #[serde(default, deserialize_with = "deserialize_present")]
    theirs: Option<Value>,
    #[serde(default, deserialize_with = "deserialize_present")]
    ours: Option<Value>,
    why: String,
}

/// Deserializes a field that is present, even if null.
fn deserialize_present<'de, D: serde::Deserializer<'de>>(
    from: D,
) -> Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}

impl DifferenceRule {
    fn is_about(&self, case: &str, command: &str, difference: &Difference) -> bool {
        let parts = |path: &str| path.split('/').map(str::to_owned).collect::<Vec<_>>();
        let (pattern, path) = (parts(&self.path), parts(&difference.path));
        let is_path = pattern.len() == path.len()
            && pattern.iter().zip(&path).all(|(pattern, part)| pattern == "*" || pattern == part);
        let is = |wanted: &Option<Value>, value: &Value| {
            wanted.as_ref().is_none_or(|wanted| wanted == value)
        };
        is_path
            && (self.cases.is_empty() || self.cases.iter().any(|start| case.starts_with(start)))
            && self.command.as_ref().is_none_or(|wanted| wanted == command)
            && is(&self.theirs, &difference.theirs)
            && is(&self.ours, &difference.ours)
    }
}

struct Difference {
    path: String,
    theirs: Value,
    ours: Value,
}

#[test]
fn pods_differ_from_the_reference_only_as_listed() {
    let rules = fs::read_to_string(data().join("differences.json")).unwrap();
    let rules: Vec<DifferenceRule> = serde_json::from_str(&rules).unwrap();
    assert!(rules.iter().all(|rule| !rule.why.is_empty()));
    let mut uses = vec![0; rules.len()];
    let mut unlisted = Vec::new();
    let cases = fs::read_to_string(data().join("pods.jsonl")).unwrap();
    let mut count = 0;
    for line in cases.lines() {
        let case: GoldenCase = serde_json::from_str(line).unwrap();
        let world = world(&case);
        for call in &case.calls {
            count += 1;
            for difference in differences(&world, call) {
                let about =
                    |rule: &&DifferenceRule| rule.is_about(&case.name, &call.command, &difference);
                let mut found = false;
                for (rule, uses) in rules.iter().zip(&mut uses) {
                    if about(&rule) {
                        (found, *uses) = (true, *uses + 1);
                    }
                }
                if !found {
                    let Difference { path, theirs, ours } = difference;
                    let name = format!("{} {}", case.name, call.command);
                    unlisted.push(format!("{name}: {path}\n  theirs {theirs}\n  ours   {ours}"));
                }
            }
        }
    }
    assert!(count > 60, "{count} calls");
    assert!(unlisted.is_empty(), "{}", unlisted.join("\n"));
    let unused = rules.iter().zip(uses).filter(|(_, uses)| *uses == 0);
    let unused: Vec<_> = unused.map(|(rule, _)| (&rule.path, &rule.cases)).collect();
    assert!(unused.is_empty(), "no such differences: {unused:?}");
}

fn world(case: &GoldenCase) -> PodFixture {
    let mut world = PodFixture::new();
    world.own.name.clone_from(&case.runner);
    world.own.image.clone_from(&case.image);
    if let Some(text) = &case.template {
        world = world.template(text);
    }
    if case.template_is_missing {
        world.settings.template.file = Some("/no/such/template.yaml".into());
    }
    world
}

fn differences(world: &PodFixture, call: &GoldenCall) -> Vec<Difference> {
    let text = call.args.to_string().replace("$WORK", "/home/runner/_work");
    let args: Value = serde_json::from_str(&text).unwrap();
    let services = args.get("services").and_then(Value::as_array).map_or(0, Vec::len);
    let mut ours = Map::new();
    let mut theirs = Map::new();
    match world.call(&call.command, &args, None) {
        Ok(made) => {
            ours.insert("pod".to_owned(), our_pod(&made, services));
            ours.insert("secret".to_owned(), our_secret(&made));
            let of_services: Vec<_> = made.services.iter().map(|one| &one.ports).collect();
            if call.ports.is_some() {
                let ports = json!({"job": made.ports, "services": of_services});
                ours.insert("ports".to_owned(), ports);
            }
        }
        Err(error) => {
            let dir = world.dir.as_ref().map(|dir| dir.path().display().to_string());
            let text = chain(&error).replace(&dir.unwrap_or("-".repeat(80)), "$DIR");
            ours.insert("refused".to_owned(), text.into());
        }
    }
    if let Some(code) = call.refused {
        theirs.insert("refused".to_owned(), code.into());
    }
    if let (Some(pod), true) = (&call.pod, ours.contains_key("pod")) {
        theirs.insert("pod".to_owned(), normalize_pod(pod.clone(), services, &BTreeMap::new()));
        theirs.insert("secret".to_owned(), call.secret.clone().unwrap_or_default());
        theirs.insert("ports".to_owned(), call.ports.clone().unwrap_or_default());
    } else {
        // Objects that only our hook creates are no difference.
        ours.remove("pod");
        ours.remove("secret");
    }
    let (mut theirs, mut ours) = (Value::Object(theirs), Value::Object(ours));
    remove_random(&mut theirs);
    remove_random(&mut ours);
    let mut differences = Vec::new();
    compare("", &theirs, &ours, &mut differences);
    differences
}

/// Returns whether a value is compared field by field, even if the other side lacks it.
fn is_map(path: &str) -> bool {
    let maps = ["annotations", "initContainers", "securityContext", "volumes", "volumeMounts"];
    maps.iter().any(|name| path.ends_with(name)) && !path.contains("fs-init")
}

fn compare(path: &str, theirs: &Value, ours: &Value, differences: &mut Vec<Difference>) {
    // A map on one side is compared with an empty map on the other.
    let nothing = Map::new();
    let parts = match (theirs, ours) {
        (Value::Object(theirs), Value::Object(ours)) => Some((theirs, ours)),
        (Value::Null, Value::Object(ours)) if is_map(path) => Some((&nothing, ours)),
        _ => None,
    };
    if let Some((theirs, ours)) = parts {
        let mut names: Vec<_> = theirs.keys().chain(ours.keys()).collect();
        names.sort();
        names.dedup();
        for name in names {
            // `/` separates the names of a path, so it is escaped.
            let below = format!("{path}/{}", name.replace('/', "~1"));
            let value = |map: &Map<String, Value>| map.get(name).cloned().unwrap_or_default();
            compare(&below, &value(theirs), &value(ours), differences);
        }
    } else if theirs != ours {
        let (theirs, ours) = (theirs.clone(), ours.clone());
        differences.push(Difference { path: path.to_owned(), theirs, ours });
    }
}

/// Replaces random suffixes of names.
fn remove_random(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Some((start, end)) = text.rsplit_once('-')
                && end.len() == 8
                && end.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
            {
                *text = format!("{start}-RANDOM");
            }
        }
        Value::Array(items) => items.iter_mut().for_each(remove_random),
        Value::Object(fields) => fields.values_mut().for_each(remove_random),
        _ => {}
    }
}

/// Values of all secrets, by name and key.
type GoldenValues = BTreeMap<(String, String), String>;

fn our_pod(made: &PodManifest, services: usize) -> Value {
    let mut values = GoldenValues::new();
    for secret in &made.secrets {
        let name = secret.metadata.name.clone().unwrap();
        for (key, bytes) in secret.data.iter().flatten() {
            let text = String::from_utf8(bytes.0.clone()).unwrap();
            values.insert((name.clone(), key.clone()), text);
        }
    }
    normalize_pod(serde_json::to_value(&made.pod).unwrap(), services, &values)
}

fn our_secret(made: &PodManifest) -> Value {
    let is_login =
        |secret: &&Secret| secret.type_.as_deref() == Some("kubernetes.io/dockerconfigjson");
    let Some(secret) = made.secrets.iter().find(is_login) else { return Value::Null };
    let data = secret.data.iter().flatten();
    let data =
        data.map(|(key, bytes)| (key.clone(), serde_json::from_slice::<Value>(&bytes.0).unwrap()));
    json!({
        "name": secret.metadata.name,
        "labels": secret.metadata.labels,
        "immutable": secret.immutable,
        "type": secret.type_,
        "data": Value::Object(data.collect()),
    })
}

fn normalize_pod(mut pod: Value, services: usize, values: &GoldenValues) -> Value {
    let fields = pod.as_object_mut().unwrap();
    fields.retain(|name, _| name == "metadata" || name == "spec");
    let spec = fields["spec"].as_object_mut().unwrap();
    let title = |at: usize, container: &Value| match at {
        0 => "job".to_owned(),
        at if at <= services => format!("service {}", at - 1),
        _ => text(container, "name"),
    };
    list_to_map(spec, "containers", title);
    list_to_map(spec, "initContainers", |_, container| text(container, "name"));
    list_to_map(spec, "volumes", |_, volume| text(volume, "name"));
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_object_mut).into_iter().flatten() {
            let fields = container.1.as_object_mut().unwrap();
            list_to_map(fields, "volumeMounts", |_, mount| text(mount, "mountPath"));
            list_to_map(fields, "env", |_, variable| text(variable, "name"));
            for (_, variable) in
                fields.get_mut("env").and_then(Value::as_object_mut).into_iter().flatten()
            {
                let reference = variable.pointer("/valueFrom/secretKeyRef").cloned();
                if let Some(reference) = reference {
                    let value = &values[&(text(&reference, "name"), text(&reference, "key"))];
                    *variable = json!({"name": variable["name"], "value": value});
                }
            }
        }
    }
    remove_empty(&mut pod);
    pod
}

fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or_default().to_owned()
}

/// Converts a list to a map.
fn list_to_map(
    fields: &mut Map<String, Value>,
    list: &str,
    name: impl Fn(usize, &Value) -> String,
) {
    let Some(Value::Array(items)) = fields.get(list) else { return };
    let mut named = Map::new();
    for (at, item) in items.iter().enumerate() {
        let name = name(at, item);
        // Templates may repeat a variable.
        let name = if named.contains_key(&name) { format!("{name} again") } else { name };
        named.insert(name, item.clone());
    }
    fields.insert(list.to_owned(), Value::Object(named));
}

/// Removes empty lists and empty annotations, which are equivalent to missing ones.
fn remove_empty(value: &mut Value) {
    if let Value::Object(fields) = value {
        fields.retain(|name, value| {
            let is_empty = match value {
                Value::Array(items) => items.is_empty(),
                Value::Object(fields) => fields.is_empty() && name != "emptyDir",
                value => value.is_null(),
            };
            !is_empty
        });
        fields.values_mut().for_each(remove_empty);
    }
}
