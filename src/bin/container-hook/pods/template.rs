//! `container-hook template --kubernetes`: the pod that this program makes, not the reference.

use std::env;
use std::path::{Path, PathBuf};

use oci_hooks::container_hook::audit::AuditLog;
use oci_hooks::container_hook::kubernetes::admin::{self, Preview};
use oci_hooks::container_hook::kubernetes::{KubernetesSettings, PodIdentity};
use oci_hooks::container_hook::request::Request;
use oci_hooks::container_hook::template::{Base, Template};
use oci_hooks::container_hook::{
    HookContext, HookError, JOB_VARIABLES, Log, Runner, RunnerDefaults, RunnerFiles,
};
use oci_hooks::image::{Progress, ProgressEvent};
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::programs::this_program;

use super::doctor::WORK;
use crate::environment::pod;
use crate::error::Error;
use crate::settings::Settings;
use crate::{engine, kubernetes};

/// The default image of the runner.
const RUNNER_IMAGE: &str = "ghcr.io/actions/actions-runner:latest";

/// Says on standard error what there is to say.
struct Notes<'a>(&'a Context);

impl Progress for Notes<'_> {
    fn event(&self, _: ProgressEvent<'_>) {}
}

impl Log for Notes<'_> {
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
    request: &Request,
    template: Option<PathBuf>,
    context: &mut Context,
) -> Result<Exit, Error> {
    let loaded = context.settings::<Settings>()?;
    let settings = &loaded.settings;
    let log = Notes(context);
    let mut of_hook = engine::hook_settings(settings, loaded.file_of("policy"));
    of_hook.template.file = template.or(of_hook.template.file);
    let of_pods = kubernetes::library_settings(settings, &log);
    let image = of_pods.runner_image.clone().unwrap_or_else(|| RUNNER_IMAGE.to_owned());
    let of_pods = KubernetesSettings { runner_image: Some(image), ..of_pods };
    let runner = runner()?;
    let identity = PodIdentity {
        name: pod::variable(pod::NAME).unwrap_or_else(|| runner.name.clone()),
        claim: pod::variable(pod::CLAIM),
        program: this_program().unwrap_or_default(),
    };
    let audit = AuditLog::open(None).map_err(|error| Box::new(HookError::from(error)))?;
    let of_call = HookContext { settings: &of_hook, runner: &runner, audit: &audit, log: &log };
    let command = &request.command;
    let made = admin::preview(&of_call, &of_pods, &identity, command).map_err(Box::new)?;
    let Preview { pod, secrets, notes } = made.ok_or(Error::NoPod { command: command.name() })?;
    notes.iter().for_each(|note| context.note(note));
    for (name, keys) in secrets {
        context.note(&format!("secret {name} is made before it, with {}", keys.join(", ")));
    }
    match context.is_json() {
        true => context.json(&pod)?,
        // Nothing is merged any more; it is written in the same way.
        false => context.write(Template::default().merge_job(Base::from(pod))?.yaml())?,
    }
    Ok(Exit::Done)
}

/// Returns the runner that the environment describes, as far as it does.
fn runner() -> Result<Runner, Error> {
    let said = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    let directory =
        |name: &str, or: &str| said(name).map_or_else(|| Path::new(WORK).join(or), PathBuf::from);
    let job = JOB_VARIABLES.iter().filter_map(|(name, _)| Some(((*name).to_owned(), said(name)?)));
    Ok(Runner {
        name: said("RUNNER_NAME").unwrap_or_else(|| "runner".to_owned()),
        temp: directory("RUNNER_TEMP", "_temp"),
        workspace: directory("GITHUB_WORKSPACE", "repo/repo"),
        // Nothing is opened: what is mounted is named only.
        files: RunnerFiles::new(Path::new("/"))?,
        user: (1001, 1001),
        worker: None,
        diag: None,
        workflow: None,
        defaults: RunnerDefaults::default(),
        job: job.collect(),
    })
}
