//! Adds hooks to the typed configuration of a runtime that keeps it as `oci_spec::runtime::Spec`: matches hook files,
//! runs `precreate` hooks, and prints the hooks that the runtime has to run at each stage.
//!
//! ```text
//! cargo run --example runtime -- hooks.d-examples/bundle hooks.d-examples
//! ```

use std::env;
use std::error::Error;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use oci_hooks::hooks::consumer::PODMAN;
use oci_hooks::hooks::{self, FilterOptions, Hook, LoadOptions, MatchTarget};
use oci_spec::runtime::Spec;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args_os().skip(1).map(PathBuf::from);
    let bundle = arguments.next().ok_or("usage: runtime BUNDLE HOOKS_DIR...")?;
    let mut spec = Spec::load(bundle.join("config.json"))?;
    add_hooks(&mut spec, &bundle, arguments.collect())?;
    for hook in spec.hooks().iter().flat_map(|hooks| hooks.create_runtime().iter().flatten()) {
        let hook = Hook::try_from(hook)?;
        writeln!(io::stdout(), "run at createRuntime: {} {:?}", hook.path, hook.args)?;
    }
    Ok(())
}

/// Adds the hooks of directories to the configuration of a bundle, as podman does.
pub(crate) fn add_hooks(
    spec: &mut Spec,
    bundle: &Path,
    dirs: Vec<PathBuf>,
) -> Result<(), Box<dyn Error>> {
    let mut options = LoadOptions::for_consumer(&PODMAN);
    options.dirs = dirs;
    // Podman runs poststop hooks itself; here the runtime runs them.
    options.extension_stages.retain(|stage| stage == "precreate");
    let hooks = hooks::load(&options).into_strict()?;
    let target = MatchTarget::of_spec(spec, PODMAN.bind_mounts);
    let selection = hooks.select(&target, &PODMAN)?;
    selection.add_to_spec(spec);
    let precreate = selection.extension_hooks().remove("precreate").unwrap_or_default();
    hooks::filter_spec(&precreate, spec, &FilterOptions::new(bundle))?;
    Ok(())
}
