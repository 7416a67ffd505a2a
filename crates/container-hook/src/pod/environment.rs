//! `env` and `envFrom` of a container, and the expansion of `$(NAME)`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use container_hook_job::quantity::Quantity;
use container_hook_job::template::{FieldPath, TemplateFault, TemplateSettings};
use k8s_openapi::api::core::v1::{
    Container, EnvFromSource, EnvVarSource, ObjectFieldSelector, ResourceFieldSelector,
    ResourceRequirements,
};

use super::objects::ObjectRef;
use super::pod_fields::PodFields;
use super::resources;

/// The sources of variables and files: config maps, secrets, and fields of the pod.
#[derive(Clone, Copy)]
pub struct ValueSources<'a> {
    pub settings: &'a TemplateSettings,
    pub pod: &'a PodFields,
}

/// The addresses of a container; none before it is connected.
#[derive(Clone, Copy, Debug, Default)]
pub struct PodAddresses<'a> {
    pub own: &'a [IpAddr],
    /// Address of the host in the container's network.
    pub host: Option<IpAddr>,
}

/// An environment variable of the template.
#[derive(Clone, Debug)]
pub struct TemplateEnvVar {
    name: String,
    value: EnvValue,
}

/// A value that may depend on the container's addresses, which are not known yet.
#[derive(Clone, Debug)]
pub enum EnvValue {
    Text(String),
    /// Text in which each `$(NAME)` is expanded.
    Expandable(String),
    PodIp,
    PodIps,
    HostIp,
}

impl EnvValue {
    fn text(&self, environment: &ContainerEnvironment, addresses: PodAddresses<'_>) -> String {
        match self {
            EnvValue::Expandable(text) => environment.expand(text),
            other => other.resolve_addresses(addresses),
        }
    }

    /// Returns the value for a container with these addresses, without expansion.
    pub(super) fn resolve_addresses(&self, addresses: PodAddresses<'_>) -> String {
        let mut own = addresses.own.iter().map(IpAddr::to_string);
        match self {
            EnvValue::Text(text) | EnvValue::Expandable(text) => text.clone(),
            EnvValue::PodIp => own.next().unwrap_or_default(),
            EnvValue::PodIps => own.collect::<Vec<_>>().join(","),
            EnvValue::HostIp => addresses.host.map(|host| host.to_string()).unwrap_or_default(),
        }
    }
}

/// The environment of a container.
#[derive(Clone, Debug, Default)]
pub struct ContainerEnvironment {
    known: BTreeMap<String, String>,
    /// Variables of the template, as `NAME=value`.
    pub added: Vec<String>,
}

impl ContainerEnvironment {
    /// Returns the environment of a container with these variables of the workflow; a value of the template may
    /// refer to earlier variables.
    pub(super) fn new(
        workflow: &[String],
        variables: &[TemplateEnvVar],
        addresses: PodAddresses<'_>,
    ) -> Self {
        let pairs = workflow.iter().filter_map(|pair| pair.split_once('='));
        let known = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let mut environment = ContainerEnvironment { known, added: Vec::new() };
        for TemplateEnvVar { name, value } in variables {
            let value = value.text(&environment, addresses);
            environment.added.push(format!("{name}={value}"));
            environment.known.insert(name.clone(), value);
        }
        environment
    }

    /// Expands each `$(NAME)`.
    pub(super) fn expand(&self, text: &str) -> String {
        expand(text, |name| self.known.get(name).cloned())
    }
}

impl TemplateEnvVar {
    fn new(name: &str, value: EnvValue, place: &FieldPath) -> Result<Self, TemplateFault> {
        let has_nul = matches!(&value, EnvValue::Text(text) | EnvValue::Expandable(text) if text.contains('\0'));
        if name.is_empty() || name.contains(['=', '\0']) || has_nul {
            return Err(place.fault(format!(
                "{name:?} is not the name of a variable, or its value has a NUL character"
            )));
        }
        Ok(TemplateEnvVar { name: name.to_owned(), value })
    }
}

impl ValueSources<'_> {
    /// Returns the template's variables of a container: those of `envFrom`, then those of `env` without the first
    /// `given`, which are the request's.
    pub fn variables(
        self,
        container: &Container,
        given: usize,
        place: &FieldPath,
    ) -> Result<Vec<TemplateEnvVar>, TemplateFault> {
        let mut variables = Vec::new();
        for (at, source) in container.env_from.iter().flatten().enumerate() {
            let place = place.at("envFrom").item(at);
            for (name, value) in self.read_all_variables(source, &place)? {
                variables.push(TemplateEnvVar::new(&name, EnvValue::Text(value), &place)?);
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
                (value, None) => Some(EnvValue::Expandable(value.clone().unwrap_or_default())),
            };
            if let Some(value) = value {
                variables.push(TemplateEnvVar::new(&variable.name, value, &place)?);
            }
        }
        Ok(variables)
    }

    fn read_all_variables(
        self,
        source: &EnvFromSource,
        place: &FieldPath,
    ) -> Result<Vec<(String, String)>, TemplateFault> {
        let (reference, place) = match (&source.config_map_ref, &source.secret_ref) {
            (Some(map), None) => {
                let reference = ObjectRef::config_map(self.settings, &map.name, map.optional);
                (reference, place.at("configMapRef"))
            }
            (None, Some(secret)) => {
                let reference = ObjectRef::secret(self.settings, &secret.name, secret.optional);
                (reference, place.at("secretRef"))
            }
            _ => return Err(place.fault("needs one of `configMapRef` and `secretRef`")),
        };
        let prefix = source.prefix.as_deref().unwrap_or_default();
        let object = reference.object(&place)?.unwrap_or_default();
        let pairs = object
            .into_iter()
            .map(|(key, content)| Ok((format!("{prefix}{key}"), text(content, &key, &place)?)));
        pairs.collect()
    }

    /// Returns the value of a variable; none if an optional source is missing.
    fn value_from(
        self,
        source: &EnvVarSource,
        requirements: Option<&ResourceRequirements>,
        place: &FieldPath,
    ) -> Result<Option<EnvValue>, TemplateFault> {
        let (reference, key, place) = match (&source.config_map_key_ref, &source.secret_key_ref) {
            (Some(map), _) => {
                let reference = ObjectRef::config_map(self.settings, &map.name, map.optional);
                (reference, &map.key, place.at("configMapKeyRef"))
            }
            (_, Some(secret)) => {
                let reference = ObjectRef::secret(self.settings, &secret.name, secret.optional);
                (reference, &secret.key, place.at("secretKeyRef"))
            }
            (None, None) => {
                return match (&source.field_ref, &source.resource_field_ref) {
                    (Some(field), _) => self.field(field, &place.at("fieldRef")).map(Some),
                    (_, Some(resource)) => {
                        let place = place.at("resourceFieldRef");
                        resource_field(resource, requirements, &place).map(EnvValue::Text).map(Some)
                    }
                    (None, None) => Err(place.fault("needs one of `configMapKeyRef`, `secretKeyRef`, `fieldRef` and `resourceFieldRef`")),
                };
            }
        };
        let content = reference.key(key, &place)?;
        content.map(|content| text(content, key, &place).map(EnvValue::Text)).transpose()
    }

    /// Returns the value of a `fieldRef`.
    pub fn field(
        self,
        selector: &ObjectFieldSelector,
        place: &FieldPath,
    ) -> Result<EnvValue, TemplateFault> {
        let metadata = &self.pod.metadata;
        let path = selector.field_path.as_str();
        Ok(EnvValue::Text(match path {
            "metadata.name" => metadata.name.clone().unwrap_or_default(),
            "metadata.namespace" => metadata.namespace.clone().unwrap_or("default".to_owned()),
            "metadata.labels" => lines(metadata.labels.as_ref()),
            "metadata.annotations" => lines(metadata.annotations.as_ref()),
            "status.podIP" => return Ok(EnvValue::PodIp),
            "status.podIPs" => return Ok(EnvValue::PodIps),
            "status.hostIP" | "status.hostIPs" => return Ok(EnvValue::HostIp),
            _ => {
                let value = |kind: &str, all: Option<&BTreeMap<String, String>>| {
                    let key = path.strip_prefix(kind)?.strip_prefix("['")?.strip_suffix("']")?;
                    Some(all.and_then(|all| all.get(key)).cloned().unwrap_or_default())
                };
                value("metadata.labels", metadata.labels.as_ref())
                    .or_else(|| value("metadata.annotations", metadata.annotations.as_ref()))
                    .ok_or_else(|| {
                        place.at("fieldPath").fault(format!(
                            "{path:?} is not supported on a single host: expected metadata.name, \
                             .namespace, .labels['KEY'], .annotations['KEY'], status.podIP, \
                             .podIPs, .hostIP or .hostIPs"
                        ))
                    })?
            }
        }))
    }
}

/// Returns the value of a `resourceFieldRef`, in units of its divisor.
pub fn resource_field(
    selector: &ResourceFieldSelector,
    requirements: Option<&ResourceRequirements>,
    place: &FieldPath,
) -> Result<String, TemplateFault> {
    let resource = &selector.resource;
    let quantity = resources::quantity(requirements, resource).ok_or_else(|| {
        place.at("resource").fault(format!("the container does not set {resource}: set it"))
    })?;
    let divisor = selector.divisor.as_ref().map_or("1", |divisor| &divisor.0);
    // Kubernetes writes 0 for an unset divisor.
    let divisor = Quantity::parse(if divisor == "0" { "1" } else { divisor });
    let value = divisor.and_then(|divisor| quantity.divide_by(divisor));
    let value = value.ok_or_else(|| {
        place.at("divisor").fault("is not a valid divisor: expected a quantity, for example 1Mi")
    })?;
    Ok(value.to_string())
}

/// Formats a map as in files of the downward API.
fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    let lines = map.into_iter().flatten().map(|(key, value)| format!("{key}={value:?}"));
    lines.collect::<Vec<_>>().join("\n")
}

fn text(content: Vec<u8>, key: &str, place: &FieldPath) -> Result<String, TemplateFault> {
    String::from_utf8(content).map_err(|_| place.fault(format!("{key} is not UTF-8")))
}

/// Replaces each `$(NAME)` by its value, and `$$` by `$`; unknown names are kept.
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
    use container_hook_job::template::MergeTarget;
    use serde_json::json;

    use super::*;
    use crate::pod::parts::tests::pod;
    use crate::pod::testing::merge_template;

    fn add_variables(job: serde_json::Value, workflow: &[&str]) -> Result<Vec<String>, String> {
        let mut job = job;
        job["name"] = "$job".into();
        let metadata = json!({"labels": {"team": "a"}, "annotations": {"x/y": "b"}});
        let template = json!({"metadata": metadata, "spec": {"containers": [job]}});
        let (merged, place) = merge_template(&template);
        let pod = pod(&merged, place, &[MergeTarget::Job]).unwrap();
        let overlay = pod.main.unwrap();
        let address = ["10.1.2.3".parse().unwrap()];
        let addresses = PodAddresses { own: &address, host: None };
        let settings = TemplateSettings {
            config_maps: "/nowhere".into(),
            secrets: "/nowhere".into(),
            ..TemplateSettings::default()
        };
        let sources = ValueSources { settings: &settings, pod: &pod.fields };
        let workflow: Vec<_> = workflow.iter().map(ToString::to_string).collect();
        sources
            .variables(&overlay.container, overlay.given.env, &overlay.place)
            .map(|variables| ContainerEnvironment::new(&workflow, &variables, addresses).added)
            .map_err(|fault| fault.to_string())
    }

    #[test]
    fn values_can_refer_to_earlier_variables() {
        let env = json!([
            {"name": "A", "value": "$(HOME)/$(B)"}, {"name": "B", "value": "$(A)!"}, {"name": "C"},
        ]);
        let expected = ["A=/h/$(B)", "B=/h/$(B)!", "C="];
        assert_eq!(add_variables(json!({"env": env}), &["HOME=/h", "PATH"]).unwrap(), expected);
    }

    #[test]
    fn pod_fields_can_be_values() {
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
        assert_eq!(
            add_variables(job, &[]).unwrap(),
            ["L=a", "A=b", "N=default", "I=10.1.2.3", "R=1500"]
        );
        let said = add_variables(json!({"env": [field("X", "spec.nodeName")]}), &[]).unwrap_err();
        assert!(said.contains("/env/0/valueFrom/fieldRef/fieldPath: \"spec.nodeName\""), "{said}");
    }

    #[test]
    fn missing_keys_are_faults_unless_optional() {
        let reference = |optional: bool| json!({"name": "n", "key": "k", "optional": optional});
        let env =
            |optional| json!([{"name": "A", "valueFrom": {"secretKeyRef": reference(optional)}}]);
        assert!(add_variables(json!({"env": env(true)}), &[]).unwrap().is_empty());
        let said = add_variables(json!({"env": env(false)}), &[]).unwrap_err();
        assert!(said.contains("/env/0/valueFrom/secretKeyRef: there is no directory"), "{said}");
        let from = json!([{"prefix": "A_", "configMapRef": {"name": "n"}}]);
        let said = add_variables(json!({"envFrom": from}), &[]).unwrap_err();
        assert!(said.contains("/envFrom/0/configMapRef: there is no directory"), "{said}");
    }

    #[test]
    fn references_are_expanded_like_in_kubernetes() {
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
