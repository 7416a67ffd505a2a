//! Adding hooks to the bundle of a container that is about to be made.

use std::path::{Path, PathBuf};

use oci_hooks::hooks::pipeline::{Injected, PipelineError, PipelineFailure, Report};
use oci_hooks::hooks::trust::TrustOptions;
use oci_hooks::hooks::{ConfigError, FilterOptions, InjectOptions, Pipeline, has_hook_files};
use oci_hooks::runtime::{ContainerCall, Level, Log};
use oci_hooks::sys::error::chain;
use oci_hooks::sys::fs::{
    Durability, Expected, FileAt, PathError, ReadError, ReplaceError, ReplaceOptions, Symlinks,
};

use crate::restore;
use crate::settings::Settings;

/// Size limit of a configuration.
const MAX_CONFIG_BYTES: u64 = 64 << 20;

/// Why hooks could not be added.
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
    // Containers would run without the hooks of this directory.
    #[error(
        "the hook directory {} is missing or has no .json files: correct its name, or set \
         allow-empty-dirs = true in the settings", path.display()
    )]
    NoHookFiles { path: PathBuf },
    #[error(
        "{0}; start a new container, or set strict = false to restore this one without the hook"
    )]
    Restore(restore::NotRun),
}

/// A container that is about to be made.
pub struct Container<'a> {
    pub call: &'a ContainerCall,
    /// The runtime that restores it from a checkpoint, if one does.
    pub restored_by: Option<&'a Path>,
}

/// Injects matching hooks into a configuration, which is not rewritten if none match.
pub fn inject(
    container: &Container<'_>,
    settings: &Settings,
    log: &Log,
) -> Result<(), InjectError> {
    check_named(settings)?;
    let path = &container.call.config;
    let file = FileAt::open(path, Symlinks::Refuse)?;
    let (text, id) = file.read(MAX_CONFIG_BYTES)?;
    let injected = match pipeline(settings, &container.call.bundle).run(&text) {
        Ok(injected) => injected,
        Err(error) => return Err(failure(*error, path, log)?),
    };
    let Injected { config, report, .. } = injected;
    write_report(&report, log)?;
    if report.hooks.is_empty() {
        return Ok(());
    }
    if let Some(runtime) = container.restored_by {
        for hook in restore::not_run(&report, runtime) {
            if settings.strict {
                return Err(InjectError::Restore(hook));
            }
            write(log, Level::Warning, &hook.to_string())?;
        }
    }
    if config == text {
        return write(log, Level::Debug, &format!("{} already has these hooks", path.display()));
    }
    // The engine wrote this file a moment ago without waiting for the disk: after a power cut it
    // writes another one for the next container. Waiting takes longer than all else done here.
    let durability = Durability::Unsynced;
    let expected = Expected::Unchanged(id);
    file.replace(&config, &ReplaceOptions { expected, durability, ..Default::default() })?;
    write(log, Level::Debug, &format!("injected hooks into {}", path.display()))
}

/// Checks that each directory that is named has hook files.
fn check_named(settings: &Settings) -> Result<(), InjectError> {
    if settings.allow_empty_dirs {
        return Ok(());
    }
    let mut named = settings.hooks_dirs.iter().flatten().chain(&settings.more_dirs);
    match named.find(|dir| !has_hook_files(dir)) {
        Some(dir) => Err(InjectError::NoHookFiles { path: dir.clone() }),
        None => Ok(()),
    }
}

fn pipeline(settings: &Settings, bundle: &Path) -> Pipeline {
    let mut pipeline = Pipeline::for_consumer(&settings.consumer);
    if let Some(dirs) = &settings.hooks_dirs {
        pipeline.load.dirs.clone_from(dirs);
    }
    // Those of the settings come last: theirs are the files that mask others.
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
fn failure(error: PipelineError, path: &Path, log: &Log) -> Result<InjectError, InjectError> {
    write_report(&error.report, log)?;
    Ok(match error.failure {
        PipelineFailure::Config(source) => InjectError::Config { path: path.to_owned(), source },
        failure => InjectError::Pipeline(failure),
    })
}

fn write_report(report: &Report, log: &Log) -> Result<(), InjectError> {
    for problem in &report.problems {
        write(log, Level::Warning, &chain(problem))?;
    }
    for hook in &report.hooks {
        write(
            log,
            Level::Debug,
            &format!("hook {} matches: {}", hook.file.display(), hook.reason),
        )?;
    }
    if report.precreate_skipped {
        let message = "matching precreate hooks are disabled in the settings";
        write(log, Level::Warning, message)?;
    }
    for line in report.precreate_lines() {
        write(log, Level::Warning, &line)?;
    }
    Ok(())
}

fn write(log: &Log, level: Level, message: &str) -> Result<(), InjectError> {
    log.write(level, message).map_err(InjectError::Log)
}
