//! hooks.d hooks of a container.

use std::path::Path;

use super::options::{HookOptions, Mount};
use crate::hooks::pipeline::Injected;
use crate::hooks::trust::TrustOptions;
use crate::hooks::{FilterOptions, InjectOptions, Pipeline};

/// Why hooks cannot be added.
pub use crate::hooks::pipeline::PipelineFailure as HooksError;

/// Adds the hooks that match to a configuration.
pub fn inject(
    config: &[u8],
    options: &HookOptions,
    mounts: &[Mount],
    dir: &Path,
) -> Result<Injected, HooksError> {
    let consumer = &options.consumer;
    let mut pipeline = Pipeline::for_consumer(consumer);
    if let Some(dirs) = &options.dirs {
        pipeline.load.dirs.clone_from(dirs);
    }
    pipeline.skip_bad_files = options.skip_bad_files;
    pipeline.strict = options.strict.then(TrustOptions::of_process);
    pipeline.inject = InjectOptions { once: true };
    pipeline.precreate = options.precreate.then(|| FilterOptions::new(dir));
    // A finished configuration does not say who asked for a mount; here it is known.
    pipeline.target.has_bind_mounts = Some(!mounts.is_empty());
    pipeline.run(config).map_err(|error| error.failure)
}
