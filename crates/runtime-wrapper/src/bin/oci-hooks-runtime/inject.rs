//! Injecting hooks into the bundle of a container before it is created.

use std::path::{Path, PathBuf};

use oci_hooks::hooks::pipeline::{InjectedConfig, PipelineError, PipelineFailure, PipelineReport};
use oci_hooks::hooks::trust::TrustOptions;
use oci_hooks::hooks::{ConfigError, FilterOptions, InjectOptions, Pipeline, has_hook_files};
use oci_hooks_files::error::chain;
use oci_hooks_files::fs::{
    Durability, ExpectedFile, FileAt, PathError, ReadError, ReplaceError, ReplaceOptions,
    SymlinkPolicy,
};
use oci_hooks_runtime::{ContainerCall, RuntimeLog, RuntimeLogLevel};

use crate::restore;
use crate::settings::WrapperSettings;

/// Size limit of a configuration.
const MAX_CONFIG_BYTES: u64 = 64 << 20;

/// Errors of injecting hooks.
#[derive(Debug, thiserror::Error)]
pub enum InjectError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Replace(#[from] ReplaceError),
    #[error("cannot inject hooks into {}", path.display())]
    Config { path: PathBuf, source: ConfigError },
    #[error(transparent)]
    Pipeline(PipelineFailure),
    #[error(transparent)]
    Log(PathError),
    // An error, because containers would run without the hooks of this directory.
    #[error(
        "the hook directory {} is missing or has no .json files: correct its name, or set \
         allow-empty-dirs = true in the settings", path.display()
    )]
    NoHookFiles { path: PathBuf },
    #[error(
        "{0}; start a new container, or set strict = false to restore this one without the hook"
    )]
    Restore(restore::SkippedHook),
}

/// A container to create or restore.
pub struct InjectionTarget<'a> {
    pub call: &'a ContainerCall,
    /// The runtime, if it restores the container from a checkpoint.
    pub restored_by: Option<&'a Path>,
}

/// Injects matching hooks into a configuration, which is rewritten only if it changes.
pub fn inject(
    container: &InjectionTarget<'_>,
    settings: &WrapperSettings,
    log: &RuntimeLog,
) -> Result<(), InjectError> {
    check_named(settings)?;
    let path = &container.call.config;
    let file = FileAt::open(path, SymlinkPolicy::Refuse)?;
    let (text, id) = file.read(MAX_CONFIG_BYTES)?;
    let injected = match pipeline(settings, &container.call.bundle).run(&text) {
        Ok(injected) => injected,
        Err(error) => return Err(failure(*error, path, log)?),
    };
    let InjectedConfig { config, report, .. } = injected;
    write_report(&report, log)?;
    if report.hooks.is_empty() {
        return Ok(());
    }
    if let Some(runtime) = container.restored_by {
        for hook in restore::skipped_hooks(&report, runtime) {
            if settings.strict {
                return Err(InjectError::Restore(hook));
            }
            write(log, RuntimeLogLevel::Warning, &hook.to_string())?;
        }
    }
    if config == text {
        return write(
            log,
            RuntimeLogLevel::Debug,
            &format!("{} already has all matching hooks", path.display()),
        );
    }
    // The engine has just written this file without sync: after a power failure it writes a new one
    // for the next container. A sync would take longer than the rest of this function.
    let durability = Durability::Unsynced;
    let expected = ExpectedFile::Unchanged(id);
    file.replace(&config, &ReplaceOptions { expected, durability, ..Default::default() })?;
    write(log, RuntimeLogLevel::Debug, &format!("injected hooks into {}", path.display()))
}

/// Checks that each configured directory has hook files.
fn check_named(settings: &WrapperSettings) -> Result<(), InjectError> {
    if settings.allow_empty_dirs {
        return Ok(());
    }
    let mut named = settings.hooks_dirs.iter().flatten().chain(&settings.more_dirs);
    match named.find(|dir| !has_hook_files(dir)) {
        Some(dir) => Err(InjectError::NoHookFiles { path: dir.clone() }),
        None => Ok(()),
    }
}

fn pipeline(settings: &WrapperSettings, bundle: &Path) -> Pipeline {
    let mut pipeline = Pipeline::for_consumer(&settings.consumer);
    if let Some(dirs) = &settings.hooks_dirs {
        pipeline.load.dirs.clone_from(dirs);
    }
    // Directories of the settings come last: their files mask files of additional directories.
    pipeline.load.dirs.splice(..0, settings.more_dirs.iter().cloned());
    pipeline.skip_bad_files = settings.skip_bad_files;
    pipeline.missing_program = settings.missing_program;
    pipeline.required_hooks.clone_from(&settings.required_hooks);
    pipeline.strict = settings.strict.then(TrustOptions::of_process);
    pipeline.inject = InjectOptions::once();
    pipeline.precreate = settings.precreate.then(|| FilterOptions::new(bundle));
    pipeline
}

/// Logs the report of a failed injection, and returns its error.
fn failure(
    error: PipelineError,
    path: &Path,
    log: &RuntimeLog,
) -> Result<InjectError, InjectError> {
    write_report(&error.report, log)?;
    Ok(match error.failure {
        PipelineFailure::Config(source) => InjectError::Config { path: path.to_owned(), source },
        failure => InjectError::Pipeline(failure),
    })
}

fn write_report(report: &PipelineReport, log: &RuntimeLog) -> Result<(), InjectError> {
    for problem in &report.problems {
        write(log, RuntimeLogLevel::Warning, &chain(problem))?;
    }
    for hook in &report.hooks {
        write(
            log,
            RuntimeLogLevel::Debug,
            &format!("hook {} matches: {}", hook.file.display(), hook.reason),
        )?;
    }
    if report.precreate_skipped {
        let message = "matching precreate hooks were not run: the settings have precreate = false";
        write(log, RuntimeLogLevel::Warning, message)?;
    }
    for line in report.precreate_lines() {
        write(log, RuntimeLogLevel::Warning, &line)?;
    }
    Ok(())
}

fn write(log: &RuntimeLog, level: RuntimeLogLevel, message: &str) -> Result<(), InjectError> {
    log.write(level, message).map_err(InjectError::Log)
}
