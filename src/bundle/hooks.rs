//! hooks.d hooks of a container.

use std::path::{Path, PathBuf};

use super::options::{HookOptions, Mount, MountSource};
use crate::hooks::consumer::BindMountRule;
use crate::hooks::trust::{self, TrustError, TrustOptions};
use crate::hooks::{
    self, Config, ConfigError, FilterError, FilterOptions, InjectOptions, LoadOptions, MatchError,
    Problem,
};

/// Why hooks cannot be added.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HooksError {
    /// A hook file cannot be used.
    #[error(transparent)]
    HookFile(#[from] Box<Problem>),
    /// A hook cannot be matched.
    #[error(transparent)]
    Match(#[from] MatchError),
    /// Others can change a hook that matches.
    #[error("others than root can change a hook{}", .0.hint_in_message())]
    Trust(#[from] TrustError),
    /// A `precreate` hook does not work.
    #[error(transparent)]
    Filter(#[from] Box<FilterError>),
    /// The configuration was not to be worked with after a `precreate` hook.
    #[error("cannot add hooks to the configuration")]
    Config(#[from] ConfigError),
    /// A `precreate` hook left something that cannot be read back.
    #[error("cannot read what precreate hooks made of the configuration")]
    Output(#[from] serde_json::Error),
}

/// What hooks did to a configuration.
#[derive(Debug, Default)]
pub(super) struct Injected {
    /// The new configuration.
    pub(super) config: Vec<u8>,
    /// The hook files that match.
    pub(super) files: Vec<PathBuf>,
    /// Hook files that could not be used, and were not needed to.
    pub(super) problems: Vec<Problem>,
    /// What `precreate` hooks said.
    pub(super) said: Vec<String>,
}

/// Adds the hooks that match to a configuration.
pub(super) fn inject(
    config: Vec<u8>,
    options: &HookOptions,
    mounts: &[Mount],
    dir: &Path,
) -> Result<Injected, HooksError> {
    let consumer = &options.consumer;
    let mut load = LoadOptions::for_consumer(consumer);
    if let Some(dirs) = &options.dirs {
        load.dirs.clone_from(dirs);
    }
    // `poststop` hooks are the runtime's: it runs them when the container is deleted.
    load.extension_stages.retain(|stage| stage != "poststop");
    let mut loaded = hooks::load(&load);
    let (fatal, mut problems) = std::mem::take(&mut loaded.problems)
        .into_iter()
        .partition::<Vec<_>, _>(|problem| problem.fatal && !options.skip_bad_files);
    if let Some(problem) = fatal.into_iter().next() {
        return Err(Box::new(problem).into());
    }
    problems.shrink_to_fit();

    let parsed = Config::parse(&config)?;
    let mut target = parsed.target(consumer.bind_mounts)?;
    // A finished configuration does not say who asked for a mount; here it is known.
    target.has_bind_mounts = mounts.iter().any(|mount| match consumer.bind_mounts {
        BindMountRule::AnyUserMount => true,
        BindMountRule::UserBindMount => {
            matches!(mount.source, MountSource::Bind { .. } | MountSource::Trusted { .. })
        }
    });
    let mut selection = loaded.hooks.select(&target, consumer)?;
    let files: Vec<PathBuf> = selection.files.iter().map(|file| file.path.clone()).collect();
    if files.is_empty() {
        return Ok(Injected { config, problems, ..Injected::default() });
    }
    if options.strict {
        for file in &selection.files {
            trust::check(file, &TrustOptions::of_process())?;
        }
        selection.set_missing_env();
    }
    let mut injected = Injected {
        config: parsed.inject(&selection, InjectOptions { once: true })?,
        files,
        problems,
        said: Vec::new(),
    };
    let filters = selection.extension_hooks().remove("precreate").unwrap_or_default();
    if options.precreate && !filters.is_empty() {
        let filtered = hooks::filter(&filters, injected.config, &FilterOptions::new(dir))?;
        let said = filtered.runs.iter().map(|run| String::from_utf8_lossy(&run.stderr));
        let said = said.map(|said| said.trim_end().to_owned()).filter(|said| !said.is_empty());
        injected.said = said.collect();
        injected.config = filtered.config;
    }
    Ok(injected)
}
