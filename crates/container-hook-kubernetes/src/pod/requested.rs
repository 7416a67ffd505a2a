//! A requested container, checked as far as possible without a cluster.
//!
//! The policy applies as on a single host, with two differences: the runner's files are not the node's, and
//! devices come from device plugins.

use std::borrow::Cow;
use std::path::{Component, Path};

use container_hook_job::HookContext;
use container_hook_job::HookError;
use container_hook_job::kubernetes::KubernetesSettings;
use container_hook_job::options::{CreateOptions, GpuOption, NetworkMode};
use container_hook_job::plan::{ContainerRequest, PlanRole};
use container_hook_job::policy::{Policy, PolicyDenial, PolicyError};
use container_hook_job::request::{ContainerArgs, ImageSource};
use container_hook_job::volumes::{RequestVolume, VolumeSource};
use container_hook_job::words::{self, WordsError};
use oci_hooks_image::{ImageConfig, ImageReference};

use super::error::PodError;
use super::ports::PodPort;

use super::manifest::ImageFacts;

/// Prefix of labels that select nodes.
const SELECTOR: &str = "node-selector.";

/// A container that the policy allows.
pub struct RequestedContainer<'a> {
    pub args: &'a ContainerArgs,
    pub role: PlanRole,
    /// Title in messages: `job container`, `service redis`.
    pub title: String,
    /// Host names that other containers of the job use for this container.
    pub names: Vec<String>,
    pub options: CreateOptions,
    pub image: &'a str,
    /// Configuration of the image, if known.
    pub facts: Option<&'a ImageConfig>,
    pub ports: Vec<PodPort>,
    pub program_args: Vec<String>,
    /// Volumes of `volumes:`, then those of `options:`.
    pub volumes: Vec<RequestVolume>,
    /// Labels that the node must have.
    pub node_selector: Vec<(String, String)>,
    /// A line for each lowered limit.
    pub lowered: Vec<String>,
    /// A line for each ignored volume.
    pub warnings: Vec<String>,
}

impl<'a> RequestedContainer<'a> {
    /// Checks the request of a container.
    pub fn new(
        context: &HookContext<'_>,
        settings: &KubernetesSettings,
        request: ContainerRequest<'a>,
        images: &'a ImageFacts,
    ) -> Result<Self, HookError> {
        let title = request.role.title(request.names.first());
        let asked = RequestedContainer::check(context, settings, request, images, &title);
        asked.map_err(HookError::of(&title))
    }

    fn check(
        context: &HookContext<'_>,
        settings: &KubernetesSettings,
        request: ContainerRequest<'a>,
        images: &'a ImageFacts,
        title: &str,
    ) -> Result<Self, HookError> {
        let ContainerRequest { args, options, role, names, .. } = request;
        let policy = &context.settings.policy;
        let mut options = options?;
        let defaults = &context.runner.defaults;
        if options.network.mode == NetworkMode::Job {
            options.network.mode = defaults.network;
        }
        if options.platform.is_none() {
            options.platform = defaults.platform.as_ref().map(ToString::to_string);
        }
        let image = match &args.source {
            ImageSource::Image(image) => image.as_str(),
            ImageSource::Dockerfile(path) => {
                return Err(PodError::Dockerfile { dockerfile: path.clone() }.into());
            }
        };
        // An invalid image name is reported here instead of by a kubelet later.
        image.parse::<ImageReference>()?;
        let written = options.clone();
        let mounts = args.user_mounts.iter().map(RequestVolume::from_mount);
        let mut volumes = mounts.collect::<Result<Vec<_>, _>>()?;
        volumes.append(&mut options.volumes);
        for volume in &mut volumes {
            volume.source = volume.source.clone().of_runner(context.runner.work());
        }
        let mut denials = Vec::new();
        let mut warnings = Vec::new();
        // GitHub's hook mounts no volumes in services.
        if role == PlanRole::Service {
            volumes.retain(|volume| {
                let denial = find_bind_entry(policy, volume).err();
                warnings.extend(denial.iter().map(|denial| {
                    let PolicyDenial { option, advice } = denial;
                    format!("{title}: {option} is ignored: {advice}")
                }));
                denial.is_none()
            });
        }
        denials.extend(volumes.iter().filter_map(|volume| find_bind_entry(policy, volume).err()));
        denials.extend(devices(&mut options));
        denials.extend(gpus(policy, &mut options).err());
        let selector = node_selector(settings, &mut options, &mut denials);
        if let Err(PolicyError(others)) = options.check(policy) {
            denials.extend(others);
        }
        if !denials.is_empty() {
            return Err(PolicyError(denials).into());
        }
        options.gpus.clone_from(&written.gpus);
        let lowered = policy.lower_options(&mut options)?;
        let loosened = CreateOptions { volumes: Vec::new(), ..written };
        context.audit.log_allowed(context.runner, title, &loosened, &volumes)?;
        let sent = if role == PlanRole::Step { &[][..] } else { &args.port_mappings[..] };
        let mut ports = Vec::new();
        for text in sent.iter().chain(&options.network.publish) {
            ports.extend(PodPort::parse(text)?);
        }
        ports.extend(options.network.expose.iter().map(PodPort::from_exposed));
        Ok(RequestedContainer {
            args,
            role,
            title: title.to_owned(),
            names,
            image,
            facts: images.get(image),
            ports,
            program_args: program_args(&args.entry_point_args)?.into_owned(),
            volumes,
            node_selector: selector,
            warnings,
            lowered: lowered.into_iter().map(|line| format!("{title}: {line}")).collect(),
            options,
        })
    }

    /// Returns the entry point that the request sets instead of the image's; `None` if the request
    /// leaves it to the image, empty if it only clears the image's.
    pub fn entry_point(&self) -> Option<&str> {
        self.args.entry_point.as_deref().or(self.options.entrypoint.as_deref())
    }

    /// Returns the working directory that the request sets; `None` for the image's.
    pub fn directory(&self) -> Option<&str> {
        self.args.working_directory.as_deref().or(self.options.workdir.as_deref())
    }

    /// Returns the environment: variables of `--env`, overridden by those of the request.
    pub fn env(&self) -> Vec<(&str, &str)> {
        let sent = &self.args.environment.0;
        let asked = self.options.env.iter().filter(|one| !sent.contains_key(&one.name));
        let asked = asked.filter_map(|one| Some((one.name.as_str(), one.value.as_deref()?)));
        asked.chain(sent.iter().map(|(name, value)| (name.as_str(), value.as_str()))).collect()
    }
}

/// Returns the arguments as they were before the runner split them at each blank. A word that contains a
/// blank shows that they were not split.
fn program_args(pieces: &[String]) -> Result<Cow<'_, [String]>, WordsError> {
    let is_whole = pieces.starts_with(&["sh".to_owned(), "-c".to_owned()])
        && pieces.iter().any(|piece| piece.contains(char::is_whitespace));
    if is_whole { Ok(Cow::Borrowed(pieces)) } else { words::rejoin(pieces).map(Cow::Owned) }
}

/// Returns the `bind-mounts` entry of the policy that contains a volume's directory of the node,
/// and the rest of the path; `None` for volumes that are not on the node.
///
/// # Errors
///
/// Fails if the policy has no such entry. Symbolic links are not resolved: the path is on another machine.
pub fn find_bind_entry<'p>(
    policy: &'p Policy,
    volume: &RequestVolume,
) -> Result<Option<(&'p Path, String)>, PolicyDenial> {
    let VolumeSource::Bind { path, .. } = &volume.source else { return Ok(None) };
    let is_plain =
        path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    let found = policy.bind_mounts.iter().filter(|_| is_plain).find_map(|entry| {
        let rest = path.strip_prefix(entry).ok()?.to_str()?;
        Some((entry.as_path(), rest.to_owned()))
    });
    found.map(Some).ok_or_else(|| PolicyDenial {
        option: format!("the volume {}:{}", path.display(), volume.target),
        advice: format!(
            "a path outside of the runner's work directory is a directory of the node; the admin can allow \
             the volume with `bind-mounts = [{:?}]` under {}",
            path.display().to_string(),
            policy.section("policy")
        ),
    })
}

/// Removes devices from the options and denies them: pods have no devices.
fn devices(options: &mut CreateOptions) -> Vec<PolicyDenial> {
    let devices = std::mem::take(&mut options.devices);
    let rules = std::mem::take(&mut options.device_rules);
    let cdi = std::mem::take(&mut options.cdi_devices);
    let devices = devices.iter().map(|device| format!("--device {}", device.host.display()));
    let devices = devices.chain(cdi.iter().map(|name| format!("--device {name}")));
    let rules = rules.iter().map(|rule| format!("--device-cgroup-rule {:?}", rule.to_string()));
    let denied = devices.chain(rules).map(|option| PolicyDenial {
        option,
        advice: "in a cluster, devices come from device plugins: request devices with `resources` in the pod \
                 template, or GPUs with `--gpus`"
            .to_owned(),
    });
    denied.collect()
}

/// Removes `--gpus` from the options; denies it if the policy does not allow it, or if it names devices.
fn gpus(policy: &Policy, options: &mut CreateOptions) -> Result<(), PolicyDenial> {
    let advice = match options.gpus.take() {
        Some(_) if policy.gpus.is_none() => format!(
            "the admin can allow it with the table {}, which may be empty",
            policy.section("policy.gpus")
        ),
        Some(GpuOption::Devices(_)) => {
            "in a cluster, a device plugin chooses the GPUs: write the number of GPUs, as in `--gpus 2`"
                .to_owned()
        }
        _ => return Ok(()),
    };
    Err(PolicyDenial { option: "--gpus".to_owned(), advice })
}

/// Removes the labels that select nodes from the options.
fn node_selector(
    settings: &KubernetesSettings,
    options: &mut CreateOptions,
    denials: &mut Vec<PolicyDenial>,
) -> Vec<(String, String)> {
    let mut selector = Vec::new();
    options.labels.retain(|key, value| {
        let Some(label) = key.strip_prefix(SELECTOR) else { return true };
        selector.push((label.to_owned(), value.clone()));
        false
    });
    if !settings.node_selectors {
        denials.extend(selector.iter().map(|(label, value)| PolicyDenial {
            option: format!("--label {SELECTOR}{label}={value}"),
            advice: "the admin can allow it with `node-selectors = true` under [kubernetes] of the settings"
                .to_owned(),
        }));
    }
    selector
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_split_by_the_runner_are_rejoined() {
        let pieces = |text: &[&str]| text.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        let args = |text: &[&str]| program_args(&pieces(text)).unwrap().into_owned();
        assert_eq!(args(&["sh", "-c", "'echo", "a", "b'"]), ["sh", "-c", "echo a b"]);
        assert_eq!(args(&["sh", "-c", "echo a 'b'"]), ["sh", "-c", "echo a 'b'"]);
        assert_eq!(args(&["--a b", "'c d'", "-e"]), ["--a", "b", "c d", "-e"]);
    }

    #[test]
    fn node_directory_must_be_below_an_entry_of_the_policy() {
        let policy = Policy { bind_mounts: vec!["/var/cache".into()], ..Policy::default() };
        let volume = |text: &str| RequestVolume::parse(text).unwrap();
        let (entry, rest) =
            find_bind_entry(&policy, &volume("/var/cache/a/b:/c")).unwrap().unwrap();
        assert_eq!((entry, rest.as_str()), (Path::new("/var/cache"), "a/b"));
        assert!(find_bind_entry(&policy, &volume("name:/c")).unwrap().is_none());
        for text in ["/var/cached:/c", "/var/cache/../log:/c", "/:/c"] {
            let denied = find_bind_entry(&policy, &volume(text)).unwrap_err();
            assert!(denied.to_string().contains("bind-mounts"), "{denied}");
        }
    }
}
