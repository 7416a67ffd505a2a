//! From hook directories to a new configuration in one call: load, select, trust, inject, precreate.
//!
//! The caller says where the configuration comes from and where it goes to. Nothing but the hook files
//! is read, and nothing is written; programs run only if `precreate` hooks are to.

use std::path::PathBuf;

use tracing::{debug, info};

mod report;
pub(crate) mod required;

use super::consumer::Consumer;
use super::filter::filter;
use super::trust::{self, TrustOptions};
use super::{
    Config, FilterOptions, Hook, HookSet, InjectOptions, LoadOptions, Problem, Selection, Stage,
    TargetOverrides, load,
};

pub use report::{Injected, MatchedHook, PipelineError, PipelineFailure, PrecreateRun, Report};
pub use required::{MissingProgram, RequiredHookError};

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
        report.hooks = report::matched(&selection);
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
        if let Err(error) = required::check(&self.required_hooks, &mut loaded) {
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

fn owned(selection: &Selection<'_>) -> std::collections::BTreeMap<String, Vec<Hook>> {
    let stages = selection.extension_hooks().into_iter();
    stages.map(|(stage, hooks)| (stage.to_owned(), hooks.into_iter().cloned().collect())).collect()
}

#[cfg(test)]
mod tests;
