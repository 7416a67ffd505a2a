//! Assembles the pod of checked containers, merges the template, and restores the fields that the hook owns.

use std::collections::BTreeMap;

use container_hook_job::HookContext;
use container_hook_job::HookError;
use container_hook_job::kubernetes::KubernetesSettings;
use container_hook_job::options::IneffectiveOption;
use container_hook_job::plan::{ContainerRequest, JobRequest, PlanRole};
use container_hook_job::request::{ContainerArgs, PrepareJob};
use container_hook_job::runner::PREFIX;
use container_hook_job::template::{BasePod, MergeTarget, PodTemplate, base};
use k8s_openapi::api::core::v1::{Container, EnvVar, Pod, PodSecurityContext, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use oci_hooks_engine::container::new_id;

use super::agent::{self, INIT, RUNNER_ID};
use super::error::PodError;
use super::finish::{PodFinish, labels, owner, place, pull_secrets};
use super::health::HealthCheck;
use super::hosts;
use super::manifest::{ImageFacts, PodManifest, PodService};
use super::maximums;
use super::names::{self, ContainerNames};
use super::options;
use super::pod_wide::PodWide;
use super::ports::{self, PortListeners};
use super::requested::RequestedContainer;
use super::secrets::{PullLogins, SecretValues};
use super::volumes::{PodVolumes, claim};
use super::{program, requests, restricted};
use crate::backend::JOB;
use crate::own_pod::OwnPod;

/// Annotation of a job's pod with the names of its services' containers; a template can add other containers.
pub fn services_annotation() -> String {
    format!("{PREFIX}service-containers")
}

/// Inputs of a pod besides the request.
#[derive(Clone, Copy)]
pub struct PodInputs<'a> {
    pub context: &'a HookContext<'a>,
    pub settings: &'a KubernetesSettings,
    pub own: &'a OwnPod,
    /// The job's pod, for the pod of a container step; `None` for a job.
    pub job: Option<&'a Pod>,
}

/// Parts of a pod that is being assembled.
struct PodDraft<'a> {
    inputs: PodInputs<'a>,
    /// Random id in the names of this pod's objects.
    id: String,
    volumes: PodVolumes<'a>,
    names: ContainerNames,
    values: SecretValues,
    logins: PullLogins,
    wide: PodWide,
    containers: Vec<Container>,
    targets: Vec<MergeTarget>,
    notes: Vec<String>,
    warnings: Vec<String>,
    checks: Vec<HealthCheck>,
    idle: Vec<(IneffectiveOption, Vec<String>)>,
}

/// Returns the pod of the requested containers, with the container of the job or step first.
/// `template_names` has an additional name for each container, by which a template can refer to it.
pub fn pod(
    inputs: PodInputs<'_>,
    asked: &[RequestedContainer<'_>],
    template_names: &[String],
) -> Result<PodManifest, HookError> {
    let PodInputs { context, settings, own, .. } = inputs;
    let is_step = asked.first().is_some_and(|first| first.role == PlanRole::Step);
    let has_agent = asked.first().is_some_and(|first| first.role != PlanRole::Service);
    let mut draft = PodDraft::new(inputs)?;
    for (at, one) in asked.iter().enumerate() {
        draft.add(one, template_names.get(at)).map_err(HookError::of(&one.title))?;
    }
    if draft.volumes.needs_init_container() {
        let settings = KubernetesSettings { image_volumes: Some(false), ..settings.clone() };
        return pod(PodInputs { settings: &settings, ..inputs }, asked, template_names);
    }
    draft.compare_ports(asked);
    let program = match asked.first() {
        Some(step) if is_step => {
            Some(program::step_program(step).map_err(HookError::of(&step.title))?)
        }
        _ => None,
    };

    let base = draft.base(is_step, has_agent);
    let metadata = base.metadata.clone();
    let file = context.settings.template.file.as_deref();
    let template = file.map(PodTemplate::read).transpose()?.unwrap_or_default();
    let base = BasePod::new(base, draft.targets.clone());
    let merged = if is_step { template.merge_step(base)? } else { template.merge_job(base)? };
    draft.notes.extend(merged.notes.iter().map(ToString::to_string));

    let env = |at: usize| draft.object_name("env", at);
    let mut secrets = draft.values.secrets(env);
    let logins = draft.logins.secrets(|at| draft.object_name("secret", at));
    let mut pod = merged.pod.clone();
    let file = file.map(|file| file.display().to_string()).unwrap_or_default();
    let finish = PodFinish {
        merged: &merged,
        file: &file,
        own,
        settings,
        externals: draft.volumes.mounted_externals(),
        metadata: &metadata,
        job: inputs.job,
        notes: Vec::new(),
    };
    draft.notes.extend(finish.run(&mut pod, has_agent));
    draft.notes.append(&mut draft.wide.notes);
    let mut wide = std::mem::take(&mut draft.wide);
    wide.apply(&mut pod);
    let of_hosts = draft.object_name("hosts", 0);
    secrets.extend(hosts::mount(&mut pod, &wide.take_odd_hosts(), of_hosts, asked.len()));
    let spec = pod.spec.get_or_insert_default();
    pull_secrets(spec, own, &logins);
    if let Some(claim) = claim(settings, own)? {
        place(spec, own, claim);
    }
    draft.notes.extend(maximums::lower_limits(&context.settings.policy, spec)?);
    requests::add(settings, &merged, spec);
    // The template may replace a probe.
    draft.checks.retain(|check| check.is_probe_of(spec));
    if settings.restricted {
        let facts: Vec<_> = asked.iter().map(|one| one.facts).collect();
        draft.notes.extend(restricted::fill_in(spec, &facts));
        let faults = restricted::faults(spec);
        if !faults.is_empty() {
            return Err(PodError::NotRestricted(faults).into());
        }
    }

    secrets.extend(logins);
    for secret in &mut secrets {
        secret.metadata.labels = Some(labels(own));
        secret.metadata.owner_references = owner(own, inputs.job);
    }
    let services = asked.iter().zip(&draft.containers);
    let services = services.filter(|(one, _)| one.role == PlanRole::Service);
    Ok(PodManifest {
        services: services
            .map(|(one, container)| PodService {
                container: container.name.clone(),
                image: one.image.to_owned(),
                context_name: one.args.context_name.clone(),
                names: one.names.clone(),
                ports: ports::published_ports(settings, &one.ports),
            })
            .collect(),
        ports: asked
            .first()
            .filter(|_| has_agent)
            .map_or_else(BTreeMap::new, |first| ports::published_ports(settings, &first.ports)),
        program,
        work: draft.volumes.kind(),
        warnings: std::mem::take(&mut draft.warnings),
        checks: std::mem::take(&mut draft.checks),
        notes: draft.into_notes(),
        secrets,
        pod,
    })
}

impl<'a> PodDraft<'a> {
    fn new(inputs: PodInputs<'a>) -> Result<Self, PodError> {
        let PodInputs { context, settings, own, job } = inputs;
        let policy = &context.settings.policy;
        let mut names = ContainerNames::default();
        names.reserve(JOB);
        names.reserve(INIT);
        let mut wide = PodWide::default();
        if let Some(job) = job {
            wide.services_of(job);
        }
        Ok(PodDraft {
            inputs,
            id: new_id()[..8].to_owned(),
            volumes: PodVolumes::new(
                context.runner,
                policy,
                claim(settings, own)?,
                (settings.image_volumes == Some(true)).then(|| agent::runner_image(settings, own)),
            ),
            names,
            values: SecretValues::default(),
            logins: PullLogins::default(),
            wide,
            containers: Vec::new(),
            targets: Vec::new(),
            notes: Vec::new(),
            warnings: Vec::new(),
            checks: Vec::new(),
            idle: Vec::new(),
        })
    }

    /// Returns a name for the pod or one of its secrets; `at` numbers objects of one kind from 0.
    fn object_name(&self, kind: &str, at: usize) -> String {
        let number = if at == 0 { String::new() } else { format!("-{at}") };
        names::object(&self.inputs.own.name, &format!("{kind}-{}{number}", self.id))
    }

    fn add(
        &mut self,
        asked: &RequestedContainer<'a>,
        template_name: Option<&String>,
    ) -> Result<(), HookError> {
        let settings = self.inputs.settings;
        let name = match asked.role {
            PlanRole::Service => {
                let image = asked
                    .image
                    .parse()
                    .map(|image: oci_hooks_image::ImageReference| image.base_name().to_owned());
                let wanted = asked.args.context_name.as_ref().or(asked.names.first()).cloned();
                self.names.choose(&wanted.or(image.ok()).unwrap_or_default())
            }
            _ => JOB.to_owned(),
        };
        let mounts = self.volumes.mounts(asked, &mut self.notes)?;
        let externals = self.volumes.mounted_externals();
        let (command, args) = program::container_command(asked, settings, externals)?;
        let mut container = Container {
            name,
            image: Some(asked.image.to_owned()),
            command,
            args,
            working_dir: asked.directory().map(str::to_owned),
            ports: ports::to_container_ports(settings, &asked.ports),
            volume_mounts: Some(mounts),
            ..Container::default()
        };
        if asked.role != PlanRole::Step {
            container.env = Some(self.env(asked));
        }
        if let Some(check) = HealthCheck::new(asked, &container.name) {
            container.readiness_probe = Some(check.probe());
            self.checks.push(check);
        }
        for idle in options::apply(asked, settings, &mut container, &mut self.wide)? {
            match self.idle.iter_mut().find(|(known, _)| *known == idle) {
                Some((_, titles)) => titles.push(asked.title.clone()),
                None => self.idle.push((idle, vec![asked.title.clone()])),
            }
        }
        self.wide.add(asked)?;
        if let Some(registry) = &asked.args.registry {
            self.logins.add(registry);
        }
        self.notes.extend(asked.lowered.iter().cloned());
        self.warnings.extend(asked.warnings.iter().cloned());
        self.targets.push(match asked.role {
            PlanRole::Service => {
                let mut names = asked.names.clone();
                names.extend(template_name.cloned());
                MergeTarget::Service { names }
            }
            _ => MergeTarget::Job,
        });
        self.containers.push(container);
        Ok(())
    }

    /// Returns the environment of a container, whose values are in secrets.
    fn env(&mut self, asked: &RequestedContainer<'_>) -> Vec<EnvVar> {
        let pairs = asked.env();
        let mut env = Vec::new();
        for (name, value) in &pairs {
            if names::is_variable(name) {
                let reference = self.values.add(name, value);
                env.push(reference.variable(|at| self.object_name("env", at)));
            } else {
                self.notes.push(format!(
                    "{}: the variable {name:?} is left out: Kubernetes accepts only letters, digits, `-`, `_` \
                     and `.` in names, and no leading digit",
                    asked.title
                ));
            }
        }
        for variable in asked.options.env.iter().filter(|variable| variable.value.is_none()) {
            self.notes.push(format!(
                "{}: --env {} has no effect: in a cluster, variables of an image cannot be unset",
                asked.title, variable.name
            ));
        }
        let of_hook = program::hook_variables(&pairs).into_iter().map(|(name, value)| EnvVar {
            name: name.to_owned(),
            value: Some(value.to_owned()),
            value_from: None,
        });
        env.extend(of_hook);
        env
    }

    /// Adds warnings and notes about containers that listen on the same port.
    fn compare_ports(&mut self, asked: &[RequestedContainer<'_>]) {
        let mut listeners = PortListeners::default();
        // A step has its own pod, and the purpose of its image is unknown.
        let asked = asked.iter().filter(|one| one.role != PlanRole::Step);
        for one in asked.clone() {
            self.warnings.extend(listeners.add(&one.title, &one.ports));
        }
        // A job container does not run its image's program.
        for one in asked.filter(|one| one.role == PlanRole::Service) {
            let served: Vec<String> = one
                .facts
                .map(|image| image.exposed_ports.iter().cloned().collect())
                .unwrap_or_default();
            self.notes.extend(listeners.port_warnings(&one.title, &served));
            listeners.add_served(&one.title, &served);
        }
    }

    /// Returns the pod into which the template is merged.
    fn base(&self, is_step: bool, has_agent: bool) -> Pod {
        let PodInputs { context, settings, own, .. } = self.inputs;
        let (kind, role) = match is_step {
            true => ("step", PlanRole::Step),
            false => ("workflow", PlanRole::Job),
        };
        // A kubelet finds pods by their name, and the pod of the runner's last job may still be ending.
        let name = self.object_name(kind, 0);
        let needs_init = has_agent && settings.image_volumes != Some(true);
        let init = needs_init.then(|| vec![agent::init(settings, own, &self.volumes)]);
        let spec = PodSpec {
            runtime_class_name: runtime_class(context),
            containers: self.containers.clone(),
            init_containers: init,
            volumes: Some(self.volumes.pod(has_agent)),
            restart_policy: Some("Never".to_owned()),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            security_context: Some(PodSecurityContext {
                fs_group: Some(own.fs_group.unwrap_or(RUNNER_ID)),
                fs_group_change_policy: Some("OnRootMismatch".to_owned()),
                ..PodSecurityContext::default()
            }),
            ..PodSpec::default()
        };
        let mut annotations = context.runner.annotations(role.name(), &name);
        let job = usize::from(has_agent);
        let services = self.containers.iter().skip(job).map(|service| service.name.as_str());
        let services = services.collect::<Vec<_>>().join(" ");
        // Also if there are none: the workflow must not name others.
        annotations.insert(services_annotation(), services);
        let metadata = ObjectMeta {
            annotations: Some(annotations),
            labels: Some(labels(own)),
            name: Some(name),
            ..ObjectMeta::default()
        };
        Pod { metadata, spec: Some(spec), status: None }
    }

    /// Returns the notes without duplicates.
    fn into_notes(self) -> Vec<String> {
        let idle = self.idle.into_iter().map(|(IneffectiveOption { option, reason }, titles)| {
            format!("{}: --{option} has no effect: {reason}", titles.join(", "))
        });
        let mut notes: Vec<String> = Vec::new();
        for note in idle.chain(self.notes) {
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        notes
    }
}

/// Returns the runtime class that the policy names for the job's repository; `None` if it names
/// none.
pub fn runtime_class(context: &HookContext<'_>) -> Option<String> {
    let repository = context.runner.repository().unwrap_or_default();
    context.settings.policy.runtime(repository).map(str::to_owned)
}

/// Returns the pod of a job: the job container, if there is one, then the services.
///
/// Images are named as in the request: built Dockerfiles are already replaced by their images.
///
/// # Errors
///
/// Fails if a container requests an option that it cannot have, or if the template is invalid.
pub fn job(
    context: &HookContext<'_>,
    settings: &KubernetesSettings,
    own: &OwnPod,
    job: &PrepareJob,
    images: &ImageFacts,
) -> Result<PodManifest, HookError> {
    let JobRequest { container, services } = JobRequest::new(context, job);
    let containers = container.into_iter().chain(services);
    let asked =
        containers.map(|request| RequestedContainer::new(context, settings, request, images));
    let asked = HookError::collect(asked)?;
    // Names by which templates for GitHub's hook refer to services.
    let of_job = job.container.iter().map(|_| String::new());
    let names: Vec<_> = of_job.chain(base::container_names(&job.services)).collect();
    pod(PodInputs { context, settings, own, job: None }, &asked, &names)
}

/// Returns the pod of a container step, which reaches the services in the job's pod by their names.
///
/// # Errors
///
/// Fails like [`job`], and if the step sets no program and the image's configuration is unknown.
pub fn step(
    context: &HookContext<'_>,
    settings: &KubernetesSettings,
    own: &OwnPod,
    step: &ContainerArgs,
    images: &ImageFacts,
    job_pod: Option<&Pod>,
) -> Result<PodManifest, HookError> {
    let request = ContainerRequest::new(step, PlanRole::Step);
    let asked = RequestedContainer::new(context, settings, request, images)?;
    pod(PodInputs { context, settings, own, job: job_pod }, &[asked], &[])
}
