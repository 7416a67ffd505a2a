//! `container-hook template --kubernetes`: the pod that this program creates, instead of that of GitHub's
//! hook.

use std::path::PathBuf;

use container_hook_job::audit::AuditLog;
use container_hook_job::kubernetes::KubernetesSettings;
use container_hook_job::request::HookRequest;
use container_hook_job::template::{BasePod, PodTemplate};
use container_hook_job::{HookContext, HookError, HookLog};
use container_hook_kubernetes::PodIdentity;
use container_hook_kubernetes::admin::{self, PodPreview};
use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_engine_cli::programs::program_path;
use oci_hooks_engine_cli::settings_file;
use oci_hooks_image::{ProgressEvent, PullProgress};

use crate::environment::pod;
use crate::error::HookCommandError;
use crate::settings::HookFileSettings;
use crate::template::runner;
use crate::{engine, kubernetes};

/// Default image of the runner.
const RUNNER_IMAGE: &str = "ghcr.io/actions/actions-runner:latest";

/// The log of a preview: lines and warnings are printed to standard error, all else is dropped.
struct PreviewLog<'a>(&'a CliContext);

impl PullProgress for PreviewLog<'_> {
    fn event(&self, _: ProgressEvent<'_>) {}
}

impl HookLog for PreviewLog<'_> {
    fn group(&self, _: &str) {}
    fn end_group(&self) {}
    fn line(&self, text: &str) {
        self.0.note(text);
    }
    fn warning(&self, text: &str) {
        self.0.warning(text);
    }
    fn debug(&self, _: &str) {}
    fn output(&self, _: &str, _: &[u8]) {}
}

/// Prints the pod of a request with a template.
pub fn run(
    request: &HookRequest,
    template: Option<PathBuf>,
    context: &mut CliContext,
) -> Result<CliExit, HookCommandError> {
    let PodPreview { pod, secrets, notes } = preview(request, template, context)?;
    notes.iter().for_each(|note| context.note(note));
    for (name, keys) in secrets {
        context.note(&format!(
            "secret {name} is created before the pod, with the keys {}",
            keys.join(", ")
        ));
    }
    match context.is_json() {
        true => context.json(&pod)?,
        // Merges an empty template, to write the pod as YAML.
        false => context.write(PodTemplate::default().merge_job(BasePod::from(pod))?.yaml())?,
    }
    Ok(CliExit::Done)
}

/// Returns the pod of a request with a template, without a call to the cluster.
pub fn preview(
    request: &HookRequest,
    template: Option<PathBuf>,
    context: &CliContext,
) -> Result<PodPreview, HookCommandError> {
    let loaded = settings_file::load::<HookFileSettings>(context)?;
    let settings = &loaded.settings;
    let log = PreviewLog(context);
    let mut of_hook = engine::hook_settings(settings, loaded.file_of("policy"));
    of_hook.template.file = template.or(of_hook.template.file);
    let of_pods = kubernetes::library_settings(settings, &log);
    let image = of_pods.runner_image.clone().unwrap_or_else(|| RUNNER_IMAGE.to_owned());
    let of_pods = KubernetesSettings { runner_image: Some(image), ..of_pods };
    let runner = runner()?;
    let identity = PodIdentity {
        name: pod::variable(pod::NAME).unwrap_or_else(|| runner.name.clone()),
        claim: pod::variable(pod::CLAIM),
        program: program_path().unwrap_or_default(),
    };
    let audit = AuditLog::open(None).map_err(|error| Box::new(HookError::from(error)))?;
    let of_call = HookContext { settings: &of_hook, runner: &runner, audit: &audit, log: &log };
    let command = &request.command;
    let made = admin::preview(&of_call, &of_pods, &identity, command).map_err(Box::new)?;
    made.ok_or(HookCommandError::NoPod { command: command.name() })
}
