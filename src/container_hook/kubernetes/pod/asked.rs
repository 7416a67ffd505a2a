//! A container of the request, checked as far as that is possible without a cluster.
//!
//! The policy decides as it does for containers of one host, but for what is not the same there: the
//! runner's files are not the node's, and devices come by way of plugins.

use std::borrow::Cow;
use std::path::{Component, Path};

use super::error::PodError;
use super::ports::Port;
use crate::container_hook::context::HookContext;
use crate::container_hook::error::HookError;
use crate::container_hook::kubernetes::settings::KubernetesSettings;
use crate::container_hook::options::{CreateOptions, NetworkMode};
use crate::container_hook::plan::{ContainerRequest, Role};
use crate::container_hook::policy::{Denied, Policy, PolicyError};
use crate::container_hook::request::{ContainerArgs, ImageSource};
use crate::container_hook::volumes::{Source, Volume};
use crate::container_hook::words::{self, WordsError};
use crate::image::{ImageConfig, Reference};

use super::made::ImageFacts;

/// What labels begin with that select nodes.
const SELECTOR: &str = "node-selector.";

/// A container that the policy allows.
pub struct Asked<'a> {
    pub args: &'a ContainerArgs,
    pub role: Role,
    /// How messages call it: `job container`, `service redis`.
    pub title: String,
    /// What other containers call it.
    pub names: Vec<String>,
    pub options: CreateOptions,
    pub image: &'a str,
    /// What is known of the image.
    pub facts: Option<&'a ImageConfig>,
    pub ports: Vec<Port>,
    /// The arguments of its program.
    pub program_args: Vec<String>,
    /// Those of `volumes:`, then those of `options:`.
    pub volumes: Vec<Volume>,
    /// The labels of nodes that it can be on.
    pub node_selector: Vec<(String, String)>,
    /// What was lowered, a line each.
    pub lowered: Vec<String>,
}

impl<'a> Asked<'a> {
    /// Checks a container: all that its text tells.
    pub fn new(
        context: &HookContext<'_>,
        settings: &KubernetesSettings,
        request: ContainerRequest<'a>,
        images: &'a ImageFacts,
    ) -> Result<Self, HookError> {
        let title = request.role.title(request.names.first());
        let asked = Asked::check(context, settings, request, images, &title);
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
        // What is no name of an image is said here, and not by a kubelet later.
        image.parse::<Reference>()?;
        let written = options.clone();
        let mounts = args.user_mounts.iter().map(Volume::from_mount);
        let mut volumes = mounts.collect::<Result<Vec<_>, _>>()?;
        volumes.append(&mut options.volumes);
        for volume in &mut volumes {
            volume.source = volume.source.clone().of_runner(context.runner.work());
        }
        let mut denials = Vec::new();
        denials.extend(volumes.iter().filter_map(|volume| bind(policy, volume).err()));
        denials.extend(devices(&mut options));
        denials.extend(gpus(policy, &mut options).err());
        let selector = node_selector(settings, &mut options, &mut denials);
        if let Err(PolicyError(others)) = options.check(policy) {
            denials.extend(others);
        }
        if !denials.is_empty() {
            return Err(PolicyError(denials).into());
        }
        options.gpus = written.gpus;
        let lowered = policy.lower(&mut options)?;
        let loosened = CreateOptions { volumes: Vec::new(), ..written };
        context.audit.allowed(context.runner, title, &loosened, &volumes)?;
        let sent = if role == Role::Step { &[][..] } else { &args.port_mappings[..] };
        let mut ports = Vec::new();
        for text in sent.iter().chain(&options.network.publish) {
            ports.extend(Port::parse(text)?);
        }
        ports.extend(options.network.expose.iter().map(Port::exposed));
        Ok(Asked {
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
            lowered: lowered.into_iter().map(|line| format!("{title}: {line}")).collect(),
            options,
        })
    }

    /// Returns the program that the request names instead of the image's; empty if it wants none.
    pub fn entry_point(&self) -> Option<&str> {
        self.args.entry_point.as_deref().or(self.options.entrypoint.as_deref())
    }

    /// Returns the working directory that the request names.
    pub fn directory(&self) -> Option<&str> {
        self.args.working_directory.as_deref().or(self.options.workdir.as_deref())
    }

    /// Returns the variables: those of `--env`, then the request's. Of a name that is there twice, the last
    /// counts.
    pub fn env(&self) -> Vec<(&str, &str)> {
        let sent = &self.args.environment.0;
        let asked = self.options.env.iter().filter(|one| !sent.contains_key(&one.name));
        let asked = asked.filter_map(|one| Some((one.name.as_str(), one.value.as_deref()?)));
        asked.chain(sent.iter().map(|(name, value)| (name.as_str(), value.as_str()))).collect()
    }
}

/// Returns the arguments as they were before the runner tore them at each blank. It tears no word that still
/// has one: then they are whole already.
fn program_args(pieces: &[String]) -> Result<Cow<'_, [String]>, WordsError> {
    let is_whole = pieces.starts_with(&["sh".to_owned(), "-c".to_owned()])
        && pieces.iter().any(|piece| piece.contains(char::is_whitespace));
    if is_whole { Ok(Cow::Borrowed(pieces)) } else { words::rejoin(pieces).map(Cow::Owned) }
}

/// Returns the entry of the policy that a directory of the node is beneath, and the rest of its path; nothing
/// for what is none of the node's.
///
/// # Errors
///
/// Fails if the policy has no such entry. Nothing is resolved: it is another machine's path.
pub fn bind<'p>(policy: &'p Policy, volume: &Volume) -> Result<Option<(&'p Path, String)>, Denied> {
    let Source::Bind { path, .. } = &volume.source else { return Ok(None) };
    let is_plain =
        path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    let found = policy.bind_mounts.iter().filter(|_| is_plain).find_map(|entry| {
        let rest = path.strip_prefix(entry).ok()?.to_str()?;
        Some((entry.as_path(), rest.to_owned()))
    });
    found.map(Some).ok_or_else(|| Denied {
        option: format!("the volume {}:{}", path.display(), volume.target),
        advice: format!(
            "it is not in the runner's work directory, and would be a directory of the node; its admin can \
             allow it with `bind-mounts = [{:?}]` under {}",
            path.display().to_string(),
            policy.section("policy")
        ),
    })
}

/// Takes devices out of the options, of which a pod has none.
fn devices(options: &mut CreateOptions) -> Vec<Denied> {
    let devices = std::mem::take(&mut options.devices);
    let rules = std::mem::take(&mut options.device_rules);
    let devices = devices.iter().map(|device| format!("--device {}", device.host.display()));
    let rules = rules.iter().map(|rule| format!("--device-cgroup-rule {:?}", rule.to_string()));
    let denied = devices.chain(rules).map(|option| Denied {
        option,
        advice: "in a cluster devices come from device plugins: `resources` in the pod template asks for \
                 them, and `--gpus` for graphics cards"
            .to_owned(),
    });
    denied.collect()
}

/// Takes `--gpus` out of the options: whether it is allowed is all that the policy has to say of it.
fn gpus(policy: &Policy, options: &mut CreateOptions) -> Result<(), Denied> {
    if std::mem::take(&mut options.gpus) && policy.gpus.is_none() {
        let advice = format!(
            "its admin can allow it by the table {}, which may be empty",
            policy.section("policy.gpus")
        );
        return Err(Denied { option: "--gpus".to_owned(), advice });
    }
    Ok(())
}

/// Takes the labels that select nodes out of the options.
fn node_selector(
    settings: &KubernetesSettings,
    options: &mut CreateOptions,
    denials: &mut Vec<Denied>,
) -> Vec<(String, String)> {
    let mut selector = Vec::new();
    options.labels.retain(|key, value| {
        let Some(label) = key.strip_prefix(SELECTOR) else { return true };
        selector.push((label.to_owned(), value.clone()));
        false
    });
    if !settings.node_selectors {
        denials.extend(selector.iter().map(|(label, value)| Denied {
            option: format!("--label {SELECTOR}{label}={value}"),
            advice: "its admin can allow it with `node-selectors = true` under [kubernetes] of the settings"
                .to_owned(),
        }));
    }
    selector
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_the_runner_tore_are_whole_again() {
        let pieces = |text: &[&str]| text.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        let args = |text: &[&str]| program_args(&pieces(text)).unwrap().into_owned();
        assert_eq!(args(&["sh", "-c", "'echo", "a", "b'"]), ["sh", "-c", "echo a b"]);
        assert_eq!(args(&["sh", "-c", "echo a 'b'"]), ["sh", "-c", "echo a 'b'"]);
        assert_eq!(args(&["--a b", "'c d'", "-e"]), ["--a", "b", "c d", "-e"]);
    }

    #[test]
    fn a_directory_of_the_node_is_beneath_an_entry_of_the_policy() {
        let policy = Policy { bind_mounts: vec!["/var/cache".into()], ..Policy::default() };
        let volume = |text: &str| Volume::parse(text).unwrap();
        let (entry, rest) = bind(&policy, &volume("/var/cache/a/b:/c")).unwrap().unwrap();
        assert_eq!((entry, rest.as_str()), (Path::new("/var/cache"), "a/b"));
        assert!(bind(&policy, &volume("name:/c")).unwrap().is_none());
        for text in ["/var/cached:/c", "/var/cache/../log:/c", "/:/c"] {
            let denied = bind(&policy, &volume(text)).unwrap_err();
            assert!(denied.to_string().contains("bind-mounts"), "{denied}");
        }
    }
}
