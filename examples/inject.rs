//! Injects hooks as a container runtime does between reading a bundle and creating its container: loads
//! the hook files, prints why each applies or does not, and prints the new configuration.
//!
//! ```text
//! cargo run --example inject -- hooks.d-examples/bundle/config.json hooks.d-examples
//! ```
//!
//! Matching needs no I/O: a program that creates many containers loads once and shares the hooks between
//! threads. One that creates a single container can call `hooks::Pipeline`, which also checks who may change
//! the hooks, and runs precreate hooks.

use std::env;
use std::error::Error;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use oci_hooks::hooks::consumer::PODMAN;
use oci_hooks::hooks::{self, ConfigDocument, InjectOptions, LoadOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args_os().skip(1).map(PathBuf::from);
    let config = arguments.next().ok_or("usage: inject CONFIG.JSON [HOOKS_DIR...]")?;
    inject(&config, arguments.collect(), &mut io::stdout(), &mut io::stderr())
}

/// Writes the configuration with hooks of these directories to `out`, and the reasons to `log`. Without
/// directories, those of podman are read.
pub(crate) fn inject(
    config: &Path,
    dirs: Vec<PathBuf>,
    out: &mut dyn Write,
    log: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    let mut options = LoadOptions::for_consumer(&PODMAN);
    if !dirs.is_empty() {
        options.dirs = dirs;
    }
    let loaded = hooks::load(&options);
    for problem in &loaded.problems {
        writeln!(log, "skipped: {problem}: {}", problem.source)?;
    }

    let text = fs::read(config)?;
    let config = ConfigDocument::parse(&text)?;
    let target = config.target(PODMAN.bind_mounts)?;
    for verdict in loaded.hooks.evaluate(&target) {
        let outcome = verdict.outcome?;
        let applies = if outcome.matched { "applies" } else { "does not apply" };
        writeln!(log, "{} {applies}: {}", verdict.file.name.display(), outcome.reason)?;
    }

    let selection = loaded.hooks.select(&target, &PODMAN)?;
    for (stage, hooks) in selection.extension_hooks() {
        // Podman runs precreate hooks on the configuration itself, before the runtime sees it.
        writeln!(log, "not injected: {} hooks of stage {stage}", hooks.len())?;
    }
    out.write_all(&config.inject(&selection, InjectOptions::default())?)?;
    Ok(())
}
