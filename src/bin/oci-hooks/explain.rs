//! `oci-hooks explain`: why a hook is injected or not.

pub mod consumers;
mod human;
mod origin;
mod report;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::Args;
use clap_complete::ArgValueCandidates;
use oci_hooks::hooks::manage::ManageError;
use oci_hooks::hooks::{self, ConfigDocument};
use oci_hooks_cli::exit::CliExit;

use crate::container::{self, ContainerConfig, ContainerEngine, ContainerRules, EngineContainer};
use crate::context::{CommandContext, config_path};
use crate::devices::DeviceArgs;
use crate::directories;
use crate::doctor::host::DoctorHost;
use crate::error::{HooksCommandError, add_config_path};
use crate::remove::complete_active;
use crate::target::{TargetArgs, reject_hook_file};
pub use human::warn_of_refusal;
use origin::HookSources;
use report::{ContainerReport, ExplainReport};

/// Explain which hooks are injected into a container, and why the others are not
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oci-hooks explain web
  oci-hooks explain --engine containerd 3f2a
  oci-hooks explain config.json
  oci-hooks explain --hook oci-nvidia-hook.json /run/bundle
  oci-hooks explain --consumers config.json

A name that is also a path is read as a path, unless --engine is given. Containers are looked up
with podman, docker, crio and ctr. Without --as and --hooks-dir, the container's engine decides
which hook files are read, and how.

Exit status is 1 when no hook (with --hook: none of those named) would be injected.")]
pub struct ExplainArgs {
    /// Name or id of a container, an OCI config.json, a bundle directory, or - for standard input [default: config.json]
    #[arg(value_name = "NAME|CONFIG|BUNDLE")]
    config: Option<PathBuf>,

    /// Explain a container of this engine only
    #[arg(long, value_enum, value_name = "ENGINE", requires = "config")]
    engine: Option<ContainerEngine>,

    /// Explain only this hook file, named with or without .json (can be repeated)
    #[arg(long, value_name = "NAME", add = ArgValueCandidates::new(complete_active))]
    hook: Vec<OsString>,

    /// Compare all consumers, one column each
    #[arg(long)]
    consumers: bool,

    #[command(flatten)]
    devices: DeviceArgs,

    #[command(flatten)]
    target: TargetArgs,
}

impl ExplainArgs {
    /// Finds the container, unless the argument is a path or is missing.
    fn find_container(
        &self,
        host: &DoctorHost,
    ) -> Result<Option<EngineContainer>, HooksCommandError> {
        let Some(path) = &self.config else { return Ok(None) };
        let name = path.to_str().filter(|name| container::is_name(name));
        match name {
            Some(name) if self.engine.is_some() || !path.exists() => {
                container::find(name, self.engine, host)
            }
            _ => Ok(None),
        }
    }

    /// Returns whether a hook file is selected by `--hook`.
    fn selects_hook(&self, name: &str) -> bool {
        self.hook.is_empty() || self.hook.iter().any(|wanted| is_named(name, wanted))
    }
}

/// Returns whether a hook file has a name, which may lack its `.json`.
fn is_named(file: &str, name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    file == name || file.strip_suffix(".json") == Some(&name)
}

pub fn run(args: &ExplainArgs, context: &mut CommandContext) -> Result<CliExit, HooksCommandError> {
    let host = DoctorHost::current();
    let container = args.find_container(&host)?;
    let mut rules = container.as_ref().map(|container| container.rules(&host)).transpose()?;
    match &mut rules {
        Some(rules) if context.is_consumer_given => {
            let consumer = context.consumer.clone();
            *rules = ContainerRules { consumer, by: "--as".to_owned(), dirs: None, exempt: None };
        }
        Some(rules) => context.consumer = rules.consumer.clone(),
        None => context.use_installed(),
    }
    let (path, text) = match container.as_ref().map(|container| &container.config) {
        Some(ContainerConfig::Text { text, by }) => (PathBuf::from(by), text.clone()),
        Some(ContainerConfig::File { path, .. }) => (path.clone(), context.read_config(path)?),
        None => {
            let path = args.config.as_deref().unwrap_or(Path::new("config.json"));
            let path = config_path(path);
            let text = context.read_config(&path).map_err(|error| match (&args.config, error) {
                (None, error @ HooksCommandError::Path(_)) => HooksCommandError::Hinted {
                    error: Box::new(error),
                    hint: "pass a config.json, its bundle, or the name of a container".to_owned(),
                },
                (_, error) => error,
            })?;
            (path, text)
        }
    };
    let config = add_config_path(&path, ConfigDocument::parse(&text))?;
    reject_hook_file(&config, &path)?;
    if args.consumers {
        return consumers::run(args, &config, &path, context);
    }
    let target = args.target.target(&config, &path, &context.consumer)?;
    let directories = match rules.as_mut().and_then(|rules| rules.dirs.take()) {
        Some(configured) => context.directories_or(configured),
        None => context.directories()?,
    };
    let loaded = hooks::load(&context.load_options(&directories));
    let mut report =
        ExplainReport::new(&loaded, &target, &context.consumer, |name| args.selects_hook(name));
    let annotations = add_config_path(&path, config.annotations())?;
    let exemption = rules.as_ref().and_then(|rules| rules.exempt.clone());
    if let Some(reason) = exemption.or_else(|| context.consumer.exemption(&annotations)) {
        report.exempt_hooks(reason);
    }
    if loaded.hooks.iter().any(|file| file.definition.when.has_bind_mounts == Some(true)) {
        report.target.unclear_mounts =
            args.target.unclear_mounts(&config, &path, &context.consumer)?;
    }
    report.target.unclear_annotations = args.target.has_unclear_annotations(&context.consumer)
        && loaded.hooks.iter().any(|file| !file.definition.when.annotations.is_empty());
    report.add_findings(&context.consumer);
    report.add_directories(&directories, |name| args.selects_hook(name));
    if let Some(name) = args.hook.iter().find(|name| !report.has_file(name)) {
        let error = ManageError::NoSuchHook { name: name.clone() };
        return Err(directories::explain_error(error, &directories, &context.consumer));
    }
    if let (Some(container), Some(rules)) = (&container, &rules) {
        let mounts = (target.has_bind_mounts, args.target.mounts_source());
        report.container = Some(ContainerReport::new(container, rules, &directories, mounts));
    }
    if config.document().root().get("hooks").is_some() {
        let sources = HookSources {
            hooks: &loaded.hooks,
            consumer: &context.consumer,
            registry: &args.devices.load(context),
            devices: report.requested_devices().collect(),
        };
        report.hooks = sources.explain(&config);
    }
    if context.is_json() {
        context.json(&report)?;
    } else {
        human::write(&report, context)?;
    }
    Ok(if report.injects_any() { CliExit::Done } else { CliExit::Findings })
}
