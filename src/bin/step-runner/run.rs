//! `step-runner run`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use oci_hooks::step_runner::document::{
    Action, Definition, Reference, Run, Spec, Step, StepFile, parse_call, parse_value,
};
use oci_hooks::step_runner::log::Masking;
use oci_hooks::step_runner::resolve::{Caller, Interrupt, MAX_BYTES, Resolver};
use oci_hooks::step_runner::trace::definition_from_text;
use oci_hooks::step_runner::{Type, Value};
use oci_hooks::sys::fs::{PathContext as _, read_bounded};

use crate::error::Error;
use crate::play::{self, JobSpec, LOG_LEVEL, Report};
use crate::{Exit, environment, resolver};

/// Run a step locally
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  step-runner run ./build --input target=release     Step file ./build/step.yml
  step-runner run gitlab.com/group/project@v1        Directory steps of a git repository
  step-runner run registry.example.com/steps/lint:1  Container image
  step-runner run . --format json | jq .status       Machine-readable result

Exit status is 0 if the step succeeded and 1 if it failed; with --pass-exit-code that of the command \
that failed.")]
pub struct RunArgs {
    /// Directory or file of the step, or a reference: URL@REV, IMAGE:TAG, builtin://NAME
    ///
    /// Or a step call in YAML: "step: ./build", "{script: make, env: {A: b}}"
    #[arg(value_name = "STEP", required_unless_present_any = ["git_url", "oci_repository", "text_proto_step_file"])]
    step: Option<String>,
    /// Input of the step; as YAML or JSON, unless it is declared a string (can be repeated)
    #[arg(short, long = "input", value_name = "NAME=VALUE")]
    input: Vec<String>,
    /// Inputs of the step, separated by commas
    #[arg(long = "inputs", value_name = "NAME=VALUE,…", value_delimiter = ',')]
    inputs: Vec<String>,
    /// Environment variable of the step (can be repeated)
    #[arg(short, long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// Job variable, `vars.NAME` in expressions (can be repeated)
    #[arg(long = "var", alias = "job", value_name = "NAME=VALUE")]
    vars: Vec<String>,
    /// Working directory of the step
    #[arg(short = 'C', long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    /// Git repository of the step
    #[arg(long, value_name = "URL", conflicts_with = "step", requires = "git_rev")]
    git_url: Option<String>,
    /// Tag, branch or commit in the repository
    #[arg(long, value_name = "REV", requires = "git_url")]
    git_rev: Option<String>,
    /// Directory of the step file in the repository
    #[arg(long, value_name = "DIR", requires = "git_url")]
    git_dir: Option<String>,
    /// Registry of the step's container image
    #[arg(long, value_name = "HOST", requires = "oci_repository")]
    oci_registry: Option<String>,
    /// Image repository of the step
    #[arg(long, value_name = "NAME", conflicts_with_all = ["step", "git_url"], requires = "oci_registry")]
    oci_repository: Option<String>,
    /// Tag of the step's image
    #[arg(long, value_name = "TAG", requires = "oci_repository", default_value = "latest")]
    oci_tag: String,
    /// Directory of the step file in the image
    #[arg(long, value_name = "DIR", requires = "oci_repository")]
    oci_dir: Option<String>,
    /// Name of the step file in the image
    #[arg(long, value_name = "FILE", requires = "oci_repository")]
    oci_filename: Option<String>,
    /// File with the definition of a step in the text format of protocol buffers
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["step", "git_url", "oci_repository", "input", "inputs", "env"]
    )]
    text_proto_step_file: Option<PathBuf>,
    #[command(flatten)]
    report: Report,
}

/// Prefixes of environment variables that steps do not inherit: job variables are in `vars`.
const PREFIXES: [&str; 4] = ["CI_", "GITLAB_", "FF_", "DOCKER_ENV_"];

pub fn run(args: &RunArgs) -> Result<Exit, Error> {
    let work_dir = fs::canonicalize(&args.directory).at("resolve", &args.directory)?;
    let vars = pairs(&args.vars, "--var")?;
    let mut env = environment::variables();
    let level = play::log_level(&vars, &env)?;
    env.retain(|name, _| !PREFIXES.iter().any(|prefix| name.starts_with(prefix)));
    env.insert(LOG_LEVEL.to_owned(), level);
    let resolver = resolver::open()?;
    let (steps, dir) = match &args.text_proto_step_file {
        Some(path) => text_definition(path)?,
        None => {
            let interrupt = Interrupt::new().map_err(Error::Signals)?;
            // A signal ends the program still, as no job has begun.
            let caller = Caller {
                dir: &work_dir,
                tree: None,
                vars: &vars,
                env: &env,
                interrupt: &interrupt,
            };
            (wrapped(call(args, &resolver, &caller)?), work_dir.clone())
        }
    };
    let (inherited, masking) = (env.clone(), Masking::default());
    let job = JobSpec { steps, work_dir, dir, env, vars, inherited, masking, failed: "" };
    play::play(job, &resolver, &args.report)
}

/// Returns the steps of a job that calls one step.
fn wrapped(step: Step) -> StepFile {
    let run = Run { steps: vec![step], outputs: BTreeMap::new(), delegate: None };
    let definition = Definition { env: BTreeMap::new(), action: Action::Run(run) };
    StepFile { spec: Spec::default(), definition }
}

/// Reads a definition, whose relative references are relative to its directory.
fn text_definition(path: &Path) -> Result<(StepFile, PathBuf), Error> {
    let bytes = read_bounded(path, MAX_BYTES).map_err(Error::Read)?;
    let text = String::from_utf8_lossy(&bytes);
    let definition = definition_from_text(&text)
        .map_err(|source| Error::Definition { path: path.to_owned(), source })?;
    let path = fs::canonicalize(path).at("resolve", path)?;
    let dir = path.parent().expect("a file has a directory").to_owned();
    Ok((StepFile { spec: Spec::default(), definition }, dir))
}

/// Returns the step call that the command line describes.
fn call(args: &RunArgs, resolver: &Resolver, caller: &Caller<'_>) -> Result<Step, Error> {
    let inline = args.step.as_deref().filter(|text| is_call(text));
    let mut step = match inline {
        Some(text) => parse_call(text).map_err(|error| Error::Call(Box::new(error)))?,
        None => Step {
            name: String::new(),
            reference: reference(args, caller.dir)?,
            env: BTreeMap::new(),
            inputs: BTreeMap::new(),
            condition: None,
            continue_on_error: false,
        },
    };
    step.env.extend(pairs(&args.env, "--env")?);
    let given = args.input.iter().chain(&args.inputs).cloned().collect::<Vec<_>>();
    if !given.is_empty() {
        let given = pairs(&given, "--input")?;
        // The step declares the types of its inputs.
        let loaded = resolver.load(&step.reference, caller)?;
        step.inputs.extend(typed(&given, &loaded.file.spec)?);
    }
    Ok(step)
}

/// Returns whether a text is a step call in YAML, `step: ./build`, and not a reference.
fn is_call(text: &str) -> bool {
    let text = text.trim_start();
    ["step:", "func:", "script:", "name:", "{"].iter().any(|start| text.starts_with(start))
}

fn reference(args: &RunArgs, work_dir: &Path) -> Result<Reference, Error> {
    let segments = |dir: &Option<String>| -> Vec<String> {
        let dir = dir.as_deref().unwrap_or_default();
        dir.split('/').filter(|segment| !segment.is_empty()).map(str::to_owned).collect()
    };
    if let (Some(url), Some(rev)) = (&args.git_url, &args.git_rev) {
        let path = segments(&args.git_dir);
        return Ok(Reference::Git { url: url.clone(), rev: rev.clone(), path, filename: None });
    }
    if let (Some(registry), Some(repository)) = (&args.oci_registry, &args.oci_repository) {
        return Ok(Reference::Oci {
            registry: registry.clone(),
            repository: repository.clone(),
            tag: args.oci_tag.clone(),
            path: segments(&args.oci_dir),
            filename: args.oci_filename.clone(),
        });
    }
    let text = args.step.as_deref().expect("the command line asks for one of them");
    // An existing path takes precedence, with or without `./`.
    let is_path = !text.starts_with(['.', '/']) && work_dir.join(text).exists();
    let text = if is_path { format!("./{text}") } else { text.to_owned() };
    Ok(Reference::parse(&text)?)
}

pub fn pairs(texts: &[String], option: &'static str) -> Result<BTreeMap<String, String>, Error> {
    let pair = |text: &String| match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(Error::Pair { option, text: text.clone() }),
    };
    texts.iter().map(pair).collect()
}

/// Parses inputs as their declared types.
pub fn typed(
    given: &BTreeMap<String, String>,
    spec: &Spec,
) -> Result<BTreeMap<String, Value>, Error> {
    let value = |(name, text): (&String, &String)| {
        let kind = spec.inputs.get(name).map_or(Type::String, |input| input.kind);
        if kind == Type::String {
            return Ok((name.clone(), Value::String(text.clone())));
        }
        match parse_value(text).ok().filter(|value| value.kind() == Some(kind)) {
            Some(value) => Ok((name.clone(), value)),
            None => Err(Error::Input { name: name.clone(), kind }),
        }
    };
    given.iter().map(value).collect()
}
