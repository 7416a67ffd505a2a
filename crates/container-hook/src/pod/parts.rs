//! Splits the merged pod into the template's additions for each container and for the pod.

use std::collections::BTreeMap;
use std::sync::Arc;

use container_hook_job::HookError;
use container_hook_job::HookSettings;
use container_hook_job::plan::PlanRole;
use container_hook_job::request::{
    ContainerArgs, ImageSource, PrepareJob, RequestEnvironment, RequestMount,
};
use container_hook_job::runner::PREFIX;
use container_hook_job::template::{
    BasePod, FieldPath, MergeTarget, MergedPod, PodTemplate, TemplateFault, TemplateFaults, base,
};
use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use oci_hooks_host::privilege::Privilege;

use super::check::check;
use super::environment::ValueSources;
use super::overlay::{ContainerOverlay, RequestItemCounts};
use super::pod_fields::PodFields;
use super::volumes::VolumeBackings;
use crate::backend::EngineBackend;

/// The template's additions to a job or a container step.
#[derive(Debug)]
pub struct TemplatePod {
    /// Overlay of the job container, or the step.
    pub main: Option<ContainerOverlay>,
    /// Overlays of the services, in the order of the request.
    pub services: Vec<ContainerOverlay>,
    /// Containers of `initContainers` in their order, sidecars among them, then additional sidecars from `containers`.
    pub helpers: Vec<TemplateContainer>,
    pub fields: Arc<PodFields>,
}

/// A container that only the template has.
#[derive(Debug)]
pub struct TemplateContainer {
    /// The container's image, in the form of a request; all other arguments are empty.
    pub args: ContainerArgs,
    pub overlay: ContainerOverlay,
}

impl TemplatePod {
    /// Merges the admin's template into the pod of a job; returns none without a template. `names` are the host
    /// names of the services.
    pub fn of_job(
        backend: &EngineBackend<'_>,
        job: &PrepareJob,
        names: Vec<Vec<String>>,
    ) -> Result<Option<Self>, HookError> {
        let Some(template) = template(backend)? else { return Ok(None) };
        let base = base::job_with_names(job, &backend.context.runner.name, names)?;
        let mounts = job.container.as_ref().map(|container| container.system_mounts.clone());
        TemplatePod::new(backend, &template, base, PlanRole::Job, mounts.unwrap_or_default())
            .map(Some)
    }

    /// Merges the admin's template into the pod of a container step; returns none without a template.
    pub fn of_step(
        backend: &EngineBackend<'_>,
        step: &ContainerArgs,
    ) -> Result<Option<Self>, HookError> {
        let Some(template) = template(backend)? else { return Ok(None) };
        let base = base::step(step, &backend.context.runner.name);
        TemplatePod::new(backend, &template, base, PlanRole::Step, step.system_mounts.clone())
            .map(Some)
    }

    fn new(
        backend: &EngineBackend<'_>,
        template: &PodTemplate,
        base: BasePod,
        role: PlanRole,
        system_mounts: Vec<RequestMount>,
    ) -> Result<Self, HookError> {
        let targets = base.targets.clone();
        let merged = match role {
            PlanRole::Step => template.merge_step(base)?,
            _ => template.merge_job(base)?,
        };
        let merged = Arc::new(merged);
        let file = backend.context.settings.template.file.as_deref().unwrap_or("".as_ref());
        let file = &file.display().to_string();
        report(backend, &merged, file, role)?;
        let place = FieldPath::top(Arc::clone(&merged), file);
        let parts = PodSplitter { place, role, targets: &targets };
        let mut fields = parts.fields(&merged, system_mounts)?;
        let is_of_host =
            backend.engine.privilege == Privilege::Root && !backend.settings.user_namespace;
        if is_of_host && fields.spec.host_users == Some(false) {
            let problem = "needs `user-namespace = \"private\"` under [security] of the settings";
            return Err(parts.place.at("spec/hostUsers").fault(problem).into());
        }
        let HookSettings { policy, template } = backend.context.settings;
        fields.backings = ValueSources { settings: template, pod: &fields }.backings(policy)?;
        Ok(parts.pod(&merged, fields)?)
    }

    fn overlay(
        &self,
        mut container: Container,
        place: FieldPath,
        role: PlanRole,
    ) -> ContainerOverlay {
        let is_own = |field: &str| place.at(field).is_from_template();
        let given = |field: &str, count: usize| {
            let place = place.at(field);
            (0..count).take_while(|at| !place.item(*at).is_from_template()).count()
        };
        let given = RequestItemCounts {
            env: given("env", container.env.as_ref().map_or(0, Vec::len)),
            mounts: given("volumeMounts", container.volume_mounts.as_ref().map_or(0, Vec::len)),
            ports: given("ports", container.ports.as_ref().map_or(0, Vec::len)),
        };
        // Dropped only if both are the hook's: `args` without `command` are for the hook's command.
        if !is_own("command") && !is_own("args") {
            (container.command, container.args) = (None, None);
        }
        if !is_own("workingDir") {
            container.working_dir = None;
        }
        if !is_own("imagePullPolicy") {
            container.image_pull_policy = None;
        }
        ContainerOverlay { role, container, given, place, pod: Arc::clone(&self.fields) }
    }

    fn helper(&self, container: Container, place: FieldPath, role: PlanRole) -> TemplateContainer {
        let args = ContainerArgs {
            source: ImageSource::Image(container.image.clone().unwrap_or_default()),
            entry_point: None,
            entry_point_args: Vec::new(),
            working_directory: None,
            create_options: None,
            registry: None,
            environment: RequestEnvironment::default(),
            port_mappings: Vec::new(),
            system_mounts: Vec::new(),
            user_mounts: Vec::new(),
            context_name: None,
        };
        TemplateContainer { args, overlay: self.overlay(container, place, role) }
    }

    /// Returns whether the containers share a PID namespace.
    pub fn shares_processes(&self) -> bool {
        self.fields.spec.share_process_namespace == Some(true)
    }
}

/// Logs the notes of a merge and the fields without effect. For steps only in debug mode, because the job has
/// already logged the same lines.
fn report(
    backend: &EngineBackend<'_>,
    merged: &Arc<MergedPod>,
    file: &str,
    role: PlanRole,
) -> Result<(), TemplateFaults> {
    let lines: Vec<String> = check(merged, file)?;
    let notes = merged.notes.iter().map(ToString::to_string);
    for line in notes.chain(lines) {
        if role == PlanRole::Step {
            backend.context.log.debug(&line);
        } else {
            backend.context.log.line(&line);
        }
    }
    Ok(())
}

fn template(backend: &EngineBackend<'_>) -> Result<Option<PodTemplate>, HookError> {
    let file = backend.context.settings.template.file.as_deref();
    Ok(file.map(PodTemplate::read).transpose()?)
}

/// Splits a merged pod.
struct PodSplitter<'a> {
    place: FieldPath,
    /// Role of the main container.
    role: PlanRole,
    /// Containers of the request, which are the first of the merged pod.
    targets: &'a [MergeTarget],
}

impl PodSplitter<'_> {
    /// Returns the template's fields of the pod as a whole.
    fn fields(
        &self,
        merged: &MergedPod,
        system_mounts: Vec<RequestMount>,
    ) -> Result<PodFields, TemplateFaults> {
        let mut spec = merged.pod.spec.clone().unwrap_or_default();
        let mut containers = std::mem::take(&mut spec.containers);
        containers.extend(spec.init_containers.take().unwrap_or_default());
        Ok(PodFields {
            metadata: self.metadata(merged)?,
            spec: self.spec(spec)?,
            place: self.place.clone(),
            system_mounts,
            containers: containers.into_iter().map(|one| (one.name.clone(), one)).collect(),
            is_step: self.role == PlanRole::Step,
            backings: VolumeBackings::new(),
        })
    }

    fn pod(self, merged: &MergedPod, fields: PodFields) -> Result<TemplatePod, TemplateFaults> {
        let mut spec = merged.pod.spec.clone().unwrap_or_default();
        let containers = std::mem::take(&mut spec.containers);
        let inits = spec.init_containers.take().unwrap_or_default();
        let mut pod = TemplatePod {
            main: None,
            services: Vec::new(),
            helpers: Vec::new(),
            fields: Arc::new(fields),
        };
        for (at, container) in inits.into_iter().enumerate() {
            let place = self.place.at("spec/initContainers").item(at);
            // Skips the hook's init container, which fills volumes on Kubernetes; here they need no filling.
            if place.is_from_template() {
                let role = match container.restart_policy.as_deref() {
                    None | Some("Never") => PlanRole::Init,
                    Some("Always") => PlanRole::Sidecar,
                    Some(_) => return Err(restart_fault(&place).into()),
                };
                let helper = pod.helper(container, place, role);
                pod.helpers.push(helper);
            }
        }
        for (at, container) in containers.into_iter().enumerate() {
            let place = self.place.at("spec/containers").item(at);
            if !matches!(container.restart_policy.as_deref(), None | Some("Never")) {
                return Err(restart_fault(&place).into());
            }
            match self.targets.get(at) {
                Some(MergeTarget::Job) => {
                    pod.main = Some(pod.overlay(container, place, self.role));
                }
                Some(MergeTarget::Service { .. }) => {
                    let overlay = pod.overlay(container, place, PlanRole::Service);
                    pod.services.push(overlay);
                }
                None => {
                    let helper = pod.helper(container, place, PlanRole::Sidecar);
                    pod.helpers.push(helper);
                }
            }
        }
        if pod.shares_processes() && self.role == PlanRole::Job {
            let keeps_alive = pod.main.as_ref().is_some_and(|main| !main.has_command());
            if !keeps_alive && !pod.helpers.is_empty() {
                return Err(self.place.at("spec/shareProcessNamespace").fault(
                    "needs a job container without a command of its own: the others join its PID \
                     namespace",
                ))?;
            }
        }
        Ok(pod)
    }

    fn metadata(&self, merged: &MergedPod) -> Result<ObjectMeta, TemplateFault> {
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
            let problem =
                "is reserved for container-hook, because OCI hooks trust its value: remove it";
            return Err(place.at("annotations").key(key).fault(problem));
        }
        Ok(ObjectMeta {
            name: metadata.name.clone(),
            labels: Some(own("labels", metadata.labels.as_ref())),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        })
    }

    /// Removes fields that are not from the template.
    fn spec(&self, mut spec: PodSpec) -> Result<PodSpec, TemplateFault> {
        let place = self.place.at("spec");
        if !place.at("securityContext").is_from_template() {
            spec.security_context = None;
        }
        if !place.at("imagePullSecrets").is_from_template() {
            spec.image_pull_secrets = None;
        }
        if spec.restart_policy.as_deref().is_some_and(|policy| policy != "Never") {
            return Err(restart_fault(&place));
        }
        Ok(spec)
    }
}

fn restart_fault(place: &FieldPath) -> TemplateFault {
    place.at("restartPolicy").fault(
        "containers are not restarted here: write `Never`, or `Always` for an init container that \
         keeps running",
    )
}

#[cfg(test)]
pub mod tests {
    use container_hook_job::template::BasePod;
    use serde_json::{Value, json};

    use super::*;
    use crate::pod::testing::merge_template;

    /// Splits a merged pod.
    pub fn pod(
        merged: &MergedPod,
        place: FieldPath,
        targets: &[MergeTarget],
    ) -> Result<TemplatePod, TemplateFaults> {
        let parts = PodSplitter { place, role: PlanRole::Job, targets };
        let fields = parts.fields(merged, Vec::new())?;
        parts.pod(merged, fields)
    }

    fn parts(template: &Value) -> Result<TemplatePod, String> {
        let (merged, place) = merge_template(template);
        pod(&merged, place, &[MergeTarget::Job]).map_err(|faults| faults.to_string())
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
        let found = helpers.iter().map(|helper| &helper.overlay);
        let found: Vec<_> = found.map(|one| (one.container.name.as_str(), one.role)).collect();
        let expected =
            [("first", PlanRole::Init), ("stays", PlanRole::Sidecar), ("side", PlanRole::Sidecar)];
        assert_eq!(found, expected);
    }

    #[test]
    fn values_from_the_request_are_not_attributed_to_the_template() {
        let base = "metadata: {labels: {runner-pod: r}}\nspec:\n  restartPolicy: Never\n  \
                    securityContext: {fsGroup: 1001}\n  initContainers: [{name: fs-init, image: i}]\n  \
                    containers: [{name: job, image: a, command: [tail], args: [-f], workingDir: /w, \
                    env: [{name: A, value: b}], ports: [{containerPort: 1}]}]";
        let base = BasePod::parse("pod", base).unwrap();
        let template = "spec: {containers: [{name: $job, env: [{name: C}], args: [x]}]}";
        let merged = PodTemplate::parse("/t", template).unwrap().merge_job(base).unwrap();
        let merged = Arc::new(merged);
        let place = FieldPath::top(Arc::clone(&merged), "/t");
        let pod = pod(&merged, place, &[MergeTarget::Job]).unwrap();
        assert!(pod.helpers.is_empty() && pod.fields.spec.security_context.is_none());
        assert!(pod.fields.metadata.labels.as_ref().unwrap().is_empty());
        let main = pod.main.unwrap();
        assert_eq!((main.given.env, main.given.ports, main.given.mounts), (1, 1, 0));
        // `args` without `command` are for the hook's command.
        assert_eq!(main.container.command.unwrap(), ["tail"]);
        assert_eq!(main.container.args.unwrap(), ["x"]);
        assert_eq!(main.container.working_dir, None);
    }

    #[test]
    fn fields_reserved_for_the_hook_are_rejected() {
        for (template, expected) in [
            (
                json!({"metadata": {"annotations": {"com.github.actions.role": "job"}}}),
                "/metadata/annotations/com.github.actions.role: is reserved for container-hook",
            ),
            (json!({"spec": {"restartPolicy": "OnFailure"}}), "/spec/restartPolicy: containers"),
            (
                json!({"spec": {"containers": [{"name": "$job", "restartPolicy": "Always"}]}}),
                "/spec/containers/0/restartPolicy: containers are not restarted",
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
