//! `oci-hooks inject`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use oci_hooks::hooks::capture::Recorder;
use oci_hooks::hooks::pipeline::{Injected, MissingProgram, Report};
use oci_hooks::hooks::trust::TrustOptions;
use oci_hooks::hooks::{FilterOptions, Hook, OciStage, Pipeline, Selection};
use oci_hooks::sys::fs::{Expected, FileAt, FileId, PathContext, ReplaceOptions, Symlinks};

use crate::Exit;
use crate::context::{Context, MAX_CONFIG_BYTES, config_path};
use crate::diff;
use crate::error::{Diagnostic, Error};
use crate::spec::TypedConfig;
use crate::target::TargetArgs;

/// Inject matching hooks into a config.json, as podman does
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oci-hooks inject config.json > new.json
  oci-hooks inject --diff /run/bundle
  oci-hooks inject --in-place --once --as crio /run/bundle
  oci-hooks inject - --annotation com.example.gpu=all < config.json")]
pub struct InjectArgs {
    /// OCI config.json, a bundle directory, or - for standard input
    #[arg(value_name = "CONFIG|BUNDLE", default_value = "config.json")]
    config: PathBuf,

    /// Print a diff instead of the new configuration
    #[arg(long, conflicts_with_all = ["output", "in_place"])]
    diff: bool,

    /// Write the new configuration to FILE
    #[arg(long, short, value_name = "FILE", conflicts_with = "in_place")]
    output: Option<PathBuf>,

    /// Overwrite CONFIG with the new configuration
    #[arg(long)]
    in_place: bool,

    /// Skip hooks that the configuration already has
    #[arg(long)]
    once: bool,

    /// Reject hooks writable by non-root users; run hooks without `env` with an empty environment; fail
    /// if the program of a hook file does not exist
    #[arg(long)]
    strict: bool,

    /// Skip hook files that cannot be loaded, where the consumer would fail
    #[arg(long)]
    lenient: bool,

    /// Drop hook files whose program does not exist, as podman does, or fail [default: drop; with
    /// --strict: fail]
    #[arg(long, value_enum, value_name = "WHAT")]
    missing_program: Option<Missing>,

    /// Fail unless the hook file FILE, a name or an absolute path, is in force (can be repeated)
    #[arg(long, value_name = "FILE")]
    require_hook: Vec<PathBuf>,

    /// Treat S as an extension stage: collect its hooks instead of injecting them (can be repeated)
    /// [default: precreate, if the consumer knows it]
    #[arg(long, value_name = "S")]
    extension_stage: Vec<String>,

    /// Treat no stage as an extension stage, so that precreate is unknown
    #[arg(long, conflicts_with = "extension_stage")]
    no_extension_stages: bool,

    /// Write the hooks of extension stages to FILE as JSON: {stage: [hook...]}, or null if there are none
    #[arg(long, value_name = "FILE")]
    extension_out: Option<PathBuf>,

    /// Run matching precreate hooks, which may rewrite the new configuration
    #[arg(long)]
    run_precreate: bool,

    /// Allow a precreate hook to return an empty configuration
    #[arg(long, requires = "run_precreate")]
    allow_empty: bool,

    /// Record the output and exit status of the injected hooks in DIR
    #[arg(long, value_name = "DIR")]
    capture: Option<PathBuf>,

    /// Inject prestart hooks at STAGE [default: as the consumer does]
    #[arg(long, value_enum, value_name = "STAGE")]
    prestart: Option<Prestart>,

    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Prestart {
    #[value(name = "createRuntime")]
    CreateRuntime,
    #[value(name = "prestart")]
    Prestart,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Missing {
    Drop,
    Fail,
}

pub fn run(args: &InjectArgs, context: &mut Context) -> Result<Exit, Error> {
    let path = config_path(&args.config);
    let source = Source::open(&path, args.in_place, context)?;
    let pipeline = args.pipeline(&path, context)?;
    let recorder = args.capture.as_deref().map(recorder).transpose()?;
    let mut not_recorded = Vec::new();
    let result = pipeline.run_with(&source.text, |selection| {
        if let Some(recorder) = &recorder {
            not_recorded = record(selection, recorder);
        }
    });
    let report = match &result {
        Ok(injected) => &injected.report,
        Err(error) => &error.report,
    };
    args.show(report, &not_recorded, context);
    let Injected { config, report, .. } =
        result.map_err(|error| Error::of_pipeline(&path, error.failure))?;
    if !report.hooks.is_empty() {
        warn_of_version(&config, &path, context);
    }
    if let Some(file) = &args.extension_out {
        write_extension_hooks(&report.extension_hooks, file)?;
    }
    args.put(&source, &config, &path, context)?;
    Ok(Exit::Yes)
}

impl InjectArgs {
    fn pipeline(&self, path: &Path, context: &Context) -> Result<Pipeline, Error> {
        let mut pipeline = Pipeline::for_consumer(&context.consumer);
        if self.no_extension_stages {
            pipeline.load.extension_stages.clear();
        } else if !self.extension_stage.is_empty() {
            pipeline.load.extension_stages.clone_from(&self.extension_stage);
        }
        pipeline.load.dirs = context.directories()?.dirs;
        match self.prestart {
            Some(Prestart::CreateRuntime) => pipeline.consumer.prestart = OciStage::CreateRuntime,
            Some(Prestart::Prestart) => pipeline.consumer.prestart = OciStage::Prestart,
            None => {}
        }
        pipeline.skip_bad_files = self.lenient;
        pipeline.missing_program = match self.missing_program {
            Some(Missing::Drop) => MissingProgram::Drop,
            Some(Missing::Fail) => MissingProgram::Fail,
            None if self.strict => MissingProgram::Fail,
            None => MissingProgram::Drop,
        };
        pipeline.required_hooks.clone_from(&self.require_hook);
        pipeline.target = self.target.overrides()?;
        pipeline.strict = self.strict.then(TrustOptions::of_process);
        pipeline.inject.once = self.once;
        let bundle = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        pipeline.precreate = self.run_precreate.then(|| {
            let mut options = FilterOptions::new(bundle);
            options.allow_empty = self.allow_empty;
            options
        });
        Ok(pipeline)
    }

    /// Prints warnings and notes of the report on standard error.
    fn show(&self, report: &Report, not_recorded: &[String], context: &Context) {
        context.warn_of_problems(&report.problems);
        context.warn_of_missing_dirs(&report.missing_dirs);
        for note in not_recorded {
            context.note(note);
        }
        if report.precreate_skipped && self.extension_out.is_none() {
            context.note(
                "matching precreate hooks were not run: --run-precreate runs them, --extension-out lists them",
            );
        }
        for line in report.precreate_lines() {
            context.note(&line);
        }
    }
}

/// Warns if the configuration has a version that runtimes need not know its hooks by.
fn warn_of_version(config: &[u8], path: &Path, context: &Context) {
    match TypedConfig::parse(config) {
        Ok(config) => {
            if let Some(fault) = config.version_fault() {
                context.warn(&Diagnostic::new("oci-version", path, &fault));
            }
        }
        Err(error) if context.verbose => {
            context.note(&format!("a runtime may reject the configuration: {error}"));
        }
        Err(_) => {}
    }
}

/// The configuration as it was read, with the file to replace for `--in-place`.
struct Source {
    text: Vec<u8>,
    file: Option<(FileAt, FileId)>,
}

impl Source {
    fn open(path: &Path, in_place: bool, context: &Context) -> Result<Self, Error> {
        if !in_place {
            return Ok(Source { text: context.read_config(path)?, file: None });
        }
        if path == OsStr::new("-") {
            return Err(Error::Usage {
                message: "--in-place cannot be combined with standard input".to_owned(),
                hint: Some("omit --in-place, or name a file".to_owned()),
            });
        }
        let file = FileAt::open(path, Symlinks::Follow)?;
        let (text, id) = file.read(MAX_CONFIG_BYTES)?;
        Ok(Source { text, file: Some((file, id)) })
    }
}

impl InjectArgs {
    /// Writes the new configuration, or the diff, to its destination.
    fn put(
        &self,
        source: &Source,
        new: &[u8],
        path: &Path,
        context: &mut Context,
    ) -> Result<(), Error> {
        if self.diff {
            return diff::write(context, &source.text, new, &path.to_string_lossy());
        }
        if let Some((file, id)) = &source.file {
            if new != source.text {
                let expected = Expected::Unchanged(*id);
                file.replace(new, &ReplaceOptions { expected, ..Default::default() })?;
            }
            return Ok(());
        }
        match &self.output {
            Some(output) => write_file(output, new),
            None => context.write(new),
        }
    }
}

/// Returns a recorder, which wraps hooks in `oci-hooks run-hook`.
fn recorder(dir: &Path) -> Result<Recorder, Error> {
    let dir = std::path::absolute(dir).at("find", dir)?;
    let this = std::env::current_exe().at("find", Path::new("oci-hooks"))?;
    Ok(Recorder::new(&this, &dir)?)
}

/// Wraps hooks to be recorded, and returns a note for each that cannot be.
fn record(selection: &mut Selection<'_>, recorder: &Recorder) -> Vec<String> {
    let mut notes = Vec::new();
    for injection in &mut selection.injections {
        let name = injection.file.name.to_string_lossy();
        match recorder.wrap(&injection.hook, &name, injection.stage.name()) {
            Some(wrapped) => injection.hook = Cow::Owned(wrapped),
            None => notes.push(format!(
                "hook {name} is not recorded at {}: it runs inside the container, where oci-hooks is missing",
                injection.stage
            )),
        }
    }
    notes
}

/// Writes `{stage: [hook…]}`, or `null` if there is none, as podman's library returns it.
fn write_extension_hooks(hooks: &BTreeMap<String, Vec<Hook>>, file: &Path) -> Result<(), Error> {
    let hooks = if hooks.is_empty() { None } else { Some(hooks) };
    let mut text = serde_json::to_vec(&hooks).expect("hooks are strings, numbers and lists");
    text.push(b'\n');
    write_file(file, &text)
}

fn write_file(path: &Path, content: &[u8]) -> Result<(), Error> {
    if path == OsStr::new("-") {
        return Err(Error::Usage {
            message: "`-` is not supported here: the configuration goes to standard output"
                .to_owned(),
            hint: Some("name a file".to_owned()),
        });
    }
    let file = FileAt::open(path, Symlinks::Follow)?;
    Ok(file.replace(content, &ReplaceOptions::default())?)
}
