//! The merged pod, taken apart: what the template says of each container, and of all.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, PodSpec, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::check::check;
use super::environment::Sources;
use super::fault::{Fault, Faults, Place};
use super::objects::{Kind, Reference};
use super::overlay::{Facts, Given, Overlay};
use super::volumes::Backing;
use crate::container::Role;
use crate::container_hook::engine::backend::EngineBackend;
use crate::container_hook::error::HookError;
use crate::container_hook::request::{ContainerArgs, Environment, ImageSource, Mount, PrepareJob};
use crate::container_hook::template::TemplateSettings;
use crate::container_hook::template::{Base, Merged, Target, Template, base};
use crate::image::{CredentialFile, ImageConfig};

/// What annotations begin with that only the hook sets.
const RESERVED: &str = "com.github.actions.";

/// The key of a secret that holds logins.
const LOGINS: &str = ".dockerconfigjson";

/// The volumes of the hook's own pod: here they are the runner's directories, each with where it is
/// in containers.
const RUNNER_VOLUMES: [(&str, &str); 3] =
    [("externals", "/__e"), ("work", "/__w"), ("github", "/github")];

/// What a template says of a job or a container step.
#[derive(Debug)]
pub(in crate::container_hook::engine) struct Pod {
    /// Of the job container, or the step.
    pub(in crate::container_hook::engine) main: Option<Overlay>,
    /// Of the services, in the request's order.
    pub(in crate::container_hook::engine) services: Vec<Overlay>,
    /// Init containers in their order, then sidecars.
    pub(in crate::container_hook::engine) helpers: Vec<Helper>,
    pub(super) wide: Arc<Wide>,
}

/// A container that is only in the template.
#[derive(Debug)]
pub(in crate::container_hook::engine) struct Helper {
    pub(in crate::container_hook::engine) name: String,
    /// What a request would say of it.
    pub(in crate::container_hook::engine) args: ContainerArgs,
    pub(in crate::container_hook::engine) overlay: Overlay,
    pub(in crate::container_hook::engine) role: Role,
}

/// What the template says of the pod as a whole.
#[derive(Debug)]
pub(in crate::container_hook::engine) struct Wide {
    /// Only what the template says, and the name.
    pub(super) metadata: ObjectMeta,
    /// Only what the template says; without containers.
    pub(super) spec: PodSpec,
    pub(super) place: Place,
    /// The runner's directories, as the request names them.
    pub(super) system_mounts: Vec<Mount>,
    /// The containers by name, for the downward API.
    containers: BTreeMap<String, Container>,
    is_step: bool,
}

/// One of the runner's directories.
#[derive(Clone, Debug)]
pub(super) struct RunnerDirectory {
    pub(super) path: PathBuf,
    pub(super) read_only: bool,
}

impl Pod {
    /// Merges the admin's template into the pod of a job; none without a template. `names` are those
    /// of the services.
    pub(in crate::container_hook::engine) fn of_job(
        backend: &EngineBackend<'_>,
        job: &PrepareJob,
        names: &[Vec<String>],
    ) -> Result<Option<Self>, HookError> {
        let Some(template) = template(backend)? else { return Ok(None) };
        let mut base = base::job(job, &backend.context.runner.name)?;
        let services = base.targets.iter_mut().filter_map(|target| match target {
            Target::Service { names } => Some(names),
            Target::Job => None,
        });
        for (known, names) in services.zip(names) {
            known.extend(names.iter().cloned());
        }
        let mounts = job.container.as_ref().map(|container| container.system_mounts.clone());
        Pod::new(backend, &template, base, (Role::Job, mounts.unwrap_or_default())).map(Some)
    }

    /// Merges the admin's template into the pod of a container step; none without a template.
    pub(in crate::container_hook::engine) fn of_step(
        backend: &EngineBackend<'_>,
        step: &ContainerArgs,
    ) -> Result<Option<Self>, HookError> {
        let Some(template) = template(backend)? else { return Ok(None) };
        let base = base::step(step, &backend.context.runner.name);
        Pod::new(backend, &template, base, (Role::Step, step.system_mounts.clone())).map(Some)
    }

    fn new(
        backend: &EngineBackend<'_>,
        template: &Template,
        base: Base,
        (role, system_mounts): (Role, Vec<Mount>),
    ) -> Result<Self, HookError> {
        let targets = base.targets.clone();
        let merged = match role {
            Role::Step => template.merge_step(base)?,
            _ => template.merge_job(base)?,
        };
        let merged = Arc::new(merged);
        let file = backend.context.settings.template.file.as_deref().unwrap_or("".as_ref());
        let file = &file.display().to_string();
        say(backend, &merged, file, role)?;
        let place = Place::top(Arc::clone(&merged), file);
        let parts = Parts { place, role, targets: &targets };
        let pod = parts.pod(&merged, system_mounts)?;
        // What is wrong with a volume is wrong whether it is mounted or not.
        pod.wide.backings(backend)?;
        Ok(pod)
    }

    /// Says whether its containers share their process numbers.
    pub(in crate::container_hook::engine) fn shares_processes(&self) -> bool {
        self.wide.spec.share_process_namespace == Some(true)
    }
}

/// Says what there is to say of a merge. Steps of a job repeat nothing that people saw before.
fn say(
    backend: &EngineBackend<'_>,
    merged: &Arc<Merged>,
    file: &str,
    role: Role,
) -> Result<(), Faults> {
    let lines: Vec<String> = check(merged, file)?;
    let notes = merged.notes.iter().map(ToString::to_string);
    for line in notes.chain(lines) {
        if role == Role::Step {
            backend.context.log.debug(&line)
        } else {
            backend.context.log.line(&line)
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
    place: Place,
    role: Role,
    targets: &'a [Target],
}

impl Parts<'_> {
    fn pod(self, merged: &Merged, system_mounts: Vec<Mount>) -> Result<Pod, Faults> {
        let mut spec = merged.pod.spec.clone().unwrap_or_default();
        let containers = std::mem::take(&mut spec.containers);
        let inits = spec.init_containers.take().unwrap_or_default();
        let named = containers.iter().chain(&inits);
        let wide = Arc::new(Wide {
            metadata: self.metadata(merged)?,
            spec: self.spec(spec)?,
            place: self.place.clone(),
            system_mounts,
            containers: named.map(|one| (one.name.clone(), one.clone())).collect(),
            is_step: self.role == Role::Step,
        });
        let mut pod = Pod { main: None, services: Vec::new(), helpers: Vec::new(), wide };
        for (at, container) in inits.into_iter().enumerate() {
            let place = self.place.at("spec/initContainers").item(at);
            // What fills the volumes on Kubernetes: here they are full.
            if place.is_from_template() {
                let role = match container.restart_policy.as_deref() {
                    None | Some("Never") => Role::Init,
                    Some("Always") => Role::Sidecar,
                    Some(_) => return Err(never_again(&place).into()),
                };
                pod.helpers.push(helper(&pod.wide, container, place, role));
            }
        }
        for (at, container) in containers.into_iter().enumerate() {
            let place = self.place.at("spec/containers").item(at);
            if !matches!(container.restart_policy.as_deref(), None | Some("Never")) {
                return Err(never_again(&place).into());
            }
            match self.targets.get(at) {
                Some(Target::Job) => {
                    pod.main = Some(overlay(&pod.wide, container, place, self.role));
                }
                Some(Target::Service { .. }) => {
                    pod.services.push(overlay(&pod.wide, container, place, Role::Service));
                }
                None => {
                    pod.helpers.push(helper(&pod.wide, container, place, Role::Sidecar));
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
        let is_ours = |key: &&String| {
            key.starts_with(RESERVED) || *key == "org.opencontainers.image.ref.name"
        };
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

fn never_again(place: &Place) -> Fault {
    place.at("restartPolicy").fault(
        "nothing is started again here: write `Never`, or `Always` for an init container that is \
         to go on",
    )
}

fn overlay(wide: &Arc<Wide>, mut container: Container, place: Place, role: Role) -> Overlay {
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
    Overlay { role, container, given, place, wide: Arc::clone(wide) }
}

fn helper(wide: &Arc<Wide>, container: Container, place: Place, role: Role) -> Helper {
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
    Helper { name, args, overlay: overlay(wide, container, place, role), role }
}

impl Wide {
    /// Returns the group of volumes that are made for the pod.
    pub(super) fn fs_group(&self) -> Option<u32> {
        let context = self.spec.security_context.as_ref()?;
        context.fs_group.and_then(|group| u32::try_from(group).ok())
    }

    /// Returns a container by its name.
    pub(super) fn container(&self, name: &str) -> Option<&Container> {
        self.containers.get(name)
    }

    /// Returns a volume of the template by its name.
    pub(super) fn volume(&self, name: &str) -> Option<(&Volume, Place)> {
        self.volumes().find(|(volume, _)| volume.name == name)
    }

    fn volumes(&self) -> impl Iterator<Item = (&Volume, Place)> {
        let place = self.place.at("spec/volumes");
        let all = self.spec.volumes.iter().flatten().enumerate();
        all.map(move |(at, volume)| (volume, place.item(at)))
            .filter(|(_, place)| place.is_from_template())
    }

    /// Returns where what is in each volume of the template comes from.
    pub(super) fn backings(
        &self,
        backend: &EngineBackend<'_>,
    ) -> Result<Vec<(&Volume, Backing)>, Fault> {
        let (settings, policy) =
            (&backend.context.settings.template, &backend.context.settings.policy);
        let facts = Facts::unknown(&NO_IMAGE);
        let sources = Sources { settings, wide: self, facts: &facts };
        let volumes = self.volumes();
        volumes
            .map(|(volume, place)| Ok((volume, sources.backing(volume, &place, policy)?)))
            .collect()
    }

    /// Returns the runner's directories that a volume of the hook's own pod stands for, each with
    /// where it is in that; none if it is another volume.
    pub(super) fn runner_volume(
        &self,
        backend: &EngineBackend<'_>,
        name: &str,
        place: &Place,
    ) -> Result<Option<Vec<(PathBuf, RunnerDirectory)>>, Fault> {
        let Some((_, top)) = RUNNER_VOLUMES.iter().find(|(known, _)| *known == name) else {
            return Ok(None);
        };
        let below = self.system_mounts.iter().filter_map(|mount| {
            let below = std::path::Path::new(&mount.target).strip_prefix(top).ok()?;
            let path = mount.source.as_ref()?.into();
            Some((below.to_owned(), RunnerDirectory { path, read_only: mount.read_only }))
        });
        // What is mounted below `work` and `externals` is in them anyway.
        let is_whole = name != "github";
        let found: Vec<_> =
            below.filter(|(below, _)| !is_whole || below.as_os_str().is_empty()).collect();
        if found.is_empty() && name == "work" {
            let path = backend.context.runner.work().to_owned();
            return Ok(Some(vec![(PathBuf::new(), RunnerDirectory { path, read_only: false })]));
        }
        if found.is_empty() && !self.is_step {
            return Err(place.at("name").fault("is not to be had without a job container"));
        }
        Ok(Some(found))
    }

    /// Returns the logins of `imagePullSecrets`.
    pub(super) fn logins(&self, settings: &TemplateSettings) -> Result<Vec<CredentialFile>, Fault> {
        let mut logins = Vec::new();
        for (at, secret) in self.spec.image_pull_secrets.iter().flatten().enumerate() {
            let place = self.place.at("spec/imagePullSecrets").item(at);
            let reference = Reference { kind: Kind::Secret, name: &secret.name, optional: None };
            let content = reference.key(LOGINS, settings, &place)?.unwrap_or_default();
            let file = CredentialFile::parse(&String::from_utf8_lossy(&content));
            logins.push(file.map_err(|error| place.fault(error.to_string()))?);
        }
        Ok(logins)
    }
}

/// For whoever looks at a container before its image is there.
static NO_IMAGE: std::sync::LazyLock<ImageConfig> = std::sync::LazyLock::new(ImageConfig::default);

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::super::fault::tests::merged;
    use super::*;
    use crate::container_hook::template::Base;

    /// Takes a merged pod apart.
    pub(in crate::container_hook::engine) fn pod(
        merged: &Merged,
        place: Place,
        targets: &[Target],
    ) -> Result<Pod, Faults> {
        Parts { place, role: Role::Job, targets }.pod(merged, Vec::new())
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
        let place = Place::top(Arc::clone(&merged), "/t");
        let pod = pod(&merged, place, &[Target::Job]).unwrap();
        assert!(pod.helpers.is_empty() && pod.wide.spec.security_context.is_none());
        assert!(pod.wide.metadata.labels.as_ref().unwrap().is_empty());
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
