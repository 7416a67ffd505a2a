//! `container-hook template`.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand, ValueEnum};
use oci_hooks::container_hook::engine::pod;
use oci_hooks::container_hook::request::{Command, Request};
use oci_hooks::container_hook::template::{Base, Merged, Note, Remark, Template, base};
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::sys::fs::read_bounded;

use crate::environment::TEMPLATE_VARIABLE;
use crate::error::Error;
use crate::stdin;

/// The request that there is a pod for if none is given.
const EXAMPLE: &str = r#"{
    "command": "prepare_job",
    "responseFile": "/response.json",
    "args": {"container": {"image": "node:22", "workingDirectory": "/__w/repo/repo"}}
}"#;

/// Print the pod that a job has with a template, or check a template
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true,
    subcommand_value_name = "lint FILE",
    after_help = "\
A template is a YAML file by which an administrator changes the containers of all jobs. The runner
names it in ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE, and so does --template here. It is merged into
the pod that GitHub's hook for Kubernetes would make of the request; without --request and --base,
into that of a job in the container node:22. `template lint FILE` only checks a file.

Examples:
  container-hook template lint template.yaml                  Are there mistakes in it?
  container-hook template --template template.yaml --explain  Where does each value come from?
  container-hook template --request request.json              The pod of a job
  container-hook template --base pod.json --for step          The same, merged into another pod
  container-hook template --kubernetes                        What this program makes in a cluster

Exit status is 0, or 2 if there is a mistake; the message says in which line and column."
)]
pub struct TemplateArgs {
    #[command(subcommand)]
    command: Option<TemplateCommand>,

    /// Make the pod of a request of the runner; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["base", "kind"])]
    request: Option<PathBuf>,

    /// Merge the template into a pod, JSON or YAML, whose first container is the job's
    #[arg(long, value_name = "FILE")]
    base: Option<PathBuf>,

    /// What the pod is for
    #[arg(
        long = "for",
        id = "kind",
        value_enum,
        value_name = "KIND",
        requires = "base",
        default_value_t
    )]
    kind: Kind,

    /// The template, instead of the one that ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE names
    #[arg(long, value_name = "FILE")]
    template: Option<PathBuf>,

    /// Annotate each value with its origin
    #[arg(long)]
    explain: bool,

    /// Print the pod that this program makes in a cluster, by its settings, instead of that of GitHub's hook
    #[arg(long, conflicts_with_all = ["base", "kind", "explain"])]
    kubernetes: bool,
}

#[derive(Debug, Subcommand)]
enum TemplateCommand {
    /// Check a template
    Lint {
        /// The template
        file: PathBuf,
    },
}

/// The purpose of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// A job with its services
    #[default]
    Job,
    /// A container step
    Step,
}

pub fn run(args: &TemplateArgs, context: &mut Context) -> Result<Exit, Error> {
    if let Some(TemplateCommand::Lint { file }) = &args.command {
        return lint(file, context);
    }
    if args.explain && context.is_json() {
        return Err(Error::NoComments);
    }
    if args.kubernetes {
        #[cfg(not(feature = "kubernetes"))]
        return Err(crate::job_backend::NoKubernetes.into());
        #[cfg(feature = "kubernetes")]
        return crate::pods::template(
            &Request::parse(&request(args)?)?,
            args.template.clone().or_else(named),
            context,
        );
    }
    let template = match args.template.clone().or_else(named) {
        Some(path) => Template::read(&path)?,
        None => Template::default(),
    };
    let (base, kind) = base(args)?;
    let merged = merge(&template, base, kind)?;
    merged.notes.iter().for_each(|note| context.note(&note.to_string()));
    match (context.is_json(), args.explain) {
        (true, _) => context.json(&merged.pod)?,
        (false, true) => context.write(merged.explained())?,
        (false, false) => context.write(merged.yaml())?,
    }
    Ok(Exit::Done)
}

/// Checks a template by itself and against the pods that it will meet.
fn lint(file: &Path, context: &mut Context) -> Result<Exit, Error> {
    let template = Template::read(file)?;
    let example = Request::parse(EXAMPLE.as_bytes())?;
    let (job, _) = pod_of(&example)?;
    let merged = merge(&template, job, Kind::Job)?;
    // Only the job decides whether there is such a service.
    let is_of_all_jobs = |note: &&Note| !matches!(note.remark, Remark::NoContainer { .. });
    let notes: Vec<_> = merged.notes.iter().filter(is_of_all_jobs).collect();
    for note in &notes {
        context.line(note.to_string())?;
    }
    let has_notes = !notes.is_empty();
    let merged = Arc::new(merged);
    let without_meaning = pod::check(&merged, &file.display().to_string())?;
    for line in &without_meaning {
        context.line(line)?;
    }
    if !has_notes && without_meaning.is_empty() {
        context.line(format!("{}: no mistakes", file.display()))?;
    }
    Ok(Exit::Done)
}

fn merge(template: &Template, base: Base, kind: Kind) -> Result<Merged, Error> {
    Ok(match kind {
        Kind::Job => template.merge_job(base)?,
        Kind::Step => template.merge_step(base)?,
    })
}

/// Returns the template that the runner names; an empty name is none.
fn named() -> Option<PathBuf> {
    env::var_os(TEMPLATE_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Returns the pod that the template is merged into.
fn base(args: &TemplateArgs) -> Result<(Base, Kind), Error> {
    if let Some(path) = &args.base {
        return Ok((Base::read(path)?, args.kind));
    }
    pod_of(&Request::parse(&request(args)?)?)
}

/// Returns the text of the request that there is a pod for.
fn request(args: &TemplateArgs) -> Result<Vec<u8>, Error> {
    Ok(match &args.request {
        Some(path) if path == Path::new("-") => stdin::read()?,
        Some(path) => read_bounded(path, stdin::MAX_BYTES)?,
        None => EXAMPLE.into(),
    })
}

/// Returns the pod that the hook for Kubernetes makes of a request.
fn pod_of(request: &Request) -> Result<(Base, Kind), Error> {
    let runner = env::var("RUNNER_NAME").unwrap_or_else(|_| "runner".to_owned());
    match &request.command {
        Command::PrepareJob(args) => Ok((base::job(args, &runner).map_err(Box::new)?, Kind::Job)),
        Command::RunContainerStep(args) => Ok((base::step(args, &runner), Kind::Step)),
        other => Err(Error::NoPod { command: other.name() }),
    }
}
