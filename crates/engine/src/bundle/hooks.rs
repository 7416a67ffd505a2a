//! Adds the matching hooks of hooks.d to `config.json`, except `precreate` hooks. Runtimes run them.

use std::path::Path;

use oci_hooks::hooks::pipeline::InjectedConfig;
use oci_hooks::hooks::trust::TrustOptions;
use oci_hooks::hooks::{FilterOptions, Pipeline};

use super::options::{HookOptions, MountRequest};

/// Errors of adding hooks.
pub use oci_hooks::hooks::pipeline::PipelineFailure as HooksError;

impl HookOptions {
    /// Returns the pipeline that adds the hooks, without `precreate` hooks.
    pub fn pipeline(&self) -> Pipeline {
        let mut pipeline = Pipeline::for_consumer(&self.consumer);
        if let Some(dirs) = &self.dirs {
            pipeline.load.dirs.clone_from(dirs);
        }
        pipeline.skip_bad_files = self.skip_bad_files;
        pipeline.strict = self.strict.then(TrustOptions::of_process);
        pipeline.inject.once = true;
        pipeline
    }
}

/// Adds the matching hooks to a configuration.
pub fn inject(
    config: &[u8],
    options: &HookOptions,
    mounts: &[MountRequest],
    dir: &Path,
) -> Result<InjectedConfig, HooksError> {
    let mut pipeline = options.pipeline();
    pipeline.precreate = options.precreate.then(|| FilterOptions::new(dir));
    // A finished configuration does not show which mounts were requested; here it is known.
    pipeline.target.has_bind_mounts = Some(!mounts.is_empty());
    pipeline.run(config).map_err(|error| error.failure)
}
