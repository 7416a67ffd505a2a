//! The merged pod, taken apart: what the template says of each container, and of all.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::check::check;
use super::environment::Sources;
use super::overlay::{Given, Overlay};
use super::pod_fields::PodFields;
use super::volumes::Backings;
use crate::container_hook::context::Settings;
use crate::container_hook::engine::backend::EngineBackend;
use crate::container_hook::error::HookError;
use crate::container_hook::plan::Role;
use crate::container_hook::request::{ContainerArgs, Environment, ImageSource, Mount, PrepareJob};
use crate::container_hook::runner::PREFIX;
use crate::container_hook::template::{
    Base, Fault, Faults, FieldPath, Merged, Target, Template, base,
};

/// What a template says of a job or a container step.
#[derive(Debug)]
pub struct Pod {
    /// Of the job container, or the step.
    pub main: Option<Overlay>,
    /// Of the services, in the request's order.
    pub services: Vec<Overlay>,
    /// Init containers in their order, then sidecars.
    pub helpers: Vec<TemplateContainer>,
    pub fields: Arc<PodFields>,
    pub volumes: Arc<Backings>,
}

/// A container that is only in the template.
#[derive(Debug)]
pub struct TemplateContainer {
    pub name: String,
    /// What a request would say of it.
    pub args: ContainerArgs,
    pub overlay: Overlay,
    pub role: Role,
}

impl Pod {
    /// Merges the admin's template into the pod of a job; none without a template. `names` are those
    /// of the services.
    pub fn of_job(
        backend: &EngineBackend<'_>,
        job: &PrepareJob,
        names: Vec<Vec<String>>,
    ) -> Result<Option<Self>, HookError> {
        let Some(template) = template(backend)? else { return Ok(None) };
        let base = base::job_with_names(job, &backend.context.runner.name, names)?;
        let mounts = job.container.as_ref().map(|container| container.system_mounts.clone());
        Pod::new(backend, &template, base, Role::Job, mounts.unwrap_or_default()).map(Some)
    }

    /// Merges the admin's template into the pod of a container step; none without a template.
    pub fn of_step(
        backend: &EngineBackend<'_>,
        step: &ContainerArgs,
    ) -> Result<Option<Self>, HookError> {
        let Some(template) = template(backend)? else { return Ok(None) };
        let base = base::step(step, &backend.context.runner.name);
        Pod::new(backend, &template, base, Role::Step, step.system_mounts.clone()).map(Some)
    }

    fn new(
        backend: &EngineBackend<'_>,
        template: &Template,
        base: Base,
        role: Role,
        system_mounts: Vec<Mount>,
    ) -> Result<Self, HookError> {
        let targets = base.targets.clone();
        let merged = match role {
            Role::Step => template.merge_step(base)?,
            _ => template.merge_job(base)?,
        };
        let merged = Arc::new(merged);
        let file = backend.context.settings.template.file.as_deref().unwrap_or("".as_ref());
        let file = &file.display().to_string();
        report(backend, &merged, file, role)?;
        let place = FieldPath::top(Arc::clone(&merged), file);
        let parts = Parts { place, role, targets: &targets };
        let fields = parts.fields(&merged, system_mounts)?;
        let Settings { policy, template } = backend.context.settings;
        let volumes = Sources { settings: template, pod: &fields }.backings(policy)?;
        Ok(parts.pod(&merged, fields, volumes)?)
    }

    fn overlay(&self, mut container: Container, place: FieldPath, role: Role) -> Overlay {
        let is_own = |field: &str| place.at(field).is_from_template();
        let given = |field: &str, count: usize| {
            let place = place.at(field);
            (0..count).take_while(|at| !place.item(*at).is_from_template()).count()
        };
        let given = Given {
            env: given("env", container.env.as_ref().map_or(0, Vec::len)),
            mounts: given("volumeMounts", container.volume_mounts.as_ref().map_or(0, Vec::len)),
            ports: given("ports", container.ports.as_ref().map_or(0, Vec::len)),
        };
        // Both are the hook's, or neither: arguments alone are for the hook's own command.
        if !is_own("command") && !is_own("args") {
            (container.command, container.args) = (None, None);
        }
        if !is_own("workingDir") {
            container.working_dir = None;
        }
        if !is_own("imagePullPolicy") {
            container.image_pull_policy = None;
        }
        let (pod, volumes) = (Arc::clone(&self.fields), Arc::clone(&self.volumes));
        Overlay { role, container, given, place, pod, volumes }
    }

    fn helper(&self, container: Container, place: FieldPath, role: Role) -> TemplateContainer {
        let args = ContainerArgs {
            source: ImageSource::Image(container.image.clone().unwrap_or_default()),
            entry_point: None,
            entry_point_args: Vec::new(),
            working_directory: None,
            create_options: None,
            registry: None,
            environment: Environment::default(),
            port_mappings: Vec::new(),
            system_mounts: Vec::new(),
            user_mounts: Vec::new(),
            context_name: None,
        };
        let name = container.name.clone();
        TemplateContainer { name, args, overlay: self.overlay(container, place, role), role }
    }

    /// Returns whether its containers share their process numbers.
    pub fn shares_processes(&self) -> bool {
        self.fields.spec.share_process_namespace == Some(true)
    }
}

/// Reports what a merge did to the template. Steps of a job repeat nothing that people saw before.
fn report(
    backend: &EngineBackend<'_>,
    merged: &Arc<Merged>,
    file: &str,
    role: Role,
) -> Result<(), Faults> {
    let lines: Vec<String> = check(merged, file)?;
    let notes = merged.notes.iter().map(ToString::to_string);
    for line in notes.chain(lines) {
        if role == Role::Step {
            backend.context.log.debug(&line);
        } else {
            backend.context.log.line(&line);
        }
    }
    Ok(())
}

fn template(backend: &EngineBackend<'_>) -> Result<Option<Template>, HookError> {
    let file = backend.context.settings.template.file.as_deref();
    Ok(file.map(Template::read).transpose()?)
}

/// How a merged pod is taken apart.
struct Parts<'a> {
    place: FieldPath,
    role: Role,
    targets: &'a [Target],
}

impl Parts<'_> {
    /// Returns what the template says of the pod as a whole.
    fn fields(&self, merged: &Merged, system_mounts: Vec<Mount>) -> Result<PodFields, Faults> {
        let mut spec = merged.pod.spec.clone().unwrap_or_default();
        let mut containers = std::mem::take(&mut spec.containers);
        containers.extend(spec.init_containers.take().unwrap_or_default());
        Ok(PodFields {
            metadata: self.metadata(merged)?,
            spec: self.spec(spec)?,
            place: self.place.clone(),
            system_mounts,
            containers: containers.into_iter().map(|one| (one.name.clone(), one)).collect(),
            is_step: self.role == Role::Step,
        })
    }

    fn pod(self, merged: &Merged, fields: PodFields, volumes: Backings) -> Result<Pod, Faults> {
        let mut spec = merged.pod.spec.clone().unwrap_or_default();
        let containers = std::mem::take(&mut spec.containers);
        let inits = spec.init_containers.take().unwrap_or_default();
        let mut pod = Pod {
            main: None,
            services: Vec::new(),
            helpers: Vec::new(),
            fields: Arc::new(fields),
            volumes: Arc::new(volumes),
        };
        for (at, container) in inits.into_iter().enumerate() {
            let place = self.place.at("spec/initContainers").item(at);
            // What fills the volumes on Kubernetes: here they are full.
            if place.is_from_template() {
                let role = match container.restart_policy.as_deref() {
                    None | Some("Never") => Role::Init,
                    Some("Always") => Role::Sidecar,
                    Some(_) => return Err(never_again(&place).into()),
                };
                let helper = pod.helper(container, place, role);
                pod.helpers.push(helper);
            }
        }
        for (at, container) in containers.into_iter().enumerate() {
            let place = self.place.at("spec/containers").item(at);
            if !matches!(container.restart_policy.as_deref(), None | Some("Never")) {
                return Err(never_again(&place).into());
            }
            match self.targets.get(at) {
                Some(Target::Job) => {
                    pod.main = Some(pod.overlay(container, place, self.role));
                }
                Some(Target::Service { .. }) => {
                    let overlay = pod.overlay(container, place, Role::Service);
                    pod.services.push(overlay);
                }
                None => {
                    let helper = pod.helper(container, place, Role::Sidecar);
                    pod.helpers.push(helper);
                }
            }
        }
        if pod.shares_processes() && self.role == Role::Job {
            let keeps_alive = pod.main.as_ref().is_some_and(|main| !main.runs_command());
            if !keeps_alive && !pod.helpers.is_empty() {
                return Err(self.place.at("spec/shareProcessNamespace").fault(
                    "needs a job container that runs nothing of its own: it is what the others \
                     share the process numbers of",
                ))?;
            }
        }
        Ok(pod)
    }

    fn metadata(&self, merged: &Merged) -> Result<ObjectMeta, Fault> {
        let place = self.place.at("metadata");
        let own = |field: &str, all: Option<&BTreeMap<String, String>>| {
            let place = place.at(field);
            let all = all.into_iter().flatten();
            let own = all.filter(|(key, _)| place.key(key).is_from_template());
            own.map(|(key, value)| (key.clone(), value.clone())).collect::<BTreeMap<_, _>>()
        };
        let metadata = &merged.pod.metadata;
        let annotations = own("annotations", metadata.annotations.as_ref());
        let is_ours =
            |key: &&String| key.starts_with(PREFIX) || *key == "org.opencontainers.image.ref.name";
        if let Some(key) = annotations.keys().find(is_ours) {
            let problem = "is for the hook to set: hooks trust it";
            return Err(place.at("annotations").key(key).fault(problem));
        }
        Ok(ObjectMeta {
            name: metadata.name.clone(),
            labels: Some(own("labels", metadata.labels.as_ref())),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        })
    }

    /// Takes away what the template does not say.
    fn spec(&self, mut spec: PodSpec) -> Result<PodSpec, Fault> {
        let place = self.place.at("spec");
        if !place.at("securityContext").is_from_template() {
            spec.security_context = None;
        }
        if !place.at("imagePullSecrets").is_from_template() {
            spec.image_pull_secrets = None;
        }
        if spec.restart_policy.as_deref().is_some_and(|policy| policy != "Never") {
            return Err(never_again(&place));
        }
        Ok(spec)
    }
}

fn never_again(place: &FieldPath) -> Fault {
    place.at("restartPolicy").fault(
        "nothing is started again here: write `Never`, or `Always` for an init container that is \
         to go on",
    )
}

#[cfg(test)]
pub mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::container_hook::template::Base;
    use crate::container_hook::template::fault::tests::merged;

    /// Takes a merged pod apart.
    pub fn pod(merged: &Merged, place: FieldPath, targets: &[Target]) -> Result<Pod, Faults> {
        let parts = Parts { place, role: Role::Job, targets };
        let fields = parts.fields(merged, Vec::new())?;
        parts.pod(merged, fields, Backings::new())
    }

    fn parts(template: &Value) -> Result<Pod, String> {
        let (merged, place) = merged(template);
        pod(&merged, place, &[Target::Job]).map_err(|faults| faults.to_string())
    }

    #[test]
    fn init_containers_come_before_sidecars() {
        let pod = parts(&json!({"spec": {
            "containers": [{"name": "side", "image": "a"}, {"name": "$job", "tty": true}],
            "initContainers": [
                {"name": "first", "image": "b"},
                {"name": "stays", "image": "c", "restartPolicy": "Always"},
            ],
        }}));
        let helpers = pod.unwrap().helpers;
        let found: Vec<_> = helpers.iter().map(|one| (one.name.as_str(), one.role)).collect();
        let expected = [("first", Role::Init), ("stays", Role::Sidecar), ("side", Role::Sidecar)];
        assert_eq!(found, expected);
    }

    #[test]
    fn what_the_request_gives_is_not_the_templates() {
        let base = "metadata: {labels: {runner-pod: r}}\nspec:\n  restartPolicy: Never\n  \
                    securityContext: {fsGroup: 1001}\n  initContainers: [{name: fs-init, image: i}]\n  \
                    containers: [{name: job, image: a, command: [tail], args: [-f], workingDir: /w, \
                    env: [{name: A, value: b}], ports: [{containerPort: 1}]}]";
        let base = Base::parse("pod", base).unwrap();
        let template = "spec: {containers: [{name: $job, env: [{name: C}], args: [x]}]}";
        let merged = Template::parse("/t", template).unwrap().merge_job(base).unwrap();
        let merged = Arc::new(merged);
        let place = FieldPath::top(Arc::clone(&merged), "/t");
        let pod = pod(&merged, place, &[Target::Job]).unwrap();
        assert!(pod.helpers.is_empty() && pod.fields.spec.security_context.is_none());
        assert!(pod.fields.metadata.labels.as_ref().unwrap().is_empty());
        let main = pod.main.unwrap();
        assert_eq!((main.given.env, main.given.ports, main.given.mounts), (1, 1, 0));
        // Arguments alone are for the hook's own command.
        assert_eq!(main.container.command.unwrap(), ["tail"]);
        assert_eq!(main.container.args.unwrap(), ["x"]);
        assert_eq!(main.container.working_dir, None);
    }

    #[test]
    fn what_only_the_hook_sets_is_refused() {
        for (template, expected) in [
            (
                json!({"metadata": {"annotations": {"com.github.actions.role": "job"}}}),
                "/metadata/annotations/com.github.actions.role: is for the hook to set",
            ),
            (json!({"spec": {"restartPolicy": "OnFailure"}}), "/spec/restartPolicy: nothing"),
            (
                json!({"spec": {"containers": [{"name": "$job", "restartPolicy": "Always"}]}}),
                "/spec/containers/0/restartPolicy: nothing is started again",
            ),
            (
                json!({"spec": {"shareProcessNamespace": true, "containers": [
                    {"name": "$job", "command": ["a"]}, {"name": "b", "image": "c"},
                ]}}),
                "/spec/shareProcessNamespace: needs a job container",
            ),
        ] {
            let said = parts(&template).unwrap_err();
            assert!(said.contains(expected), "{said}");
        }
    }
}
