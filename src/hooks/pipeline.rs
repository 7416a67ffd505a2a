//! From hook directories to a new configuration in one call: load, select, trust, inject, precreate.
//!
//! The caller reads and writes the configuration. Only hook files are read, and nothing is written;
//! programs run only if `precreate` hooks are enabled.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tracing::{debug, info};

use super::consumer::Consumer;
use super::filter::{FilterRun, filter};
use super::set::is_hook_file_name;
use super::trust::{self, TrustError, TrustOptions};
use super::{
    ConfigDocument, ConfigError, FilterError, FilterOptions, Hook, HookError, HookSelection,
    HookSet, HookStage, InjectOptions, LoadOptions, LoadProblem, LoadedHooks, MatchError,
    TargetOverrides, load,
};

/// Injects the hooks of directories into configurations.
///
/// ```
/// use oci_hooks::hooks::{FilterOptions, Pipeline, consumer::PODMAN, trust::TrustOptions};
///
/// let mut pipeline = Pipeline::for_consumer(&PODMAN);
/// pipeline.load.dirs = vec!["/etc/containers/oci/hooks.d".into()];
/// pipeline.strict = Some(TrustOptions::of_process());
/// pipeline.precreate = Some(FilterOptions::new("/run/bundle"));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Pipeline {
    pub consumer: Consumer,
    pub load: LoadOptions,
    /// If set, hook files that cannot be loaded are skipped, even if the consumer would stop with
    /// an error.
    pub skip_bad_files: bool,
    /// Treatment of a hook file whose program does not exist, regardless of `skip_bad_files`.
    pub missing_program: MissingProgramPolicy,
    /// Hook files that must be active, by name, with or without `.json`, or by absolute path. A
    /// missing file, a file that cannot be loaded, and a missing program are errors. The hooks need
    /// not match.
    ///
    /// Annotations cannot replace this list: annotations of a hook file vanish with the file, and
    /// annotations of containers are set by the users that hooks guard against.
    pub required_hooks: Vec<PathBuf>,
    /// Values to match that replace or extend those of the configuration.
    pub target: TargetOverrides,
    /// Users to trust: a matching hook that other users can change is an error, and hooks without
    /// an environment get an empty one. `None` trusts all users, as podman and CRI-O do.
    pub strict: Option<TrustOptions>,
    pub inject: InjectOptions,
    /// Options for running `precreate` hooks; `None` leaves them to the caller, in
    /// [`PipelineReport::extension_hooks`].
    pub precreate: Option<FilterOptions>,
}

impl Pipeline {
    /// Returns the defaults of a consumer for a configuration that is passed to a runtime:
    /// `poststop` hooks are added to it, and `precreate` hooks are returned separately and not run.
    pub fn for_consumer(consumer: &Consumer) -> Self {
        let mut load = LoadOptions::for_consumer(consumer);
        // podman runs poststop hooks itself, but not for a configuration that is passed to a
        // runtime: there the runtime has to run them.
        load.extension_stages.retain(|stage| stage != "poststop");
        let target = TargetOverrides {
            annotation_rule: consumer.annotation_rule,
            ..TargetOverrides::default()
        };
        Pipeline {
            consumer: consumer.clone(),
            load,
            skip_bad_files: false,
            missing_program: MissingProgramPolicy::Drop,
            required_hooks: Vec::new(),
            target,
            strict: None,
            inject: InjectOptions::default(),
            precreate: None,
        }
    }

    /// Adds the hooks that match to a configuration.
    ///
    /// The error is boxed because it holds the report.
    pub fn run(&self, config: &[u8]) -> Result<InjectedConfig, Box<PipelineError>> {
        self.run_with(config, |_| {})
    }

    /// Adds the matching hooks after `adjust` changed them, for example to record their output.
    pub fn run_with(
        &self,
        config: &[u8],
        adjust: impl FnOnce(&mut HookSelection<'_>),
    ) -> Result<InjectedConfig, Box<PipelineError>> {
        self.run_loaded(self.load_hooks(), config, adjust)
    }

    /// Loads the hooks of the directories.
    pub fn load_hooks(&self) -> LoadedHooks {
        debug!(dirs = ?self.load.dirs, "load hook files");
        load(&self.load)
    }

    /// Does the same as [`Self::run_with`], with hooks from [`Self::load_hooks`].
    pub fn run_loaded(
        &self,
        hooks: LoadedHooks,
        config: &[u8],
        adjust: impl FnOnce(&mut HookSelection<'_>),
    ) -> Result<InjectedConfig, Box<PipelineError>> {
        let mut report = PipelineReport::default();
        match self.steps(hooks, config, adjust, &mut report) {
            Ok(config) => Ok(InjectedConfig { config, report }),
            Err(failure) => Err(Box::new(PipelineError { failure, report })),
        }
    }

    fn steps(
        &self,
        loaded: LoadedHooks,
        text: &[u8],
        adjust: impl FnOnce(&mut HookSelection<'_>),
        report: &mut PipelineReport,
    ) -> Result<Vec<u8>, PipelineFailure> {
        let config = ConfigDocument::parse(text)?;
        let hooks = self.usable_hooks(loaded, report)?;
        if let Some(reason) = self.consumer.exemption(&config.annotations()?) {
            debug!(reason, "no hooks");
            return Ok(text.to_vec());
        }
        let target = config.target_with(self.consumer.bind_mounts, &self.target)?;
        let mut selection = hooks.select(&target, &self.consumer)?;
        report.hooks = matched_hooks(&selection);
        for hook in &report.hooks {
            debug!(file = %hook.file.display(), reason = %hook.reason, "the hook matches");
        }
        self.trust(&mut selection, report)?;
        adjust(&mut selection);
        if !self.inject.once {
            report.repeated = repeated_files(&selection, &config);
        }
        let injected = config.inject(&selection, self.inject)?;
        report.extension_hooks = to_owned_hooks(&selection);
        self.filter(&selection, injected, report)
    }

    fn usable_hooks(
        &self,
        mut loaded: LoadedHooks,
        report: &mut PipelineReport,
    ) -> Result<HookSet, PipelineFailure> {
        report.missing_dirs = std::mem::take(&mut loaded.missing_dirs);
        let is_fatal = |problem: &LoadProblem| {
            (problem.fatal && !self.skip_bad_files)
                || self.missing_program.rejects_container(problem)
        };
        if let Err(error) = check_required(&self.required_hooks, &mut loaded) {
            report.problems = loaded.problems;
            return Err(error.into());
        }
        let (fatal, problems): (Vec<_>, _) = loaded.problems.into_iter().partition(is_fatal);
        report.problems = problems;
        match fatal.into_iter().next() {
            Some(problem) => Err(Box::new(problem).into()),
            None => Ok(loaded.hooks),
        }
    }

    /// Checks all hooks: the report names every hook that other users can change.
    fn trust(
        &self,
        selection: &mut HookSelection<'_>,
        report: &mut PipelineReport,
    ) -> Result<(), PipelineFailure> {
        let Some(options) = &self.strict else { return Ok(()) };
        let mut first = None;
        for (file, entry) in selection.files.iter().zip(&mut report.hooks) {
            if let Err(error) = trust::check(file, options) {
                info!(%error, "reject the hook");
                entry.rejected = Some(error.to_string());
                first.get_or_insert(error);
            }
        }
        selection.set_missing_env();
        first.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Runs the `precreate` hooks, each of which may rewrite the configuration.
    fn filter(
        &self,
        selection: &HookSelection<'_>,
        config: Vec<u8>,
        report: &mut PipelineReport,
    ) -> Result<Vec<u8>, PipelineFailure> {
        let is_precreate =
            |stage: &HookStage| matches!(stage, HookStage::Extension(s) if s == "precreate");
        let filters = selection.injections.iter().filter(|i| is_precreate(&i.stage));
        let (files, hooks): (Vec<_>, Vec<&Hook>) =
            filters.map(|injection| (injection.file, injection.hook.as_ref())).unzip();
        let Some(options) = self.precreate.as_ref().filter(|_| !hooks.is_empty()) else {
            report.precreate_skipped = !hooks.is_empty();
            return Ok(config);
        };
        let (runs, result) = match filter(&hooks, config, options) {
            Ok(filtered) => (filtered.runs, Ok(filtered.config)),
            Err(mut error) => {
                error.file = files.get(error.index).map(|file| file.path.clone());
                (error.runs.clone(), Err(error.into()))
            }
        };
        let hooks = files.iter().zip(&hooks).zip(runs);
        report.precreate = hooks
            .map(|((file, hook), run)| PrecreateRun {
                file: file.path.clone(),
                program: hook.path.clone(),
                run,
            })
            .collect();
        result
    }
}

fn to_owned_hooks(selection: &HookSelection<'_>) -> BTreeMap<String, Vec<Hook>> {
    let stages = selection.extension_hooks().into_iter();
    stages.map(|(stage, hooks)| (stage.to_owned(), hooks.into_iter().cloned().collect())).collect()
}

/// A configuration that hooks were added to.
#[derive(Debug)]
#[non_exhaustive]
pub struct InjectedConfig {
    /// The new configuration, byte for byte the old one if no hook matches.
    pub config: Vec<u8>,
    pub report: PipelineReport,
}

/// The results of a [`Pipeline`], up to the point where it stopped.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct PipelineReport {
    /// Hook files that match, in order of injection.
    pub hooks: Vec<MatchedHook>,
    /// Problems of hook files and directories that were skipped.
    pub problems: Vec<LoadProblem>,
    /// Hook files whose hooks were already in the configuration, and now are in it twice.
    pub repeated: Vec<PathBuf>,
    /// Directories that do not exist, which is no error.
    pub missing_dirs: Vec<PathBuf>,
    /// Hooks of extension stages by stage, including `precreate` hooks that were run.
    pub extension_hooks: BTreeMap<String, Vec<Hook>>,
    /// The `precreate` hooks that succeeded.
    pub precreate: Vec<PrecreateRun>,
    /// If set, `precreate` hooks match but were not run, because [`Pipeline::precreate`] is `None`.
    pub precreate_skipped: bool,
}

impl PipelineReport {
    /// Returns the lines of standard error of `precreate` hooks, as [`FilterRun::lines`] does, each
    /// prefixed with the path of the hook's program.
    pub fn precreate_lines(&self) -> Vec<String> {
        let line = |run: &PrecreateRun, line| format!("{}: {line}", run.program);
        let runs = self.precreate.iter();
        runs.flat_map(|run| run.run.lines().into_iter().map(move |text| line(run, text))).collect()
    }
}

/// A hook file that matches.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MatchedHook {
    pub file: PathBuf,
    /// The condition that decided, in words.
    pub reason: String,
    /// Stages at which the hook is injected.
    pub stages: Vec<HookStage>,
    /// The error, if the hook was rejected because untrusted users can change it.
    pub rejected: Option<String>,
}

impl fmt::Display for MatchedHook {
    /// Formats the file with its stages: `FILE (STAGE, STAGE)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stages: Vec<_> = self.stages.iter().map(HookStage::name).collect();
        write!(f, "{} ({})", self.file.display(), stages.join(", "))
    }
}

/// A `precreate` hook that was run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrecreateRun {
    pub file: PathBuf,
    /// Path of the hook's program.
    pub program: String,
    /// Standard error, duration and effect of the hook on the configuration.
    pub run: FilterRun,
}

/// A failed [`Pipeline`], with its results up to the failure.
#[derive(Debug, thiserror::Error)]
#[error("cannot add hooks")]
#[non_exhaustive]
pub struct PipelineError {
    #[source]
    pub failure: PipelineFailure,
    pub report: PipelineReport,
}

/// Errors of a [`Pipeline`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineFailure {
    /// The configuration cannot be used.
    #[error("cannot add hooks to the configuration")]
    Config(#[from] ConfigError),
    /// A hook file cannot be used.
    #[error(transparent)]
    HookFile(#[from] Box<LoadProblem>),
    /// A required hook is not active.
    #[error(transparent)]
    RequiredHook(#[from] RequiredHookError),
    /// A hook has a condition on the command, and the container has no `process.args`.
    #[error(transparent)]
    Match(#[from] MatchError),
    /// Untrusted users can change a matching hook.
    #[error("cannot trust a hook, which non-root users must not be able to change{}", .0.hint_in_message())]
    Trust(#[from] TrustError),
    /// A `precreate` hook failed.
    #[error(transparent)]
    Filter(#[from] Box<FilterError>),
}

/// Returns an entry for each selected file.
pub fn matched_hooks(selection: &HookSelection<'_>) -> Vec<MatchedHook> {
    let mut injections = selection.injections.iter();
    let files = selection.files.iter().zip(&selection.reasons);
    files
        .map(|(file, reason)| {
            let own = injections.by_ref().take(file.definition.stages.len());
            MatchedHook {
                file: file.path.clone(),
                reason: reason.to_string(),
                stages: own.map(|injection| injection.stage.clone()).collect(),
                rejected: None,
            }
        })
        .collect()
}

/// Returns the selected files whose hooks are already in the configuration at their stages.
fn repeated_files(selection: &HookSelection<'_>, config: &ConfigDocument<'_>) -> Vec<PathBuf> {
    let repeated = selection.injections.iter().filter(|injection| match injection.stage {
        HookStage::Oci(stage) => config.has_hook(stage, &injection.hook),
        HookStage::Extension(_) => false,
    });
    let mut files: Vec<_> = repeated.map(|injection| injection.file.path.clone()).collect();
    files.dedup();
    files
}

/// Treatment of a hook file whose program does not exist.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum MissingProgramPolicy {
    /// The file is skipped, and [`PipelineReport::problems`] lists it. As with podman and CRI-O, a
    /// file of the same name in an earlier directory stays active.
    #[default]
    Drop,
    /// The pipeline fails for every container.
    Fail,
}

impl MissingProgramPolicy {
    /// Returns whether this problem of a hook file makes every container fail: the program does not
    /// exist, and the rule is [`Self::Fail`].
    pub fn rejects_container(self, problem: &LoadProblem) -> bool {
        self == MissingProgramPolicy::Fail
            && matches!(problem.source, HookError::PathMissing { .. })
    }
}

/// A required hook that is not active.
#[derive(Debug, thiserror::Error)]
#[error("required hook {hook:?} {}", match problem {
    Some(_) => "is not in force".to_owned(),
    None => format!("is not among the hooks in force in {}", format_directories(dirs)),
})]
#[non_exhaustive]
pub struct RequiredHookError {
    /// Name or path, as in [`Pipeline::required_hooks`].
    pub hook: PathBuf,
    /// Problem of the hook's file; `None` if there is no such file, or another file masks it.
    #[source]
    pub problem: Option<Box<LoadProblem>>,
    /// The directories that were read.
    pub dirs: Vec<PathBuf>,
}

/// Formats directories as a list for messages.
pub fn format_directories(dirs: &[PathBuf]) -> String {
    let dirs: Vec<_> = dirs.iter().map(|dir| dir.display().to_string()).collect();
    if dirs.is_empty() { "no directory".to_owned() } else { dirs.join(", ") }
}

/// Returns an error for the first required hook that is not active, and moves its problem into the
/// error.
fn check_required(required: &[PathBuf], loaded: &mut LoadedHooks) -> Result<(), RequiredHookError> {
    let Some((hook, at)) = missing_required(required, loaded) else { return Ok(()) };
    let problem = at.map(|at| Box::new(loaded.problems.remove(at)));
    Err(RequiredHookError { hook: hook.to_owned(), problem, dirs: loaded.dirs.clone() })
}

/// Finds the first required hook that is not active, and the index of its problem in
/// [`LoadedHooks::problems`], if it has one.
pub fn missing_required<'r>(
    required: &'r [PathBuf],
    loaded: &LoadedHooks,
) -> Option<(&'r Path, Option<usize>)> {
    let is_in_force = |hook: &Path| match file_name(hook) {
        Some(name) => loaded.hooks.get(&name).is_some(),
        None => loaded.hooks.iter().any(|file| file.path == *hook),
    };
    let hook = required.iter().find(|hook| !is_in_force(hook))?;
    let name = file_name(hook);
    let is_about = |problem: &LoadProblem| match &name {
        Some(name) => problem.path.file_name() == Some(name.as_os_str()),
        None => problem.path == *hook,
    };
    Some((hook, loaded.problems.iter().rposition(is_about)))
}

/// Returns the file name of a hook that is named with or without `.json`; `None` for a path.
fn file_name(hook: &Path) -> Option<OsString> {
    let mut name = hook.as_os_str().to_owned();
    if name.as_encoded_bytes().contains(&b'/') {
        return None;
    }
    if !is_hook_file_name(&name) {
        name.push(".json");
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::hooks::consumer::{CRIO, PODMAN};
    use crate::hooks::{OciStage, PathCheck};

    const CONFIG: &[u8] = br#"{"process":{"args":["/bin/sh"]},"vendor":1.0}"#;

    struct PipelineFixture {
        temp: tempfile::TempDir,
    }

    impl PipelineFixture {
        fn new() -> Self {
            PipelineFixture { temp: tempfile::tempdir().unwrap() }
        }

        fn hook(&self, name: &str, script: &str, rest: &str) {
            let args = serde_json::to_string(&["sh", "-c", script]).unwrap();
            let text = format!(
                r#"{{"version":"1.0.0","hook":{{"path":"/bin/sh","args":{args}}},{rest}}}"#
            );
            fs::write(self.temp.path().join(name), text).unwrap();
        }

        fn pipeline(&self) -> Pipeline {
            let mut pipeline = Pipeline::for_consumer(&PODMAN);
            pipeline.load.dirs = vec![self.temp.path().to_owned()];
            pipeline.load.path_check = PathCheck::Skip;
            pipeline
        }
    }

    const ALWAYS: &str = r#""when":{"always":true},"stages":"#;

    fn always_hook(stages: &str) -> String {
        format!("{ALWAYS}{stages}")
    }

    #[test]
    fn report_lists_matches_and_reasons() {
        let dir = PipelineFixture::new();
        dir.hook("a.json", "", &always_hook(r#"["prestart","poststop"]"#));
        dir.hook("b.json", "", r#""when":{"commands":["/sh$"]},"stages":["precreate"]"#);
        dir.hook("c.json", "", r#""when":{"commands":["/zsh$"]},"stages":["poststop"]"#);
        let InjectedConfig { config, report } = dir.pipeline().run(CONFIG).unwrap();
        let config = String::from_utf8(config).unwrap();
        assert!(config.starts_with(r#"{"process":{"args":["/bin/sh"]},"vendor":1.0,"hooks""#));
        assert!(config.contains("poststop"), "the runtime runs them: {config}");
        let [a, b] = report.hooks.as_slice() else { panic!("{:?}", report.hooks) };
        assert_eq!(a.stages, [OciStage::CreateRuntime, OciStage::Poststop].map(HookStage::Oci));
        assert!(
            a.reason.contains("always") && b.reason.contains("/sh$"),
            "{} {}",
            a.reason,
            b.reason
        );
        assert!(report.precreate_skipped && report.precreate.is_empty());
        assert_eq!(report.extension_hooks["precreate"].len(), 1);
    }

    #[test]
    fn configuration_without_matches_is_unchanged() {
        let injected = PipelineFixture::new().pipeline().run(CONFIG).unwrap();
        assert_eq!(injected.config, CONFIG);
        assert!(injected.report.hooks.is_empty() && !injected.report.precreate_skipped);
    }

    #[test]
    fn rules_of_the_consumer_apply() {
        let dir = PipelineFixture::new();
        let when =
            r#""when":{"annotations":{"^io.kubernetes.pod.name$":"a"}},"stages":["poststop"]"#;
        dir.hook("pod.json", "", when);
        dir.hook("always.json", "", &always_hook(r#"["poststop"]"#));
        let matched = |annotations: &str| {
            let config = format!(r#"{{"annotations":{{{annotations}}}}}"#);
            let mut pipeline = Pipeline::for_consumer(&CRIO);
            pipeline.load = dir.pipeline().load;
            pipeline.run(config.as_bytes()).unwrap().report.hooks.len()
        };
        // CRI-O itself adds the annotation.
        assert_eq!(matched(r#""io.kubernetes.pod.name":"a""#), 1);
        assert_eq!(matched(r#""io.kubernetes.cri-o.ContainerType":"sandbox""#), 0);
    }

    #[test]
    fn bad_files_stop_the_pipeline_unless_skipped() {
        let dir = PipelineFixture::new();
        dir.hook("a.json", "", &always_hook(r#"["poststop"]"#));
        fs::write(dir.temp.path().join("b.json"), "{").unwrap();
        let mut pipeline = dir.pipeline();
        pipeline.load.dirs.push(dir.temp.path().join("missing"));
        let error = pipeline.run(CONFIG).unwrap_err();
        assert!(matches!(error.failure, PipelineFailure::HookFile(_)), "{error:?}");
        assert_eq!(error.report.missing_dirs.len(), 1);
        pipeline.skip_bad_files = true;
        let report = pipeline.run(CONFIG).unwrap().report;
        assert_eq!((report.hooks.len(), report.problems.len()), (1, 1));
    }

    #[test]
    fn strict_names_each_hook_writable_by_others() {
        let dir = PipelineFixture::new();
        for name in ["a.json", "b.json", "c.json"] {
            dir.hook(name, "", &always_hook(r#"["poststop"]"#));
        }
        for name in ["b.json", "c.json"] {
            let mode = fs::Permissions::from_mode(0o666);
            fs::set_permissions(dir.temp.path().join(name), mode).unwrap();
        }
        let mut pipeline = dir.pipeline();
        pipeline.strict = Some(TrustOptions::of_process());
        let error = pipeline.run(CONFIG).unwrap_err();
        let source = error.source().unwrap().to_string();
        assert!(
            source.starts_with(
                "cannot trust a hook, which non-root users must not be able to change"
            ),
            "{source}"
        );
        let rejected = error.report.hooks.iter().map(|hook| hook.rejected.is_some());
        assert_eq!(rejected.collect::<Vec<_>>(), [false, true, true]);
    }

    #[test]
    fn strict_gives_hooks_an_empty_environment() {
        let dir = PipelineFixture::new();
        dir.hook("a.json", "", &always_hook(r#"["poststop"]"#));
        let mut pipeline = dir.pipeline();
        pipeline.strict = Some(TrustOptions::of_process());
        let config = String::from_utf8(pipeline.run(CONFIG).unwrap().config).unwrap();
        assert!(config.contains(r#""env":[]"#), "{config}");
    }

    #[test]
    fn precreate_hooks_run_and_their_messages_take_one_line_each() {
        let dir = PipelineFixture::new();
        let say = "/bin/sed s/1.0/2.0/; printf '\\033[1ma\\n\\n b\\n' >&2";
        dir.hook("a.json", say, &always_hook(r#"["precreate"]"#));
        dir.hook("b.json", "/bin/cat", &always_hook(r#"["precreate"]"#));
        let mut pipeline = dir.pipeline();
        pipeline.precreate = Some(FilterOptions::new("/"));
        let InjectedConfig { config, report } = pipeline.run(CONFIG).unwrap();
        assert!(String::from_utf8(config).unwrap().contains(r#""vendor":2.0"#));
        let changed: Vec<_> = report.precreate.iter().map(|run| run.run.changed).collect();
        assert_eq!(changed, [true, false]);
        assert_eq!(report.precreate_lines(), ["/bin/sh: \u{fffd}[1ma", "/bin/sh:  b"]);
        assert!(!report.precreate_skipped);

        dir.hook("b.json", "exit 3", &always_hook(r#"["precreate"]"#));
        let error = pipeline.run(CONFIG).unwrap_err();
        assert!(matches!(error.failure, PipelineFailure::Filter(_)), "{error:?}");
        assert_eq!(error.report.precreate_lines().len(), 2, "of those before it");
    }

    #[test]
    fn given_facts_override_the_configuration() {
        let dir = PipelineFixture::new();
        let when =
            r#""when":{"hasBindMounts":true,"annotations":{"^a$":"^1$"}},"stages":["poststop"]"#;
        dir.hook("a.json", "", when);
        let mut pipeline = dir.pipeline();
        assert!(pipeline.run(CONFIG).unwrap().report.hooks.is_empty());
        pipeline.target.has_bind_mounts = Some(true);
        pipeline.target.annotations.insert("a".to_owned(), "1".to_owned());
        assert_eq!(pipeline.run(CONFIG).unwrap().report.hooks.len(), 1);
    }

    #[test]
    fn selection_can_be_changed_before_injection() {
        let dir = PipelineFixture::new();
        dir.hook("a.json", "", &always_hook(r#"["poststop"]"#));
        let injected = dir.pipeline().run_with(CONFIG, |selection| {
            for injection in &mut selection.injections {
                injection.hook.to_mut().path = "/wrapped".to_owned();
            }
        });
        let config = String::from_utf8(injected.unwrap().config).unwrap();
        assert!(config.contains(r#""path":"/wrapped""#), "{config}");
    }

    #[test]
    fn hook_without_its_program_is_dropped_or_an_error() {
        let dir = PipelineFixture::new();
        dir.hook("a.json", "", &always_hook(r#"["poststop"]"#));
        let path = dir.temp.path().join("guard.json");
        let text = format!(
            r#"{{"version":"1.0.0","hook":{{"path":"/gone"}},{}}}"#,
            always_hook(r#"["poststop"]"#)
        );
        fs::write(&path, text).unwrap();
        let mut pipeline = dir.pipeline();
        pipeline.load.path_check = PathCheck::Exists;
        let report = pipeline.run(CONFIG).unwrap().report;
        assert_eq!((report.hooks.len(), report.problems.len()), (1, 1));

        pipeline.missing_program = MissingProgramPolicy::Fail;
        pipeline.skip_bad_files = true;
        let error = pipeline.run(CONFIG).unwrap_err();
        let PipelineFailure::HookFile(problem) = error.failure else { panic!("{error:?}") };
        assert_eq!(problem.path, path);
    }

    #[test]
    fn a_required_hook_must_be_in_force() {
        let (low, high) = (PipelineFixture::new(), PipelineFixture::new());
        low.hook("guard.json", "", r#""when":{"commands":["/zsh$"]},"stages":["poststop"]"#);
        let mut pipeline = low.pipeline();
        pipeline.load.dirs.push(high.temp.path().to_owned());
        pipeline.skip_bad_files = true;
        let failure = |pipeline: &Pipeline| {
            let error = pipeline.run(CONFIG).unwrap_err();
            let PipelineFailure::RequiredHook(error) = error.failure else { panic!("{error:?}") };
            oci_hooks_files::error::chain(&error)
        };
        pipeline.required_hooks = vec!["guard.json".into()];
        assert!(pipeline.run(CONFIG).is_ok(), "whether it matches does not matter");
        pipeline.required_hooks = vec!["guard".into()];
        assert!(pipeline.run(CONFIG).is_ok(), "the suffix is optional");

        let path = high.temp.path().join("guard.json");
        pipeline.required_hooks = vec![path.clone()];
        let expected =
            format!("{path:?} is not among the hooks in force in {}", low.temp.path().display());
        assert!(failure(&pipeline).contains(&expected), "{}", failure(&pipeline));
        fs::write(&path, "{").unwrap();
        let expected = format!("{path:?} is not in force: {}:1:2: ", path.display());
        assert!(failure(&pipeline).contains(&expected), "{}", failure(&pipeline));
        high.hook("guard.json", "", &always_hook(r#"["poststop"]"#));
        assert!(pipeline.run(CONFIG).is_ok());
        // The file of the lower directory is masked.
        pipeline.required_hooks = vec![low.temp.path().join("guard.json")];
        assert!(
            failure(&pipeline).contains("is not among the hooks in force in"),
            "{}",
            failure(&pipeline)
        );
    }
}
