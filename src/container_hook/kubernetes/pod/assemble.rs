//! The pod of checked containers, put together, merged with the template, and made ours again.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod, PodSecurityContext, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::agent::{self, INIT, RUNNER_ID};
use super::asked::Asked;
use super::ceilings;
use super::error::PodError;
use super::finish::{Finish, labels, owner, place, pull_secrets};
use super::health;
use super::hosts;
use super::made::{ImageFacts, MadePod, PodService};
use super::names::{self, ContainerNames};
use super::options::{self, Idle};
use super::pod_wide::PodWide;
use super::ports::{self, Listeners};
use super::program;
use super::restricted;
use super::secrets::{Logins, Values};
use super::volumes::{Volumes, claim};
use crate::container::new_id;
use crate::container_hook::context::HookContext;
use crate::container_hook::error::HookError;
use crate::container_hook::kubernetes::own_pod::OwnPod;
use crate::container_hook::kubernetes::settings::KubernetesSettings;
use crate::container_hook::plan::{ContainerRequest, JobRequest, Role};
use crate::container_hook::request::{ContainerArgs, PrepareJob};
use crate::container_hook::template::{Base, Target, Template, base};

/// The name of the container that steps run in.
const JOB: &str = "job";

/// What pods are made from besides the request.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    pub context: &'a HookContext<'a>,
    pub settings: &'a KubernetesSettings,
    pub own: &'a OwnPod,
    /// The pod of the job, for a step of it.
    pub job: Option<&'a Pod>,
}

/// A pod on its way.
struct Draft<'a> {
    inputs: Inputs<'a>,
    /// What tells this pod's objects from others of the runner.
    id: String,
    volumes: Volumes<'a>,
    names: ContainerNames,
    values: Values,
    logins: Logins,
    wide: PodWide,
    containers: Vec<Container>,
    targets: Vec<Target>,
    notes: Vec<String>,
    idle: Vec<(Idle, Vec<String>)>,
}

/// Returns the pod of these containers: that of the job or step first, if there is one. `template_names` has
/// more names for each, by which a template finds it.
pub fn pod(
    inputs: Inputs<'_>,
    asked: &[Asked<'_>],
    template_names: &[String],
) -> Result<MadePod, HookError> {
    let Inputs { context, settings, own, .. } = inputs;
    let is_step = asked.first().is_some_and(|first| first.role == Role::Step);
    let has_agent = asked.first().is_some_and(|first| first.role != Role::Service);
    let mut draft = Draft::new(inputs)?;
    for (at, one) in asked.iter().enumerate() {
        draft.add(one, template_names.get(at)).map_err(HookError::of(&one.title))?;
    }
    draft.compare_ports(asked)?;
    let program = match asked.first() {
        Some(step) if is_step => Some(program::of_step(step).map_err(HookError::of(&step.title))?),
        _ => None,
    };

    let base = draft.base(is_step, has_agent);
    let metadata = base.metadata.clone();
    let file = context.settings.template.file.as_deref();
    let template = file.map(Template::read).transpose()?.unwrap_or_default();
    let base = Base::new(base, draft.targets.clone());
    let merged = if is_step { template.merge_step(base)? } else { template.merge_job(base)? };
    draft.notes.extend(merged.notes.iter().map(ToString::to_string));

    let env = |at: usize| draft.object_name("env", at);
    let mut secrets = draft.values.secrets(env);
    let logins = draft.logins.secrets(|at| draft.object_name("secret", at));
    let mut pod = merged.pod.clone();
    let file = file.map(|file| file.display().to_string()).unwrap_or_default();
    let finish = Finish {
        merged: &merged,
        file: &file,
        own,
        settings,
        metadata: &metadata,
        job: inputs.job,
        notes: Vec::new(),
    };
    draft.notes.extend(finish.run(&mut pod, has_agent));
    draft.notes.append(&mut draft.wide.notes);
    let mut wide = std::mem::take(&mut draft.wide);
    wide.apply(&mut pod);
    let of_hosts = draft.object_name("hosts", 0);
    secrets.extend(hosts::mount(&mut pod, &wide.odd_hosts(), of_hosts, asked.len()));
    let spec = pod.spec.get_or_insert_default();
    pull_secrets(spec, own, &logins);
    if let Some(claim) = claim(settings, own)? {
        place(spec, own, claim);
    }
    draft.notes.extend(ceilings::lower(&context.settings.policy, spec)?);
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
    let services = services.filter(|(one, _)| one.role == Role::Service);
    Ok(MadePod {
        services: services
            .map(|(one, container)| PodService {
                container: container.name.clone(),
                image: one.image.to_owned(),
                context_name: one.args.context_name.clone(),
                names: one.names.clone(),
                ports: ports::published(settings, &one.ports),
            })
            .collect(),
        ports: asked
            .first()
            .filter(|_| has_agent)
            .map_or_else(BTreeMap::new, |first| ports::published(settings, &first.ports)),
        program,
        work: draft.volumes.kind(),
        notes: draft.all_notes(),
        secrets,
        pod,
    })
}

impl<'a> Draft<'a> {
    fn new(inputs: Inputs<'a>) -> Result<Self, PodError> {
        let Inputs { context, settings, own, job } = inputs;
        let policy = &context.settings.policy;
        let mut names = ContainerNames::default();
        names.reserve(JOB);
        names.reserve(INIT);
        let mut wide = PodWide::default();
        if let Some(job) = job {
            wide.services_of(job);
        }
        Ok(Draft {
            inputs,
            id: new_id()[..8].to_owned(),
            volumes: Volumes::new(context.runner, policy, claim(settings, own)?),
            names,
            values: Values::default(),
            logins: Logins::default(),
            wide,
            containers: Vec::new(),
            targets: Vec::new(),
            notes: Vec::new(),
            idle: Vec::new(),
        })
    }

    /// Returns the name of a secret of this pod.
    fn object_name(&self, kind: &str, at: usize) -> String {
        let number = if at == 0 { String::new() } else { format!("-{at}") };
        names::object(&self.inputs.own.name, &format!("{kind}-{}{number}", self.id))
    }

    fn add(&mut self, asked: &Asked<'a>, template_name: Option<&String>) -> Result<(), HookError> {
        let settings = self.inputs.settings;
        let name = match asked.role {
            Role::Service => {
                let image = asked
                    .image
                    .parse()
                    .map(|image: crate::image::Reference| image.base_name().to_owned());
                let wanted = asked.args.context_name.as_ref().or(asked.names.first()).cloned();
                self.names.choose(&wanted.or(image.ok()).unwrap_or_default())
            }
            _ => JOB.to_owned(),
        };
        let (command, args) = program::of_container(asked)?;
        let mut container = Container {
            name,
            image: Some(asked.image.to_owned()),
            command,
            args,
            working_dir: asked.directory().map(str::to_owned),
            ports: ports::of_pod(settings, &asked.ports),
            volume_mounts: Some(self.volumes.mounts(asked, &mut self.notes)?),
            ..Container::default()
        };
        if asked.role != Role::Step {
            container.env = Some(self.env(asked));
        }
        container.readiness_probe = health::of(asked);
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
        self.targets.push(match asked.role {
            Role::Service => {
                let mut names = asked.names.clone();
                names.extend(template_name.cloned());
                Target::Service { names }
            }
            _ => Target::Job,
        });
        self.containers.push(container);
        Ok(())
    }

    /// Returns the variables of a container, whose values are in secrets.
    fn env(&mut self, asked: &Asked<'_>) -> Vec<EnvVar> {
        let pairs = asked.env();
        let mut env = Vec::new();
        for (name, value) in &pairs {
            if names::is_variable(name) {
                let reference = self.values.add(name, value);
                env.push(reference.variable(|at| self.object_name("env", at)));
            } else {
                self.notes.push(format!(
                    "{}: the variable {name:?} is left out: Kubernetes takes letters, digits, `-`, `_` and \
                     `.` in names, and no digit first",
                    asked.title
                ));
            }
        }
        for variable in asked.options.env.iter().filter(|variable| variable.value.is_none()) {
            self.notes.push(format!(
                "{}: --env {} has no effect: in a cluster no variable of an image can be taken away",
                asked.title, variable.name
            ));
        }
        let of_hook = program::of_hook(&pairs).into_iter().map(|(name, value)| EnvVar {
            name: name.to_owned(),
            value: Some(value.to_owned()),
            value_from: None,
        });
        env.extend(of_hook);
        env
    }

    /// Finds containers that would listen on the same port.
    fn compare_ports(&mut self, asked: &[Asked<'_>]) -> Result<(), HookError> {
        let mut listeners = Listeners::default();
        // A step runs in a pod of its own, and what it is for is not known.
        let asked = asked.iter().filter(|one| one.role != Role::Step);
        for one in asked.clone() {
            listeners.add(&one.title, &one.ports)?;
        }
        // A job container does not run what its image is for.
        for one in asked.filter(|one| one.role == Role::Service) {
            let served: Vec<String> = one
                .facts
                .map(|image| image.exposed_ports.iter().cloned().collect())
                .unwrap_or_default();
            self.notes.extend(listeners.served(&one.title, &served));
            listeners.add_served(&one.title, &served);
        }
        Ok(())
    }

    /// Returns the pod that the template is merged into.
    fn base(&self, is_step: bool, has_agent: bool) -> Pod {
        let Inputs { context, settings, own, .. } = self.inputs;
        let kind = if is_step { format!("step-{}", self.id) } else { "workflow".to_owned() };
        let name = names::object(&own.name, &kind);
        let role = if is_step { Role::Step } else { Role::Job };
        let init = has_agent.then(|| vec![agent::init(settings, own, &self.volumes)]);
        let spec = PodSpec {
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
        let metadata = ObjectMeta {
            annotations: Some(context.runner.annotations(role.name(), &name)),
            labels: Some(labels(own)),
            name: Some(name),
            ..ObjectMeta::default()
        };
        Pod { metadata, spec: Some(spec), status: None }
    }

    /// Returns what people should know, each line once.
    fn all_notes(self) -> Vec<String> {
        let idle = self.idle.into_iter().map(|(Idle { option, reason }, titles)| {
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

/// Returns the pod of a job: the job container, if there is one, then the services.
///
/// Images are by the names of the request: what was built of a Dockerfile stands in its place by then.
///
/// # Errors
///
/// Fails with what a container asks for and cannot have, or if the template is none.
pub fn job(
    context: &HookContext<'_>,
    settings: &KubernetesSettings,
    own: &OwnPod,
    job: &PrepareJob,
    images: &ImageFacts,
) -> Result<MadePod, HookError> {
    let JobRequest { container, services } = JobRequest::new(context, job);
    let containers = container.into_iter().chain(services);
    let asked = containers.map(|request| Asked::new(context, settings, request, images));
    let asked = asked.collect::<Result<Vec<_>, _>>()?;
    // By these the reference's templates find services.
    let of_job = job.container.iter().map(|_| String::new());
    let names: Vec<_> = of_job.chain(base::container_names(&job.services)).collect();
    pod(Inputs { context, settings, own, job: None }, &asked, &names)
}

/// Returns the pod of a container step. In the one of the job the services are, which it reaches by their names.
///
/// # Errors
///
/// As [`job`]; and if the step names no program and nothing is known of the image.
pub fn step(
    context: &HookContext<'_>,
    settings: &KubernetesSettings,
    own: &OwnPod,
    step: &ContainerArgs,
    images: &ImageFacts,
    job_pod: Option<&Pod>,
) -> Result<MadePod, HookError> {
    let request = ContainerRequest::new(step, Role::Step);
    let asked = Asked::new(context, settings, request, images)?;
    pod(Inputs { context, settings, own, job: job_pod }, &[asked], &[])
}
