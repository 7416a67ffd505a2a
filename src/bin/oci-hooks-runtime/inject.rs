//! Adding hooks to the bundle of a container that is about to be made.

use std::path::{Path, PathBuf};

use oci_hooks::hooks::trust::{self, TrustError, TrustOptions};
use oci_hooks::hooks::{
    self, Config, ConfigError, FilterError, FilterOptions, Hook, HookSet, InjectOptions,
    LoadOptions, MatchError, Problem, Selection,
};
use oci_hooks::runtime::{Level, Log};
use oci_hooks::sys::error::chain;
use oci_hooks::sys::fs::{
    Durability, Expected, FileAt, PathError, ReadError, ReplaceError, ReplaceOptions, Symlinks,
};

use crate::settings::Settings;

/// The most a configuration may hold.
const MAX_CONFIG_BYTES: u64 = 64 << 20;

/// Why hooks could not be added.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InjectError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Replace(#[from] ReplaceError),
    #[error("cannot add hooks to {}", path.display())]
    Config { path: PathBuf, source: ConfigError },
    #[error(transparent)]
    HookFile(#[from] Box<Problem>),
    #[error(transparent)]
    Match(#[from] MatchError),
    #[error("others than root can change a hook{}", .0.hint_in_message())]
    Trust(#[from] TrustError),
    #[error(transparent)]
    Filter(#[from] Box<FilterError>),
    #[error(transparent)]
    Log(PathError),
}

/// Adds the hooks that match to a configuration, which stays as it is when none do.
pub(crate) fn inject(path: &Path, settings: &Settings, log: &Log) -> Result<(), InjectError> {
    let debug = |message: String| log.write(Level::Debug, &message).map_err(InjectError::Log);
    let in_config = |source| InjectError::Config { path: path.to_owned(), source };

    let file = FileAt::open(path, Symlinks::Refuse)?;
    let (text, id) = file.read(MAX_CONFIG_BYTES)?;
    let config = Config::parse(&text).map_err(in_config)?;
    let hooks = load(settings, log)?;
    let target = config.target(settings.consumer.bind_mounts).map_err(in_config)?;
    let mut selection = hooks.select(&target, &settings.consumer)?;
    for file in &selection.files {
        debug(format!("hook {} matches", file.path.display()))?;
    }
    if selection.files.is_empty() {
        return Ok(());
    }
    if settings.strict {
        for file in &selection.files {
            trust::check(file, &TrustOptions::of_process())?;
        }
        selection.set_missing_env();
    }
    let injected = config.inject(&selection, InjectOptions { once: true }).map_err(in_config)?;
    let injected = run_precreate(&selection, injected, path, settings, log)?;
    if injected == text {
        return debug(format!("{} has these hooks already", path.display()));
    }
    // The engine wrote this file a moment ago without waiting for the disk: after a power cut it
    // writes another one for the next container. Waiting takes longer than all else done here.
    let durability = Durability::Unsynced;
    let expected = Expected::Unchanged(id);
    file.replace(&injected, &ReplaceOptions { expected, durability, ..Default::default() })?;
    debug(format!("added hooks to {}", path.display()))
}

fn load(settings: &Settings, log: &Log) -> Result<HookSet, InjectError> {
    let mut options = LoadOptions::for_consumer(&settings.consumer);
    if let Some(dirs) = &settings.hooks_dirs {
        options.dirs.clone_from(dirs);
    }
    // The engine does not know hooks.d and runs no poststop hooks for us: the runtime does.
    options.extension_stages.retain(|stage| stage != "poststop");
    let loaded = hooks::load(&options);
    for problem in &loaded.problems {
        if !problem.fatal || settings.skip_bad_files {
            log.write(Level::Warning, &chain(problem)).map_err(InjectError::Log)?;
        }
    }
    if settings.skip_bad_files {
        return Ok(loaded.hooks);
    }
    Ok(loaded.into_strict()?)
}

/// Runs the `precreate` hooks, each of which may rewrite the configuration.
fn run_precreate(
    selection: &Selection<'_>,
    config: Vec<u8>,
    path: &Path,
    settings: &Settings,
    log: &Log,
) -> Result<Vec<u8>, InjectError> {
    let hooks: Vec<&Hook> = selection.extension_hooks().remove("precreate").unwrap_or_default();
    if hooks.is_empty() {
        return Ok(config);
    }
    if !settings.precreate {
        let message = "precreate hooks match but are turned off in the settings";
        log.write(Level::Warning, message).map_err(InjectError::Log)?;
        return Ok(config);
    }
    let bundle = path.parent().unwrap_or(Path::new("."));
    let filtered = hooks::filter(&hooks, config, &FilterOptions::new(bundle))?;
    for run in &filtered.runs {
        let stderr = String::from_utf8_lossy(&run.stderr);
        if !stderr.trim().is_empty() {
            log.write(Level::Warning, stderr.trim_end()).map_err(InjectError::Log)?;
        }
    }
    Ok(filtered.config)
}
