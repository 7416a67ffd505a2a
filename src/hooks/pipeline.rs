//! From hook directories to a new configuration in one call: load, select, trust, inject, precreate.
//!
//! The caller says where the configuration comes from and where it goes to. Nothing but the hook files
//! is read, and nothing is written; programs run only if `precreate` hooks are to.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tracing::{debug, info};

use super::consumer::Consumer;
use super::filter::{FilterRun, filter};
use super::trust::{self, TrustError, TrustOptions};
use super::{
    Config, ConfigError, FilterError, FilterOptions, Hook, HookError, HookSet, InjectOptions,
    LoadOptions, Loaded, MatchError, Problem, Selection, Stage, TargetOverrides, load,
};

/// How hooks get from their directories into a configuration.
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
    /// The directories, and which stages are kept apart.
    pub load: LoadOptions,
    /// Hook files that cannot be loaded are left out, where the consumer would give up.
    pub skip_bad_files: bool,
    /// What becomes of a hook file whose program does not exist, whether or not others are skipped.
    pub missing_program: MissingProgram,
    /// Hook files without which there is no container, by name or absolute path: one that is not
    /// there, cannot be loaded or has no program is an error. Whether they match is up to the files.
    ///
    /// They are named here, and not in an annotation of the file, as a file that is gone has none;
    /// and annotations of containers are written by those whom the hooks are to guard against.
    pub required_hooks: Vec<PathBuf>,
    /// What hooks are matched against beside the configuration.
    pub target: TargetOverrides,
    /// Whom to trust: a matching hook that others can change is an error, and hooks without an
    /// environment get an empty one. `None` trusts everybody, as podman and CRI-O do.
    pub strict: Option<TrustOptions>,
    pub inject: InjectOptions,
    /// How `precreate` hooks are run; `None` leaves them to the caller, in [`Report::extension_hooks`].
    pub precreate: Option<FilterOptions>,
}

impl Pipeline {
    /// Returns what a consumer does by default, for a configuration that is given to a runtime:
    /// `poststop` hooks are added to it, and `precreate` hooks are kept apart and not run.
    pub fn for_consumer(consumer: &Consumer) -> Self {
        let mut load = LoadOptions::for_consumer(consumer);
        // podman runs poststop hooks by itself. Nobody would run them for a configuration that is
        // given to a runtime, and so the runtime does.
        load.extension_stages.retain(|stage| stage != "poststop");
        Pipeline {
            consumer: consumer.clone(),
            load,
            skip_bad_files: false,
            missing_program: MissingProgram::Drop,
            required_hooks: Vec::new(),
            target: TargetOverrides::default(),
            strict: None,
            inject: InjectOptions::default(),
            precreate: None,
        }
    }

    /// Adds the hooks that match to a configuration.
    ///
    /// The error is boxed as it holds everything that is known by then.
    pub fn run(&self, config: &[u8]) -> Result<Injected, Box<PipelineError>> {
        self.run_with(config, |_| {})
    }

    /// Adds the hooks that match, after `adjust` changed them: recorded ones are wrapped, for one.
    pub fn run_with(
        &self,
        config: &[u8],
        adjust: impl FnOnce(&mut Selection<'_>),
    ) -> Result<Injected, Box<PipelineError>> {
        let mut report = Report::default();
        match self.steps(config, adjust, &mut report) {
            Ok(config) => Ok(Injected { config, report }),
            Err(failure) => Err(Box::new(PipelineError { failure, report })),
        }
    }

    fn steps(
        &self,
        text: &[u8],
        adjust: impl FnOnce(&mut Selection<'_>),
        report: &mut Report,
    ) -> Result<Vec<u8>, PipelineFailure> {
        let config = Config::parse(text)?;
        let hooks = self.load(report)?;
        let target = config.target_with(self.consumer.bind_mounts, &self.target)?;
        let mut selection = hooks.select(&target, &self.consumer)?;
        report.hooks = matched(&selection);
        for hook in &report.hooks {
            debug!(file = %hook.file.display(), reason = %hook.reason, "the hook matches");
        }
        self.trust(&mut selection, report)?;
        adjust(&mut selection);
        let injected = config.inject(&selection, self.inject)?;
        report.extension_hooks = owned(&selection);
        self.filter(&selection, injected, report)
    }

    fn load(&self, report: &mut Report) -> Result<HookSet, PipelineFailure> {
        debug!(dirs = ?self.load.dirs, "load hook files");
        let mut loaded = load(&self.load);
        report.missing_dirs = std::mem::take(&mut loaded.missing_dirs);
        let is_fatal = |problem: &Problem| {
            (problem.fatal && !self.skip_bad_files) || self.missing_program.rejects(problem)
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

    /// Checks all hooks, so that the report has each that others can change.
    fn trust(
        &self,
        selection: &mut Selection<'_>,
        report: &mut Report,
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
        selection: &Selection<'_>,
        config: Vec<u8>,
        report: &mut Report,
    ) -> Result<Vec<u8>, PipelineFailure> {
        let is_precreate = |stage: &Stage| matches!(stage, Stage::Extension(s) if s == "precreate");
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

fn owned(selection: &Selection<'_>) -> BTreeMap<String, Vec<Hook>> {
    let stages = selection.extension_hooks().into_iter();
    stages.map(|(stage, hooks)| (stage.to_owned(), hooks.into_iter().cloned().collect())).collect()
}

/// A configuration that hooks were added to.
#[derive(Debug)]
#[non_exhaustive]
pub struct Injected {
    /// The new configuration, byte for byte the old one if no hook matches.
    pub config: Vec<u8>,
    pub report: Report,
}

/// What happened on the way, as far as it went.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// The hook files that match, in the order they are injected in.
    pub hooks: Vec<MatchedHook>,
    /// Hook files that are left out.
    pub problems: Vec<Problem>,
    /// Directories that do not exist, which is no fault.
    pub missing_dirs: Vec<PathBuf>,
    /// The hooks of stages that are kept apart; of `precreate` also if they were run.
    pub extension_hooks: BTreeMap<String, Vec<Hook>>,
    /// The `precreate` hooks that were run and worked.
    pub precreate: Vec<PrecreateRun>,
    /// Whether `precreate` hooks match that were not to be run.
    pub precreate_skipped: bool,
}

impl Report {
    /// Returns what `precreate` hooks wrote to standard error, each line with its program before it
    /// and without control characters.
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
    /// The stages it goes to.
    pub stages: Vec<Stage>,
    /// Who can change it that is not trusted, if it was rejected for that.
    pub rejected: Option<String>,
}

/// A `precreate` hook that was run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrecreateRun {
    pub file: PathBuf,
    pub program: String,
    /// What it wrote, how long it took, and whether it changed the configuration.
    pub run: FilterRun,
}

/// Hooks that could not be added, and how far it went.
#[derive(Debug, thiserror::Error)]
#[error("cannot add hooks")]
#[non_exhaustive]
pub struct PipelineError {
    #[source]
    pub failure: PipelineFailure,
    pub report: Report,
}

/// Why hooks could not be added.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineFailure {
    /// The configuration cannot be used.
    #[error("cannot add hooks to the configuration")]
    Config(#[from] ConfigError),
    /// A hook file cannot be used.
    #[error(transparent)]
    HookFile(#[from] Box<Problem>),
    /// A hook that must be in force is not.
    #[error(transparent)]
    RequiredHook(#[from] RequiredHookError),
    /// A hook cannot be matched.
    #[error(transparent)]
    Match(#[from] MatchError),
    /// Others can change a hook that matches.
    #[error("a hook is writable by non-root users{}", .0.hint_in_message())]
    Trust(#[from] TrustError),
    /// A `precreate` hook does not work.
    #[error(transparent)]
    Filter(#[from] Box<FilterError>),
}

/// Returns an entry for each file that was selected, before anybody changed the selection.
fn matched(selection: &Selection<'_>) -> Vec<MatchedHook> {
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

/// What becomes of a hook file whose program does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingProgram {
    /// The file is left out, and one of the same name in a directory before its own stays in force, as
    /// with podman and CRI-O: [`Report::problems`](Report::problems) names it.
    #[default]
    Drop,
    /// It is an error for every container.
    Fail,
}

impl MissingProgram {
    pub(crate) fn rejects(self, problem: &Problem) -> bool {
        self == MissingProgram::Fail && matches!(problem.source, HookError::PathMissing { .. })
    }
}

/// A required hook that is not in force.
#[derive(Debug, thiserror::Error)]
#[error("required hook {hook:?} {}", match problem {
    Some(_) => "is not in force".to_owned(),
    None => format!("not found in {}", listed(dirs)),
})]
#[non_exhaustive]
pub struct RequiredHookError {
    /// As it is required.
    pub hook: PathBuf,
    /// What is wrong with its file, if there is one.
    #[source]
    pub problem: Option<Box<Problem>>,
    /// The directories that were read.
    pub dirs: Vec<PathBuf>,
}

pub(crate) fn listed(dirs: &[PathBuf]) -> String {
    let dirs: Vec<_> = dirs.iter().map(|dir| dir.display().to_string()).collect();
    if dirs.is_empty() { "no directory".to_owned() } else { dirs.join(", ") }
}

/// Returns an error for the first required hook that is not in force, with the problem that it has.
fn check_required(required: &[PathBuf], loaded: &mut Loaded) -> Result<(), RequiredHookError> {
    let Some((hook, at)) = missing_required(required, loaded) else { return Ok(()) };
    let problem = at.map(|at| Box::new(loaded.problems.remove(at)));
    Err(RequiredHookError { hook: hook.to_owned(), problem, dirs: loaded.dirs.clone() })
}

/// Finds the first required hook that is not in force, and where among the problems its own is.
pub(crate) fn missing_required<'r>(
    required: &'r [PathBuf],
    loaded: &Loaded,
) -> Option<(&'r Path, Option<usize>)> {
    let is_in_force = |hook: &Path| match is_name(hook) {
        true => loaded.hooks.get(hook.as_os_str()).is_some(),
        false => loaded.hooks.iter().any(|file| file.path == *hook),
    };
    let hook = required.iter().find(|hook| !is_in_force(hook))?;
    let is_about = |problem: &Problem| match is_name(hook) {
        true => problem.path.file_name() == Some(hook.as_os_str()),
        false => problem.path == *hook,
    };
    Some((hook, loaded.problems.iter().rposition(is_about)))
}

fn is_name(hook: &Path) -> bool {
    !hook.as_os_str().as_encoded_bytes().contains(&b'/')
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::hooks::consumer::PODMAN;
    use crate::hooks::{OciStage, PathCheck};

    const CONFIG: &[u8] = br#"{"process":{"args":["/bin/sh"]},"vendor":1.0}"#;

    struct Dir {
        temp: tempfile::TempDir,
    }

    impl Dir {
        fn new() -> Self {
            Dir { temp: tempfile::tempdir().unwrap() }
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

    fn always(stages: &str) -> String {
        format!("{ALWAYS}{stages}")
    }

    #[test]
    fn a_report_has_what_matched_and_why() {
        let dir = Dir::new();
        dir.hook("a.json", "", &always(r#"["prestart","poststop"]"#));
        dir.hook("b.json", "", r#""when":{"commands":["/sh$"]},"stages":["precreate"]"#);
        dir.hook("c.json", "", r#""when":{"commands":["/zsh$"]},"stages":["poststop"]"#);
        let Injected { config, report } = dir.pipeline().run(CONFIG).unwrap();
        let config = String::from_utf8(config).unwrap();
        assert!(config.starts_with(r#"{"process":{"args":["/bin/sh"]},"vendor":1.0,"hooks""#));
        assert!(config.contains("poststop"), "the runtime runs them: {config}");
        let [a, b] = report.hooks.as_slice() else { panic!("{:?}", report.hooks) };
        assert_eq!(a.stages, [OciStage::CreateRuntime, OciStage::Poststop].map(Stage::Oci));
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
    fn nothing_that_matches_changes_nothing() {
        let injected = Dir::new().pipeline().run(CONFIG).unwrap();
        assert_eq!(injected.config, CONFIG);
        assert!(injected.report.hooks.is_empty() && !injected.report.precreate_skipped);
    }

    #[test]
    fn bad_files_stop_it_unless_they_are_skipped() {
        let dir = Dir::new();
        dir.hook("a.json", "", &always(r#"["poststop"]"#));
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
    fn strict_names_each_hook_that_others_can_change() {
        let dir = Dir::new();
        for name in ["a.json", "b.json", "c.json"] {
            dir.hook(name, "", &always(r#"["poststop"]"#));
        }
        for name in ["b.json", "c.json"] {
            let mode = fs::Permissions::from_mode(0o666);
            fs::set_permissions(dir.temp.path().join(name), mode).unwrap();
        }
        let mut pipeline = dir.pipeline();
        pipeline.strict = Some(TrustOptions::of_process());
        let error = pipeline.run(CONFIG).unwrap_err();
        let source = error.source().unwrap().to_string();
        assert!(source.starts_with("a hook is writable by non-root users"), "{source}");
        let rejected = error.report.hooks.iter().map(|hook| hook.rejected.is_some());
        assert_eq!(rejected.collect::<Vec<_>>(), [false, true, true]);
    }

    #[test]
    fn strict_gives_an_empty_environment() {
        let dir = Dir::new();
        dir.hook("a.json", "", &always(r#"["poststop"]"#));
        let mut pipeline = dir.pipeline();
        pipeline.strict = Some(TrustOptions::of_process());
        let config = String::from_utf8(pipeline.run(CONFIG).unwrap().config).unwrap();
        assert!(config.contains(r#""env":[]"#), "{config}");
    }

    #[test]
    fn precreate_hooks_are_run_and_what_they_say_is_one_line_each() {
        let dir = Dir::new();
        let say = "/bin/sed s/1.0/2.0/; printf '\\033[1ma\\n\\n b\\n' >&2";
        dir.hook("a.json", say, &always(r#"["precreate"]"#));
        dir.hook("b.json", "/bin/cat", &always(r#"["precreate"]"#));
        let mut pipeline = dir.pipeline();
        pipeline.precreate = Some(FilterOptions::new("/"));
        let Injected { config, report } = pipeline.run(CONFIG).unwrap();
        assert!(String::from_utf8(config).unwrap().contains(r#""vendor":2.0"#));
        let changed: Vec<_> = report.precreate.iter().map(|run| run.run.changed).collect();
        assert_eq!(changed, [true, false]);
        assert_eq!(report.precreate_lines(), ["/bin/sh: \u{fffd}[1ma", "/bin/sh:  b"]);
        assert!(!report.precreate_skipped);

        dir.hook("b.json", "exit 3", &always(r#"["precreate"]"#));
        let error = pipeline.run(CONFIG).unwrap_err();
        assert!(matches!(error.failure, PipelineFailure::Filter(_)), "{error:?}");
        assert_eq!(error.report.precreate_lines().len(), 2, "of those before it");
    }

    #[test]
    fn what_is_known_better_than_the_configuration_counts() {
        let dir = Dir::new();
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
    fn a_selection_can_be_changed_before_it_is_injected() {
        let dir = Dir::new();
        dir.hook("a.json", "", &always(r#"["poststop"]"#));
        let injected = dir.pipeline().run_with(CONFIG, |selection| {
            for injection in &mut selection.injections {
                injection.hook.to_mut().path = "/wrapped".to_owned();
            }
        });
        let config = String::from_utf8(injected.unwrap().config).unwrap();
        assert!(config.contains(r#""path":"/wrapped""#), "{config}");
    }

    #[test]
    fn a_hook_without_its_program_is_dropped_or_an_error() {
        let dir = Dir::new();
        dir.hook("a.json", "", &always(r#"["poststop"]"#));
        let path = dir.temp.path().join("guard.json");
        let text = format!(
            r#"{{"version":"1.0.0","hook":{{"path":"/gone"}},{}}}"#,
            always(r#"["poststop"]"#)
        );
        fs::write(&path, text).unwrap();
        let mut pipeline = dir.pipeline();
        pipeline.load.path_check = PathCheck::Exists;
        let report = pipeline.run(CONFIG).unwrap().report;
        assert_eq!((report.hooks.len(), report.problems.len()), (1, 1));

        pipeline.missing_program = MissingProgram::Fail;
        pipeline.skip_bad_files = true;
        let error = pipeline.run(CONFIG).unwrap_err();
        let PipelineFailure::HookFile(problem) = error.failure else { panic!("{error:?}") };
        assert_eq!(problem.path, path);
    }

    #[test]
    fn a_required_hook_must_be_in_force() {
        let (low, high) = (Dir::new(), Dir::new());
        low.hook("guard.json", "", r#""when":{"commands":["/zsh$"]},"stages":["poststop"]"#);
        let mut pipeline = low.pipeline();
        pipeline.load.dirs.push(high.temp.path().to_owned());
        pipeline.skip_bad_files = true;
        let failure = |pipeline: &Pipeline| {
            let error = pipeline.run(CONFIG).unwrap_err();
            let PipelineFailure::RequiredHook(error) = error.failure else { panic!("{error:?}") };
            crate::sys::error::chain(&error)
        };
        pipeline.required_hooks = vec!["guard.json".into()];
        assert!(pipeline.run(CONFIG).is_ok(), "whether it matches does not matter");

        let path = high.temp.path().join("guard.json");
        pipeline.required_hooks = vec![path.clone()];
        let expected = format!("{path:?} not found in {}", low.temp.path().display());
        assert!(failure(&pipeline).contains(&expected), "{}", failure(&pipeline));
        fs::write(&path, "{").unwrap();
        let expected = format!("{path:?} is not in force: {}:1:2: ", path.display());
        assert!(failure(&pipeline).contains(&expected), "{}", failure(&pipeline));
        high.hook("guard.json", "", &always(r#"["poststop"]"#));
        assert!(pipeline.run(CONFIG).is_ok());
        // The other one is masked.
        pipeline.required_hooks = vec![low.temp.path().join("guard.json")];
        assert!(failure(&pipeline).contains("not found in"), "{}", failure(&pipeline));
    }
}
