//! `container-hook template`.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand, ValueEnum};
use container_hook::{EngineBackend, JobRootFs, pod};
use container_hook_job::audit::AuditLog;
use container_hook_job::request::{HookCommand, HookRequest};
use container_hook_job::runner::{CallingRunner, JOB_VARIABLES, RunnerDefaults};
use container_hook_job::template::{BasePod, MergeNote, MergeRemark, MergedPod, PodTemplate, base};
use container_hook_job::{HookContext, HookError, HookLog, RunnerFiles};
use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_engine::container::Engine;
use oci_hooks_engine_cli::settings_file::{self, LoadedSettings};
use oci_hooks_files::error::chain;
use oci_hooks_files::fs::read_bounded;
use oci_hooks_image::{ProgressEvent, PullProgress};

use crate::environment::TEMPLATE_VARIABLE;
use crate::error::HookCommandError;
use crate::job_backend::JobBackend;
use crate::settings::HookFileSettings;
use crate::{engine, stdin};

/// Work directory of the runner in its image.
pub const WORK: &str = "/home/runner/_work";

/// Default request.
const EXAMPLE: &str = r#"{
    "command": "prepare_job",
    "responseFile": "/response.json",
    "args": {"container": {"image": "node:22", "workingDirectory": "/__w/repo/repo"}}
}"#;

/// Print the pod of a job with a template applied, or check a template
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true,
    subcommand_value_name = "lint FILE",
    after_help = "\
A template is a YAML file by which an administrator changes the containers of all jobs. The runner
names it in ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE, and so does --template here. It is merged into
the pod that GitHub's hook for Kubernetes would create for the request; without --request and
--base, into that of a job in the container node:22. `template lint FILE` checks a file with the
settings of this machine.

Examples:
  container-hook template lint template.yaml                  Are there mistakes in it?
  container-hook template --template template.yaml --explain  Where does each value come from?
  container-hook template --request request.json              The pod of a job
  container-hook template --base pod.json --for step          The same, merged into another pod
  container-hook template --kubernetes                        The pod that this program creates

Exit status is 0, or 2 if there is a mistake; the message says in which line and column."
)]
pub struct TemplateArgs {
    #[command(subcommand)]
    command: Option<TemplateCommand>,

    /// Request of the runner for which to print the pod; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["base", "kind"])]
    request: Option<PathBuf>,

    /// Pod to merge the template into, JSON or YAML; its first container is the job's
    #[arg(long, value_name = "FILE")]
    base: Option<PathBuf>,

    /// Purpose of the pod of --base
    #[arg(
        long = "for",
        id = "kind",
        value_enum,
        value_name = "KIND",
        requires = "base",
        default_value_t
    )]
    kind: PodKind,

    /// Template to use instead of ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE
    #[arg(long, value_name = "FILE")]
    template: Option<PathBuf>,

    /// Annotate each value with its origin
    #[arg(long)]
    explain: bool,

    /// Print the pod that this program would create in a cluster, by its settings, instead of that of
    /// GitHub's hook
    #[arg(long, conflicts_with_all = ["base", "kind", "explain"])]
    kubernetes: bool,
}

#[derive(Debug, Subcommand)]
enum TemplateCommand {
    /// Check a template
    Lint {
        /// Template to check
        file: PathBuf,
    },
}

/// The purpose of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum PodKind {
    /// A job with its services
    #[default]
    Job,
    /// A container step
    Step,
}

pub fn run(args: &TemplateArgs, context: &mut CliContext) -> Result<CliExit, HookCommandError> {
    if let Some(TemplateCommand::Lint { file }) = &args.command {
        return lint(file, context);
    }
    if args.explain && context.is_json() {
        return Err(HookCommandError::NoComments);
    }
    if args.kubernetes {
        #[cfg(not(feature = "kubernetes"))]
        return Err(crate::job_backend::KubernetesUnsupported.into());
        #[cfg(feature = "kubernetes")]
        return crate::pods::template(
            &HookRequest::parse(&request(args)?)?,
            args.template.clone().or_else(named_template),
            context,
        );
    }
    let template = match args.template.clone().or_else(named_template) {
        Some(path) => PodTemplate::read(&path)?,
        None => PodTemplate::default(),
    };
    let (base, kind) = base(args)?;
    let merged = merge(&template, base, kind)?;
    merged.notes.iter().for_each(|note| context.note(&note.to_string()));
    match (context.is_json(), args.explain) {
        (true, _) => context.json(&merged.pod)?,
        (false, true) => context.write(merged.to_commented_yaml())?,
        (false, false) => context.write(merged.yaml())?,
    }
    Ok(CliExit::Done)
}

/// Checks a template: parses it, merges it into the pod of an example job, and applies the checks of
/// `prepare_job`.
fn lint(file: &Path, context: &mut CliContext) -> Result<CliExit, HookCommandError> {
    let template = PodTemplate::read(file)?;
    let example = HookRequest::parse(EXAMPLE.as_bytes())?;
    let (job, _) = pod_of(&example)?;
    let merged = merge(&template, job, PodKind::Job)?;
    // A container that the example lacks is no mistake: it may be a service of another job.
    let is_of_all_jobs =
        |note: &&MergeNote| !matches!(note.remark, MergeRemark::NoContainer { .. });
    let notes = merged.notes.iter().filter(is_of_all_jobs).map(ToString::to_string);
    let mut lines: Vec<_> = notes.collect();
    let loaded = settings_file::load::<HookFileSettings>(context)?;
    match JobBackend::of(&loaded.settings)? {
        JobBackend::Root | JobBackend::User => {
            lines.extend(pod::check(&Arc::new(merged), &file.display().to_string())?);
            match loaded.settings.host().into_existing_engine() {
                Ok(engine) => check_on_this_machine(&loaded, &engine, file, &example)?,
                Err(error) => context.note(&format!(
                    "policy, secrets and runtimes of this machine are not checked: {}",
                    chain(&error)
                )),
            }
        }
        #[cfg(feature = "kubernetes")]
        JobBackend::Cluster => {
            lines.extend(crate::pods::preview(&example, Some(file.to_owned()), context)?.notes);
        }
    }
    for line in &lines {
        context.line(line)?;
    }
    if lines.is_empty() {
        context.line(format!("{}: no mistakes", file.display()))?;
    }
    Ok(CliExit::Done)
}

/// Checks a template as `prepare_job` does on this machine, with its policy, ConfigMaps, secrets and runtimes.
fn check_on_this_machine(
    loaded: &LoadedSettings<HookFileSettings>,
    engine: &Engine,
    file: &Path,
    example: &HookRequest,
) -> Result<(), HookCommandError> {
    let HookCommand::PrepareJob(job) = &example.command else { return Ok(()) };
    let settings = &loaded.settings;
    let mut of_hook = engine::hook_settings(settings, loaded.file_of("policy"));
    of_hook.template.file = Some(file.to_owned());
    let audit = AuditLog::open(None).map_err(|error| Box::new(HookError::from(error)))?;
    let host = settings.host();
    let backend = EngineBackend {
        context: HookContext {
            settings: &of_hook,
            runner: &runner()?,
            audit: &audit,
            log: &QuietLog,
        },
        settings: &engine::engine_settings(settings, JobRootFs::Image)?,
        engine,
        network: &engine::network(settings),
        registries: &host.registries(|name| env::var(name).ok())?,
        credentials: &host.credentials()?,
    };
    Ok(backend.check_job(job).map_err(Box::new)?)
}

fn merge(
    template: &PodTemplate,
    base: BasePod,
    kind: PodKind,
) -> Result<MergedPod, HookCommandError> {
    Ok(match kind {
        PodKind::Job => template.merge_job(base)?,
        PodKind::Step => template.merge_step(base)?,
    })
}

/// Returns the path of the template that the runner's environment names, if it is not empty.
fn named_template() -> Option<PathBuf> {
    env::var_os(TEMPLATE_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Returns the pod into which the template is merged.
fn base(args: &TemplateArgs) -> Result<(BasePod, PodKind), HookCommandError> {
    if let Some(path) = &args.base {
        return Ok((BasePod::read(path)?, args.kind));
    }
    pod_of(&HookRequest::parse(&request(args)?)?)
}

fn request(args: &TemplateArgs) -> Result<Vec<u8>, HookCommandError> {
    Ok(match &args.request {
        Some(path) if path == Path::new("-") => stdin::read()?,
        Some(path) => read_bounded(path, stdin::MAX_BYTES)?,
        None => EXAMPLE.into(),
    })
}

/// Returns the pod that GitHub's hook for Kubernetes makes of a request.
fn pod_of(request: &HookRequest) -> Result<(BasePod, PodKind), HookCommandError> {
    let runner = env::var("RUNNER_NAME").unwrap_or_else(|_| "runner".to_owned());
    match &request.command {
        HookCommand::PrepareJob(args) => {
            Ok((base::job(args, &runner).map_err(Box::new)?, PodKind::Job))
        }
        HookCommand::RunContainerStep(args) => Ok((base::step(args, &runner), PodKind::Step)),
        other => Err(HookCommandError::NoPod { command: other.name() }),
    }
}

/// Returns the runner of this environment, with defaults for unset variables.
pub fn runner() -> Result<CallingRunner, HookCommandError> {
    let said = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    let directory =
        |name: &str, or: &str| said(name).map_or_else(|| Path::new(WORK).join(or), PathBuf::from);
    let job = JOB_VARIABLES.iter().filter_map(|(name, _)| Some(((*name).to_owned(), said(name)?)));
    Ok(CallingRunner {
        name: said("RUNNER_NAME").unwrap_or_else(|| "runner".to_owned()),
        temp: directory("RUNNER_TEMP", "_temp"),
        workspace: directory("GITHUB_WORKSPACE", "repo/repo"),
        // No file is opened: mounts are only named.
        files: RunnerFiles::new(Path::new("/"))?,
        user: (1001, 1001),
        worker: None,
        diag: None,
        defaults: RunnerDefaults::default(),
        job: job.collect(),
    })
}

/// A log that drops all lines.
struct QuietLog;

impl PullProgress for QuietLog {
    fn event(&self, _: ProgressEvent<'_>) {}
}

impl HookLog for QuietLog {
    fn group(&self, _: &str) {}
    fn end_group(&self) {}
    fn line(&self, _: &str) {}
    fn warning(&self, _: &str) {}
    fn debug(&self, _: &str) {}
    fn output(&self, _: &str, _: &[u8]) {}
}
