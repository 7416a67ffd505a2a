//! `env` and `envFrom` of a container, and what else may hold `$(NAME)`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{
    Container, EnvFromSource, EnvVarSource, ObjectFieldSelector, ResourceFieldSelector,
    ResourceRequirements,
};

use super::objects::{Kind, Reference};
use super::pod_fields::PodFields;
use super::resources;
use crate::container_hook::quantity::Quantity;
use crate::container_hook::template::{Fault, FieldPath, TemplateSettings};

/// What values are made from.
#[derive(Clone, Copy)]
pub struct Sources<'a> {
    pub settings: &'a TemplateSettings,
    pub pod: &'a PodFields,
}

/// The addresses of a container; none before it is connected.
#[derive(Clone, Copy, Debug, Default)]
pub struct Addresses<'a> {
    pub own: &'a [IpAddr],
    /// The host's in the container's network.
    pub host: Option<IpAddr>,
}

/// A variable of the template.
#[derive(Clone, Debug)]
pub struct Variable {
    name: String,
    value: Value,
}

/// A value, as far as it is known before the container has its addresses.
#[derive(Clone, Debug)]
pub enum Value {
    Text(String),
    /// Each `$(NAME)` in it is replaced.
    Expandable(String),
    PodIp,
    PodIps,
    HostIp,
}

impl Value {
    fn text(&self, environment: &Environment, addresses: Addresses<'_>) -> String {
        match self {
            Value::Expandable(text) => environment.expand(text),
            other => other.at(addresses),
        }
    }

    /// Returns the value of a container with these addresses, without expansion.
    pub(super) fn at(&self, addresses: Addresses<'_>) -> String {
        let mut own = addresses.own.iter().map(IpAddr::to_string);
        match self {
            Value::Text(text) | Value::Expandable(text) => text.clone(),
            Value::PodIp => own.next().unwrap_or_default(),
            Value::PodIps => own.collect::<Vec<_>>().join(","),
            Value::HostIp => addresses.host.map(|host| host.to_string()).unwrap_or_default(),
        }
    }
}

/// The environment of a container.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    known: BTreeMap<String, String>,
    /// What the template has in it, as `NAME=value`.
    pub added: Vec<String>,
}

impl Environment {
    /// Returns the environment of a container that has these variables of the workflow; a value of the
    /// template may name what comes before it.
    pub(super) fn new(
        workflow: &[String],
        variables: &[Variable],
        addresses: Addresses<'_>,
    ) -> Self {
        let pairs = workflow.iter().filter_map(|pair| pair.split_once('='));
        let known = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let mut environment = Environment { known, added: Vec::new() };
        for Variable { name, value } in variables {
            let value = value.text(&environment, addresses);
            environment.added.push(format!("{name}={value}"));
            environment.known.insert(name.clone(), value);
        }
        environment
    }

    /// Replaces each `$(NAME)`.
    pub(super) fn expand(&self, text: &str) -> String {
        expand(text, |name| self.known.get(name).cloned())
    }
}

impl Variable {
    fn new(name: &str, value: Value, place: &FieldPath) -> Result<Self, Fault> {
        let has_nul =
            matches!(&value, Value::Text(text) | Value::Expandable(text) if text.contains('\0'));
        if name.is_empty() || name.contains(['=', '\0']) || has_nul {
            return Err(place.fault(format!("{name:?} cannot be a variable with this value")));
        }
        Ok(Variable { name: name.to_owned(), value })
    }
}

impl Sources<'_> {
    /// Returns the variables that the template has for a container, of which the first are `given` by
    /// the request. Those of `envFrom` come first.
    pub fn variables(
        self,
        container: &Container,
        given: usize,
        place: &FieldPath,
    ) -> Result<Vec<Variable>, Fault> {
        let mut variables = Vec::new();
        for (at, source) in container.env_from.iter().flatten().enumerate() {
            let place = place.at("envFrom").item(at);
            for (name, value) in self.all_of(source, &place)? {
                variables.push(Variable::new(&name, Value::Text(value), &place)?);
            }
        }
        for (at, variable) in container.env.iter().flatten().enumerate().skip(given) {
            let place = place.at("env").item(at);
            let value = match (&variable.value, &variable.value_from) {
                (Some(_), Some(_)) => {
                    return Err(place.fault("has both `value` and `valueFrom`: remove one"));
                }
                (_, Some(source)) => {
                    let requirements = container.resources.as_ref();
                    self.value_from(source, requirements, &place.at("valueFrom"))?
                }
                (value, None) => Some(Value::Expandable(value.clone().unwrap_or_default())),
            };
            if let Some(value) = value {
                variables.push(Variable::new(&variable.name, value, &place)?);
            }
        }
        Ok(variables)
    }

    fn all_of(
        self,
        source: &EnvFromSource,
        place: &FieldPath,
    ) -> Result<Vec<(String, String)>, Fault> {
        let (reference, place) = match (&source.config_map_ref, &source.secret_ref) {
            (Some(map), None) => {
                let (name, optional) = (map.name.as_str(), map.optional);
                (Reference { kind: Kind::ConfigMap, name, optional }, place.at("configMapRef"))
            }
            (None, Some(secret)) => {
                let (name, optional) = (secret.name.as_str(), secret.optional);
                (Reference { kind: Kind::Secret, name, optional }, place.at("secretRef"))
            }
            _ => return Err(place.fault("needs one of `configMapRef` and `secretRef`")),
        };
        let prefix = source.prefix.as_deref().unwrap_or_default();
        let object = reference.object(self.settings, &place)?.unwrap_or_default();
        let pairs = object
            .into_iter()
            .map(|(key, content)| Ok((format!("{prefix}{key}"), text(content, &key, &place)?)));
        pairs.collect()
    }

    /// Returns the value of a variable; none if it is of something optional that is missing.
    fn value_from(
        self,
        source: &EnvVarSource,
        requirements: Option<&ResourceRequirements>,
        place: &FieldPath,
    ) -> Result<Option<Value>, Fault> {
        let (reference, key, place) = match (&source.config_map_key_ref, &source.secret_key_ref) {
            (Some(map), _) => {
                let (name, optional) = (map.name.as_str(), map.optional);
                let reference = Reference { kind: Kind::ConfigMap, name, optional };
                (reference, &map.key, place.at("configMapKeyRef"))
            }
            (_, Some(secret)) => {
                let (name, optional) = (secret.name.as_str(), secret.optional);
                let reference = Reference { kind: Kind::Secret, name, optional };
                (reference, &secret.key, place.at("secretKeyRef"))
            }
            (None, None) => {
                return match (&source.field_ref, &source.resource_field_ref) {
                    (Some(field), _) => self.field(field, &place.at("fieldRef")).map(Some),
                    (_, Some(resource)) => {
                        let place = place.at("resourceFieldRef");
                        resource_field(resource, requirements, &place).map(Value::Text).map(Some)
                    }
                    (None, None) => Err(place.fault("says nothing of where the value is")),
                };
            }
        };
        let content = reference.key(key, self.settings, &place)?;
        content.map(|content| text(content, key, &place).map(Value::Text)).transpose()
    }

    /// Returns a field of the pod.
    pub fn field(self, selector: &ObjectFieldSelector, place: &FieldPath) -> Result<Value, Fault> {
        let metadata = &self.pod.metadata;
        let path = selector.field_path.as_str();
        Ok(Value::Text(match path {
            "metadata.name" => metadata.name.clone().unwrap_or_default(),
            "metadata.namespace" => metadata.namespace.clone().unwrap_or("default".to_owned()),
            "metadata.labels" => lines(metadata.labels.as_ref()),
            "metadata.annotations" => lines(metadata.annotations.as_ref()),
            "status.podIP" => return Ok(Value::PodIp),
            "status.podIPs" => return Ok(Value::PodIps),
            "status.hostIP" | "status.hostIPs" => return Ok(Value::HostIp),
            _ => {
                let value = |kind: &str, all: Option<&BTreeMap<String, String>>| {
                    let key = path.strip_prefix(kind)?.strip_prefix("['")?.strip_suffix("']")?;
                    Some(all.and_then(|all| all.get(key)).cloned().unwrap_or_default())
                };
                value("metadata.labels", metadata.labels.as_ref())
                    .or_else(|| value("metadata.annotations", metadata.annotations.as_ref()))
                    .ok_or_else(|| {
                        place.at("fieldPath").fault(format!(
                            "{path:?} is not known on one host: there are metadata.name, \
                             .namespace, .labels['KEY'], .annotations['KEY'], status.podIP, \
                             .podIPs, .hostIP"
                        ))
                    })?
            }
        }))
    }
}

/// Returns a quantity of a container in units of the divisor.
pub fn resource_field(
    selector: &ResourceFieldSelector,
    requirements: Option<&ResourceRequirements>,
    place: &FieldPath,
) -> Result<String, Fault> {
    let resource = &selector.resource;
    let quantity = resources::quantity(requirements, resource).ok_or_else(|| {
        place.at("resource").fault(format!("the container says nothing of {resource}: set it"))
    })?;
    let divisor = selector.divisor.as_ref().map_or("1", |divisor| &divisor.0);
    // Kubernetes writes 0 for a divisor that was not given.
    let divisor = Quantity::parse(if divisor == "0" { "1" } else { divisor });
    let value = divisor.and_then(|divisor| quantity.in_units_of(divisor));
    let value = value.ok_or_else(|| place.at("divisor").fault("is not a quantity to divide by"))?;
    Ok(value.to_string())
}

/// Returns a map as files of the downward API have it.
fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    let lines = map.into_iter().flatten().map(|(key, value)| format!("{key}={value:?}"));
    lines.collect::<Vec<_>>().join("\n")
}

fn text(content: Vec<u8>, key: &str, place: &FieldPath) -> Result<String, Fault> {
    String::from_utf8(content).map_err(|_| place.fault(format!("{key} is not UTF-8")))
}

/// Replaces each `$(NAME)` by what is found for the name, and `$$` by `$`; what nothing is found for
/// stays as it is.
pub fn expand(text: &str, find: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
            continue;
        }
        match rest.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            Some((name, after)) => {
                out.push_str(&find(name).unwrap_or_else(|| format!("$({name})")));
                rest = after;
            }
            None => out.push('$'),
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::container_hook::engine::pod::parts::tests::pod;
    use crate::container_hook::template::Target;
    use crate::container_hook::template::fault::tests::merged;

    fn added(job: serde_json::Value, workflow: &[&str]) -> Result<Vec<String>, String> {
        let mut job = job;
        job["name"] = "$job".into();
        let metadata = json!({"labels": {"team": "a"}, "annotations": {"x/y": "b"}});
        let template = json!({"metadata": metadata, "spec": {"containers": [job]}});
        let (merged, place) = merged(&template);
        let pod = pod(&merged, place, &[Target::Job]).unwrap();
        let overlay = pod.main.unwrap();
        let address = ["10.1.2.3".parse().unwrap()];
        let addresses = Addresses { own: &address, host: None };
        let settings = TemplateSettings {
            config_maps: "/nowhere".into(),
            secrets: "/nowhere".into(),
            ..TemplateSettings::default()
        };
        let sources = Sources { settings: &settings, pod: &pod.fields };
        let workflow: Vec<_> = workflow.iter().map(ToString::to_string).collect();
        sources
            .variables(&overlay.container, overlay.given.env, &overlay.place)
            .map(|variables| Environment::new(&workflow, &variables, addresses).added)
            .map_err(|fault| fault.to_string())
    }

    #[test]
    fn values_may_name_what_comes_before_them() {
        let env = json!([
            {"name": "A", "value": "$(HOME)/$(B)"}, {"name": "B", "value": "$(A)!"}, {"name": "C"},
        ]);
        let expected = ["A=/h/$(B)", "B=/h/$(B)!", "C="];
        assert_eq!(added(json!({"env": env}), &["HOME=/h", "PATH"]).unwrap(), expected);
    }

    #[test]
    fn fields_of_the_pod_are_values() {
        let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
        let resource = json!({"resource": "limits.cpu", "divisor": "1m"});
        let env = json!([
            field("L", "metadata.labels['team']"),
            field("A", "metadata.annotations['x/y']"),
            field("N", "metadata.namespace"),
            field("I", "status.podIP"),
            {"name": "R", "valueFrom": {"resourceFieldRef": resource}},
        ]);
        let job = json!({"env": env, "resources": {"limits": {"cpu": "1.5"}}});
        assert_eq!(added(job, &[]).unwrap(), ["L=a", "A=b", "N=default", "I=10.1.2.3", "R=1500"]);
        let said = added(json!({"env": [field("X", "spec.nodeName")]}), &[]).unwrap_err();
        assert!(said.contains("/env/0/valueFrom/fieldRef/fieldPath: \"spec.nodeName\""), "{said}");
    }

    #[test]
    fn what_is_missing_is_a_fault_unless_it_is_optional() {
        let reference = |optional: bool| json!({"name": "n", "key": "k", "optional": optional});
        let env =
            |optional| json!([{"name": "A", "valueFrom": {"secretKeyRef": reference(optional)}}]);
        assert!(added(json!({"env": env(true)}), &[]).unwrap().is_empty());
        let said = added(json!({"env": env(false)}), &[]).unwrap_err();
        assert!(said.contains("/env/0/valueFrom/secretKeyRef: there is no directory"), "{said}");
        let from = json!([{"prefix": "A_", "configMapRef": {"name": "n"}}]);
        let said = added(json!({"envFrom": from}), &[]).unwrap_err();
        assert!(said.contains("/envFrom/0/configMapRef: there is no directory"), "{said}");
    }

    #[test]
    fn names_are_replaced_as_kubernetes_does() {
        let find = |name: &str| (name == "A").then(|| "1".to_owned());
        for (text, expected) in [
            ("x$(A)y$(A)", "x1y1"),
            ("$$(A) $$$(A) $$$$(A)", "$(A) $1 $$(A)"),
            ("$(B) $A ${A} $(A", "$(B) $A ${A} $(A"),
            ("$()", "$()"),
            ("cost: 5$", "cost: 5$"),
            ("", ""),
        ] {
            assert_eq!(expand(text, find), expected, "{text}");
        }
    }
}
