//! `oci-hooks inject`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use oci_hooks::hooks::capture::HookRecorder;
use oci_hooks::hooks::pipeline::{InjectedConfig, MissingProgramPolicy, PipelineReport};
use oci_hooks::hooks::trust::TrustOptions;
use oci_hooks::hooks::{
    ConfigDocument, ConfigError, Consumer, FilterOptions, Hook, HookDefinition, HookSelection,
    HookStage, LoadedHooks, OciStage, Pipeline,
};
use oci_hooks_cli::exit::CliExit;
use oci_hooks_files::fs::{
    ExpectedFile, FileAt, FileId, PathContext, ReplaceOptions, SymlinkPolicy,
};

use crate::context::{CommandContext, MAX_CONFIG_BYTES, config_path};
use crate::devices::DeviceArgs;
use crate::diff;
use crate::directories::podman_versions_agree;
use crate::error::{Diagnostic, HooksCommandError, add_config_path};
use crate::spec::TypedConfig;
use crate::target::{TargetArgs, reject_hook_file};

/// Inject matching hooks, and CDI devices, into a config.json, as podman does
#[derive(Debug, Args)]
#[command(after_help = "\
Hooks for poststop, which podman runs itself, are injected too, for the runtime to run.

Examples:
  oci-hooks inject config.json > new.json
  oci-hooks inject --diff /run/bundle
  oci-hooks inject --in-place --once --as crio /run/bundle
  oci-hooks inject - --annotation com.example.gpu=all < config.json
  oci-hooks inject --device nvidia.com/gpu=all config.json")]
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
    #[arg(long, conflicts_with = "device")]
    once: bool,

    /// Reject hooks and CDI specifications writable by non-root users; run hooks without `env` with an empty environment; fail
    /// if the program of a hook file does not exist
    #[arg(long)]
    strict: bool,

    /// Skip hook files that cannot be loaded, where the consumer would fail
    #[arg(long)]
    lenient: bool,

    /// Drop hook files whose program does not exist, as podman does, or fail [default: drop; with
    /// --strict: fail]
    #[arg(long, value_enum, value_name = "WHAT")]
    missing_program: Option<MissingAction>,

    /// Fail unless the hook file FILE is in force: a name, with or without .json, or an absolute path
    /// (can be repeated)
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

    /// Record all hooks of the new configuration, also those of the engine and of devices
    #[arg(long, requires = "capture")]
    capture_all: bool,

    /// Inject a device of a CDI specification (can be repeated)
    #[arg(long, value_name = "VENDOR/CLASS=NAME")]
    device: Vec<String>,

    #[command(flatten)]
    devices: DeviceArgs,

    /// Inject prestart hooks at STAGE [default: as the consumer does]
    #[arg(long, value_enum, value_name = "STAGE")]
    prestart: Option<PrestartStage>,

    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PrestartStage {
    #[value(name = "createRuntime")]
    CreateRuntime,
    #[value(name = "prestart")]
    Prestart,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MissingAction {
    Drop,
    Fail,
}

pub fn run(args: &InjectArgs, context: &mut CommandContext) -> Result<CliExit, HooksCommandError> {
    let path = config_path(&args.config);
    let source = ConfigSource::open(&path, args.in_place, context)?;
    let text = args.with_devices(&source.text, &path, context)?;
    if let Some(reason) = exemption(&source.text, &path, context)? {
        context.note(&reason);
        if let Some(file) = &args.extension_out {
            write_extension_hooks(&BTreeMap::new(), file)?;
        }
        let config = args.record_all(text.into_owned(), &path, context)?;
        args.write_result(&source, &config, &path, context)?;
        return Ok(CliExit::Done);
    }
    let (mut pipeline, loaded) = args.load(&source.text, &path, context)?;
    args.keep_bind_mounts(&source.text, &path, &mut pipeline)?;
    let recorder = args.capture.as_deref().map(recorder).transpose()?;
    let mut not_recorded = Vec::new();
    let result = pipeline.run_loaded(loaded, &text, |selection| {
        if let Some(recorder) = &recorder {
            not_recorded = record(selection, recorder);
        }
    });
    let report = match &result {
        Ok(injected) => &injected.report,
        Err(error) => &error.report,
    };
    args.show(report, &not_recorded, context);
    let InjectedConfig { mut config, report, .. } =
        result.map_err(|error| HooksCommandError::of_pipeline(&path, error.failure))?;
    config = args.record_all(config, &path, context)?;
    if !report.repeated.is_empty() {
        let names = report.repeated.iter().filter_map(|file| file.file_name());
        let names: Vec<_> = names.map(|name| name.to_string_lossy()).collect();
        context.note(&format!(
            "the new configuration has the hooks of {} twice, because {} has them already: --once skips those",
            names.join(", "),
            path.display()
        ));
    }
    if !report.hooks.is_empty() {
        warn_of_version(&config, &path, context);
    }
    if let Some(file) = &args.extension_out {
        write_extension_hooks(&report.extension_hooks, file)?;
    }
    args.write_result(&source, &config, &path, context)?;
    Ok(CliExit::Done)
}

impl InjectArgs {
    /// Wraps all hooks of the new configuration in the recorder, with `--capture-all`.
    fn record_all(
        &self,
        config: Vec<u8>,
        path: &Path,
        context: &CommandContext,
    ) -> Result<Vec<u8>, HooksCommandError> {
        let Some(dir) = self.capture.as_deref().filter(|_| self.capture_all) else {
            return Ok(config);
        };
        let recorded = add_config_path(path, recorder(dir)?.wrap_all(&config))?;
        for (stage, hook) in recorded.not_recorded {
            let reason = match stage {
                OciStage::StartContainer => {
                    "it runs inside the container, where oci-hooks is missing"
                }
                _ => "its entry in the configuration is invalid",
            };
            context.note(&format!("hook {hook} is not recorded at {stage}: {reason}"));
        }
        Ok(recorded.config)
    }

    /// Returns the configuration with the devices of `--device`, which engines add before the hooks of hook files.
    fn with_devices<'t>(
        &self,
        config: &'t [u8],
        path: &Path,
        context: &CommandContext,
    ) -> Result<Cow<'t, [u8]>, HooksCommandError> {
        if self.device.is_empty() {
            return Ok(Cow::Borrowed(config));
        }
        let config = self.devices.add(&self.device, self.strict, config, path, context)?;
        Ok(Cow::Owned(config))
    }

    /// With `--device`, sets whether the container has bind mounts from the configuration without devices: as in podman,
    /// the mounts that devices add do not count for `hasBindMounts`.
    fn keep_bind_mounts(
        &self,
        config: &[u8],
        path: &Path,
        pipeline: &mut Pipeline,
    ) -> Result<(), HooksCommandError> {
        let known = &mut pipeline.target.has_bind_mounts;
        if !self.device.is_empty() && known.is_none() {
            let rule = pipeline.consumer.bind_mounts;
            let found = ConfigDocument::parse(config).and_then(|it| it.has_bind_mounts(rule));
            *known = Some(add_config_path(path, found)?);
        }
        Ok(())
    }

    /// Loads the hooks. Runs `podman --version` only if versions of podman would read or inject different hooks: that
    /// call takes ten times as long as everything else.
    fn load(
        &self,
        config: &[u8],
        path: &Path,
        context: &mut CommandContext,
    ) -> Result<(Pipeline, LoadedHooks), HooksCommandError> {
        let is_read_alike =
            context.is_consumer_given || context.has_hooks_dirs() || podman_versions_agree();
        if !is_read_alike {
            context.use_installed();
        }
        let pipeline = self.pipeline(path, context)?;
        let loaded = pipeline.load_hooks();
        // Errors of the configuration are ignored here: the pipeline reports them.
        let depends = self.depends_on_version(config, &pipeline, &loaded).unwrap_or(false);
        if !is_read_alike || !depends {
            return Ok((pipeline, loaded));
        }
        context.use_installed();
        Ok((self.pipeline(path, context)?, loaded))
    }

    /// Returns whether versions of podman would inject different hooks.
    fn depends_on_version(
        &self,
        config: &[u8],
        pipeline: &Pipeline,
        loaded: &LoadedHooks,
    ) -> Result<bool, ConfigError> {
        let config = ConfigDocument::parse(config)?;
        let target = config.target_with(pipeline.consumer.bind_mounts, &pipeline.target)?;
        let counts_alike = |version: Consumer| {
            let found = config.target_with(version.bind_mounts, &pipeline.target);
            found.is_ok_and(|found| found.has_bind_mounts == target.has_bind_mounts)
        };
        let counts_alike = Consumer::PODMAN_VERSIONS.into_iter().all(counts_alike);
        let prestart = HookStage::Oci(OciStage::Prestart);
        Ok(loaded.hooks.iter().any(|file| {
            let HookDefinition { stages, when, .. } = &file.definition;
            let is_prestart = self.prestart.is_none() && stages.contains(&prestart);
            (!counts_alike && when.has_bind_mounts.is_some())
                || (is_prestart && when.evaluate(&target).is_ok_and(|found| found.matched))
        }))
    }

    fn pipeline(
        &self,
        path: &Path,
        context: &CommandContext,
    ) -> Result<Pipeline, HooksCommandError> {
        let mut pipeline = Pipeline::for_consumer(&context.consumer);
        if self.no_extension_stages {
            pipeline.load.extension_stages.clear();
        } else if !self.extension_stage.is_empty() {
            pipeline.load.extension_stages.clone_from(&self.extension_stage);
        }
        pipeline.load.dirs = context.directories()?.dirs;
        match self.prestart {
            Some(PrestartStage::CreateRuntime) => {
                pipeline.consumer.prestart = OciStage::CreateRuntime;
            }
            Some(PrestartStage::Prestart) => pipeline.consumer.prestart = OciStage::Prestart,
            None => {}
        }
        pipeline.skip_bad_files = self.lenient;
        pipeline.missing_program = match self.missing_program {
            Some(MissingAction::Drop) => MissingProgramPolicy::Drop,
            Some(MissingAction::Fail) => MissingProgramPolicy::Fail,
            None if self.strict => MissingProgramPolicy::Fail,
            None => MissingProgramPolicy::Drop,
        };
        pipeline.required_hooks.clone_from(&self.require_hook);
        pipeline.target = self.target.overrides(&context.consumer)?;
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
    fn show(&self, report: &PipelineReport, not_recorded: &[String], context: &CommandContext) {
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

/// Returns why the consumer injects no hooks into the container, or `None` if it may inject some.
/// Rejects hook files.
fn exemption(
    text: &[u8],
    path: &Path,
    context: &CommandContext,
) -> Result<Option<String>, HooksCommandError> {
    let config = add_config_path(path, ConfigDocument::parse(text))?;
    reject_hook_file(&config, path)?;
    let annotations = add_config_path(path, config.annotations())?;
    Ok(context.consumer.exemption(&annotations))
}

/// Warns if runtimes may ignore the hooks because of the configuration's `ociVersion`.
fn warn_of_version(config: &[u8], path: &Path, context: &CommandContext) {
    match TypedConfig::parse(config) {
        Ok(config) => {
            if let Some(fault) = config.version_fault() {
                context.warn(&Diagnostic::new("oci-version", Some(path), fault));
            }
        }
        Err(error) if context.verbose => {
            context.note(&format!("a runtime may reject the configuration: {error}"));
        }
        Err(_) => {}
    }
}

/// The configuration as it was read, with the file to replace for `--in-place`.
struct ConfigSource {
    text: Vec<u8>,
    file: Option<(FileAt, FileId)>,
}

impl ConfigSource {
    fn open(
        path: &Path,
        in_place: bool,
        context: &CommandContext,
    ) -> Result<Self, HooksCommandError> {
        if !in_place {
            return Ok(ConfigSource { text: context.read_config(path)?, file: None });
        }
        if path == OsStr::new("-") {
            return Err(HooksCommandError::Usage {
                message: "--in-place cannot be combined with standard input".to_owned(),
                hint: Some("omit --in-place, or name a file".to_owned()),
            });
        }
        let file = FileAt::open(path, SymlinkPolicy::Follow)?;
        let (text, id) = file.read(MAX_CONFIG_BYTES)?;
        Ok(ConfigSource { text, file: Some((file, id)) })
    }
}

impl InjectArgs {
    /// Writes the new configuration, or the diff, to its destination.
    fn write_result(
        &self,
        source: &ConfigSource,
        new: &[u8],
        path: &Path,
        context: &mut CommandContext,
    ) -> Result<(), HooksCommandError> {
        if self.diff {
            return diff::write(context, &source.text, new, &path.to_string_lossy());
        }
        if let Some((file, id)) = &source.file {
            if new != source.text {
                let expected = ExpectedFile::Unchanged(*id);
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
fn recorder(dir: &Path) -> Result<HookRecorder, HooksCommandError> {
    let dir = std::path::absolute(dir).with_path("find", dir)?;
    let this = std::env::current_exe().with_path("find", Path::new("oci-hooks"))?;
    Ok(HookRecorder::new(&this, &dir)?)
}

/// Wraps hooks for recording, and returns a note for each that cannot be recorded.
fn record(selection: &mut HookSelection<'_>, recorder: &HookRecorder) -> Vec<String> {
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

/// Writes `{stage: [hook…]}`, or `null` if there are no hooks, as podman's library returns them.
fn write_extension_hooks(
    hooks: &BTreeMap<String, Vec<Hook>>,
    file: &Path,
) -> Result<(), HooksCommandError> {
    let hooks = if hooks.is_empty() { None } else { Some(hooks) };
    let mut text = serde_json::to_vec(&hooks).expect("hooks are strings, numbers and lists");
    text.push(b'\n');
    write_file(file, &text)
}

fn write_file(path: &Path, content: &[u8]) -> Result<(), HooksCommandError> {
    if path == OsStr::new("-") {
        return Err(HooksCommandError::Usage {
            message: "--output and --extension-out do not support `-`: without --output, the configuration \
                      goes to standard output"
                .to_owned(),
            hint: Some("name a file".to_owned()),
        });
    }
    let file = FileAt::open(path, SymlinkPolicy::Follow)?;
    Ok(file.replace(content, &ReplaceOptions::default())?)
}
