//! `oci-hooks explain`: why a hook is injected or not.

pub mod consumers;
mod human;
mod report;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use oci_hooks::hooks::{self, Config};

use crate::Exit;
use crate::context::{Context, config_path};
use crate::error::{Error, in_config};
use crate::target::TargetArgs;
use report::Report;

/// Explain which hooks are injected into a container, and why the others are not
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oci-hooks explain config.json
  oci-hooks explain --hook oci-nvidia-hook.json /run/bundle
  oci-hooks explain --consumers config.json
  podman inspect --format '{{.OCIConfigPath}}' NAME | xargs oci-hooks explain

Exit status is 1 when no hook (with --hook: none of those named) would be injected.")]
pub struct ExplainArgs {
    /// OCI config.json, a bundle directory, or - for standard input
    #[arg(value_name = "CONFIG|BUNDLE", default_value = "config.json")]
    config: PathBuf,

    /// Explain only this hook file, named with or without .json (can be repeated)
    #[arg(long, value_name = "NAME")]
    hook: Vec<OsString>,

    /// Compare all consumers, one column each
    #[arg(long)]
    consumers: bool,

    #[command(flatten)]
    target: TargetArgs,
}

impl ExplainArgs {
    /// Returns whether a hook file is selected by `--hook`.
    fn wants(&self, name: &str) -> bool {
        self.hook.is_empty()
            || self.hook.iter().any(|wanted| {
                let wanted = wanted.to_string_lossy();
                name == wanted || name.strip_suffix(".json") == Some(&wanted)
            })
    }
}

pub fn run(args: &ExplainArgs, context: &mut Context) -> Result<Exit, Error> {
    let path = config_path(&args.config);
    let text = context.read_config(&path)?;
    let config = in_config(&path, Config::parse(&text))?;
    if args.consumers {
        return consumers::run(args, &config, &path, context);
    }
    let target = args.target.target(&config, &path, &context.consumer)?;
    let directories = context.directories()?;
    let loaded = hooks::load(&context.load_options(&directories));
    let mut report = Report::new(&loaded, &target, &context.consumer, |name| args.wants(name));
    report.add_findings(&context.consumer);
    report.add_directories(&directories, |name| args.wants(name));
    if context.is_json() {
        context.json(&report)?;
    } else {
        human::write(&report, context)?;
    }
    Ok(if report.injects() { Exit::Yes } else { Exit::No })
}
