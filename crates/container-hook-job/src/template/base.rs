//! The pod that the Kubernetes hook creates for a request, before the template is merged.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::Path;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EmptyDirVolumeSource, EnvVar, LocalObjectReference, Pod,
    PodSecurityContext, PodSpec, SecurityContext, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use oci_hooks_engine::network::PortMapping;

use super::deserialize::read;
use super::error::TemplateError;
use super::node::{PodNode, ValueOrigin};
use super::read::{read_document, read_text};
use crate::options::CreateOptions;
use crate::request::{ContainerArgs, ImageSource, PrepareJob};
use crate::service_names::RequestedService;
use crate::{HookError, words};

/// Image of the init container that fills the volumes.
const RUNNER_IMAGE: &str = "ghcr.io/actions/actions-runner:latest";

/// ID of the user, and of its group, in [`RUNNER_IMAGE`].
const RUNNER_ID: i64 = 1001;

/// Maximum characters of a pod's name.
const MAX_NAME: usize = 63;

/// Names of the volumes of each pod, in the order of its `volumes`.
const VOLUMES: [&str; 3] = ["externals", "github", "work"];
/// Volumes and their mount paths in jobs, in the order of a container's `volumeMounts`.
const MOUNTS: [(&str, &str); 3] = [("externals", "/__e"), ("work", "/__w"), ("github", "/github")];

/// A pod that a template can be merged into.
#[derive(Clone, Debug)]
pub struct BasePod {
    pub pod: Pod,
    /// Target of each container, in the order of the pod. Entries of a template cannot refer to
    /// containers without a target.
    pub targets: Vec<MergeTarget>,
    /// JSON pointers to values from the request; none if the caller provided the pod.
    requested: Option<BTreeSet<String>>,
}

/// The container that an entry of a template refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MergeTarget {
    /// Container of the job or of a container step: `$job`.
    Job,
    Service {
        /// Names from the workflow. An entry may also use the names of the container and of its image.
        names: Vec<String>,
    },
}

impl From<Pod> for BasePod {
    /// Creates a base from a pod whose first container is the job's; the others are services.
    fn from(pod: Pod) -> Self {
        let count = pod.spec.as_ref().map_or(0, |spec| spec.containers.len());
        let service = || MergeTarget::Service { names: Vec::new() };
        let services = std::iter::repeat_with(service).take(count.saturating_sub(1));
        let targets = std::iter::once(MergeTarget::Job).chain(services).collect();
        BasePod { pod, targets, requested: None }
    }
}

impl BasePod {
    /// Creates a base from a pod and the targets of its containers.
    pub fn new(pod: Pod, targets: Vec<MergeTarget>) -> Self {
        BasePod { pod, targets, requested: None }
    }

    /// Reads a pod from a file: see [`Self::parse`].
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, is larger than [`super::MAX_BYTES`] or is not a pod.
    pub fn read(path: &Path) -> Result<Self, TemplateError> {
        let (file, text) = read_text(path)?;
        BasePod::parse(&file, &text)
    }

    /// Reads a pod, JSON or YAML, whose first container is the job's; the others are services. `file` is the
    /// name in messages.
    ///
    /// # Errors
    ///
    /// Fails if the text is not a pod.
    pub fn parse(file: &str, text: &str) -> Result<Self, TemplateError> {
        let pod = read_document(text).and_then(|document| read::<Pod>(&document, ""));
        Ok(pod.map_err(|fault| fault.into_template_error(file))?.into())
    }

    /// Returns the pod as a tree with the origins of its values.
    pub(super) fn document(&self) -> PodNode {
        let json = serde_json::to_value(&self.pod).expect("a pod has only keys that are strings");
        let origin = |pointer: &str| match &self.requested {
            None => ValueOrigin::Given,
            Some(requested) if contains_pointer(requested, pointer) => ValueOrigin::Request,
            Some(_) => ValueOrigin::Default,
        };
        PodNode::from_json(json, &mut String::new(), &origin)
    }
}

/// Returns whether a value or one of its parents comes from the request.
fn contains_pointer(requested: &BTreeSet<String>, mut pointer: &str) -> bool {
    loop {
        if requested.contains(pointer) {
            return true;
        }
        match pointer.rfind('/') {
            Some(end) => pointer = &pointer[..end],
            None => return false,
        }
    }
}

/// Returns the pod of a job, with the names of services from the request. `runner` is the name of the runner.
///
/// # Errors
///
/// Fails if arguments, options or ports of a container are invalid.
pub fn job(args: &PrepareJob, runner: &str) -> Result<BasePod, HookError> {
    let titles = container_names(&args.services);
    let names = args.services.iter().zip(titles).map(|(service, title)| {
        let options = service.create_options.as_deref().unwrap_or_default();
        let options = CreateOptions::parse(options).map_err(HookError::from);
        let options = options.map_err(HookError::of(&format!("service {title}")))?;
        let key = service.context_name.as_deref();
        Ok(RequestedService::new(key, &options, image(service)).names().collect())
    });
    let names = names.collect::<Result<Vec<_>, HookError>>()?;
    job_with_names(args, runner, names)
}

/// Returns the pod of a job, with these names of services.
pub fn job_with_names(
    args: &PrepareJob,
    runner: &str,
    service_names: Vec<Vec<String>>,
) -> Result<BasePod, HookError> {
    let mut made = RequestedContainers::default();
    let mut targets = Vec::new();
    if let Some(container) = &args.container {
        let job = job_container(container, &mut made).map_err(HookError::of("job container"))?;
        made.containers.push(job);
        targets.push(MergeTarget::Job);
    }
    let names = container_names(&args.services);
    for ((service, name), names) in args.services.iter().zip(names).zip(service_names) {
        let title = format!("service {name}");
        let container =
            service_container(service, name, &mut made).map_err(HookError::of(&title))?;
        made.containers.push(container);
        targets.push(MergeTarget::Service { names });
    }

    let directory = args.container.as_ref().and_then(|args| args.working_directory.as_deref());
    let pull_secret = args.container.as_ref().and_then(|args| args.registry.as_ref()).map(|_| {
        made.requested.insert("/spec/imagePullSecrets".to_owned());
        vec![LocalObjectReference { name: "SECRET".to_owned() }]
    });
    let spec = PodSpec {
        containers: made.containers,
        init_containers: Some(vec![fs_init(directory)]),
        security_context: Some(PodSecurityContext {
            fs_group: Some(RUNNER_ID),
            ..PodSecurityContext::default()
        }),
        image_pull_secrets: pull_secret,
        ..spec()
    };
    Ok(BasePod { pod: pod(runner, "workflow", spec), targets, requested: Some(made.requested) })
}

/// Returns the pod of a container step. `runner` is the name of the runner.
///
/// The container is idle: the step's program is executed in it, with its environment.
pub fn step(args: &ContainerArgs, runner: &str) -> BasePod {
    let container = Container {
        name: "job".to_owned(),
        image: Some(image(args).to_owned()),
        working_dir: Some("/__w".to_owned()),
        ..idle_container()
    };
    let spec = PodSpec { containers: vec![container], ..spec() };
    let requested = Some(BTreeSet::from(["/spec/containers/0/image".to_owned()]));
    BasePod { pod: pod(runner, "step", spec), targets: vec![MergeTarget::Job], requested }
}

/// The containers added to a pod so far, and the JSON pointers to their values from the request.
#[derive(Default)]
struct RequestedContainers {
    containers: Vec<Container>,
    requested: BTreeSet<String>,
}

impl RequestedContainers {
    /// Marks fields of the next container as from the request.
    fn request(&mut self, fields: impl IntoIterator<Item = impl Display>) {
        let index = self.containers.len();
        let fields = fields.into_iter();
        self.requested.extend(fields.map(|field| format!("/spec/containers/{index}/{field}")));
    }

    /// Returns the environment variables of a container.
    fn env(&mut self, args: &ContainerArgs) -> Vec<EnvVar> {
        let asked = args.environment.0.iter();
        // The image sets `HOME`, and empty variables are dropped.
        let asked = asked.filter(|(name, value)| *name != "HOME" && !value.is_empty());
        let mut env: Vec<_> = asked.map(|(name, value)| variable(name, value)).collect();
        self.request((0..env.len()).map(|index| format!("env/{index}")));
        env.push(variable("GITHUB_ACTIONS", "true"));
        if !args.environment.0.contains_key("CI") {
            env.push(variable("CI", "true"));
        }
        env
    }
}

fn job_container(
    args: &ContainerArgs,
    made: &mut RequestedContainers,
) -> Result<Container, HookError> {
    made.request(["image", "ports", "workingDir"]);
    Ok(Container {
        name: "job".to_owned(),
        image: Some(image(args).to_owned()),
        ports: Some(ports(args)?),
        working_dir: args.working_directory.clone(),
        env: Some(made.env(args)),
        ..idle_container()
    })
}

fn service_container(
    args: &ContainerArgs,
    name: String,
    made: &mut RequestedContainers,
) -> Result<Container, HookError> {
    made.request(["name", "image", "ports", "workingDir", "command", "args"]);
    // The arguments of `sh -c` are already split correctly.
    let is_shell = args.entry_point_args.starts_with(&["sh".to_owned(), "-c".to_owned()]);
    let words = match is_shell {
        true => args.entry_point_args.clone(),
        false => words::rejoin(&args.entry_point_args)?,
    };
    Ok(Container {
        name,
        image: Some(image(args).to_owned()),
        ports: Some(ports(args)?),
        working_dir: args.working_directory.clone(),
        command: args.entry_point.clone().map(|program| vec![program]),
        args: Some(words).filter(|words| !words.is_empty()),
        env: Some(made.env(args)),
        volume_mounts: Some(mounts("")),
        ..Container::default()
    })
}

/// Returns the container names of services as in the reference hook: image names, numbered if an image
/// repeats.
pub fn container_names(services: &[ContainerArgs]) -> Vec<String> {
    let bases: Vec<_> = services.iter().map(|args| base_name(image(args))).collect();
    let named = bases.iter().enumerate().map(|(index, base)| {
        let is_same = |other: &&&str| *other == base;
        match bases.iter().filter(is_same).count() {
            1 => (*base).to_owned(),
            _ => format!("{base}-{}", bases[..index].iter().filter(is_same).count()),
        }
    });
    named.collect()
}

/// Returns the last part of an image name, without tag and digest.
pub(super) fn base_name(image: &str) -> &str {
    let last = image.rsplit('/').next().unwrap_or_default();
    last.split([':', '@']).next().unwrap_or_default()
}

fn image(args: &ContainerArgs) -> &str {
    match &args.source {
        ImageSource::Image(image) => image,
        ImageSource::Dockerfile(path) => path,
    }
}

fn ports(args: &ContainerArgs) -> Result<Vec<ContainerPort>, HookError> {
    let mut ports = Vec::new();
    for text in &args.port_mappings {
        // Pods support SCTP; a single host does not yet.
        let (text, sctp) = match text.strip_suffix("/sctp") {
            Some(text) => (text, Some("SCTP".to_owned())),
            None => (text.as_str(), None),
        };
        ports.extend(PortMapping::parse(text)?.into_iter().map(|port| ContainerPort {
            container_port: port.container_port.into(),
            host_ip: port.host_ip.map(|ip| ip.to_string()),
            host_port: port.host_ports.map(|range| (*range.start()).into()),
            protocol: sctp.clone().or(Some(port.protocol.to_string().to_uppercase())),
            ..ContainerPort::default()
        }));
    }
    Ok(ports)
}

/// Returns a container that only keeps running.
fn idle_container() -> Container {
    Container {
        command: Some(vec!["tail".to_owned()]),
        args: Some(vec!["-f".to_owned(), "/dev/null".to_owned()]),
        volume_mounts: Some(mounts("")),
        ..Container::default()
    }
}

/// Returns the init container that fills the volumes.
fn fs_init(working_directory: Option<&str>) -> Container {
    let mut script = "mkdir -p /mnt/externals && mkdir -p /mnt/work && mkdir -p /mnt/github \
                      && mv /home/runner/externals/* /mnt/externals/"
        .to_owned();
    if let Some(workspace) = working_directory.and_then(|path| path.strip_prefix("/__w/")) {
        script += &format!(" && mkdir -p /mnt/work/{workspace}");
    }
    Container {
        name: "fs-init".to_owned(),
        image: Some(RUNNER_IMAGE.to_owned()),
        command: Some(vec!["sh".to_owned(), "-c".to_owned(), script]),
        security_context: Some(SecurityContext {
            run_as_user: Some(RUNNER_ID),
            run_as_group: Some(RUNNER_ID),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(mounts("/mnt")),
        ..Container::default()
    }
}

/// Returns the mounts of all volumes: at their paths in jobs, or by name below `beneath`.
fn mounts(beneath: &str) -> Vec<VolumeMount> {
    let mounts = MOUNTS.iter().map(|(name, path)| VolumeMount {
        name: (*name).to_owned(),
        mount_path: match beneath {
            "" => (*path).to_owned(),
            directory => format!("{directory}/{name}"),
        },
        ..VolumeMount::default()
    });
    mounts.collect()
}

fn variable(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value.to_owned()), value_from: None }
}

/// Returns the fields that all pods have.
fn spec() -> PodSpec {
    let volumes = VOLUMES.iter().map(|name| Volume {
        name: (*name).to_owned(),
        empty_dir: Some(EmptyDirVolumeSource::default()),
        ..Volume::default()
    });
    PodSpec {
        restart_policy: Some("Never".to_owned()),
        volumes: Some(volumes.collect()),
        ..PodSpec::default()
    }
}

fn pod(runner: &str, kind: &str, spec: PodSpec) -> Pod {
    let room = MAX_NAME - kind.len() - 1;
    let end = runner.char_indices().nth(room).map_or(runner.len(), |(end, _)| end);
    let labels = [("runner-pod".to_owned(), runner.to_owned())];
    let metadata = ObjectMeta {
        name: Some(format!("{}-{kind}", &runner[..end])),
        labels: Some(labels.into()),
        annotations: Some([].into()),
        ..ObjectMeta::default()
    };
    Pod { metadata, spec: Some(spec), status: None }
}
