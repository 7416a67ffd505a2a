//! `oci-hooks inject`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use oci_hooks::hooks::{Config, Consumer, InjectOptions, OciStage, Selection};

use crate::Exit;
use crate::context::{Context, config_path};
use crate::diff;
use crate::error::{Error, in_config};
use crate::target::TargetArgs;

/// Add the hooks that match to a configuration, as podman would
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oci-hooks inject config.json > new.json
  oci-hooks inject --diff /run/bundle
  oci-hooks inject --in-place --once --as crio /run/bundle
  podman inspect ... | oci-hooks inject - --annotation com.example.gpu=all")]
pub(crate) struct InjectArgs {
    /// The configuration, a bundle directory with one, or - for standard input
    #[arg(value_name = "CONFIG|BUNDLE", default_value = "config.json")]
    config: PathBuf,

    #[command(flatten)]
    target: TargetArgs,

    /// Show what changes instead of the new configuration
    #[arg(long, conflicts_with_all = ["output", "in_place"])]
    diff: bool,

    /// Write the new configuration to FILE
    #[arg(long, short, value_name = "FILE", conflicts_with = "in_place")]
    output: Option<PathBuf>,

    /// Write the new configuration over the old one
    #[arg(long)]
    in_place: bool,

    /// Do not add a hook that is there already
    #[arg(long)]
    once: bool,

    /// Leave out hook files that cannot be loaded, where the consumer would give up
    #[arg(long)]
    lenient: bool,

    /// Keep hooks for stage S apart instead of adding them (can be repeated) [default: precreate, if
    /// the consumer knows it]
    #[arg(long, value_name = "S")]
    extension_stage: Vec<String>,

    /// Add all hooks; precreate is an unknown stage then
    #[arg(long, conflicts_with = "extension_stage")]
    no_extension_stages: bool,

    /// Inject prestart hooks at this stage [default: as the consumer does]
    #[arg(long, value_enum, value_name = "STAGE")]
    prestart: Option<Prestart>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Prestart {
    #[value(name = "createRuntime")]
    CreateRuntime,
    #[value(name = "prestart")]
    Prestart,
}

impl InjectArgs {
    /// Returns the consumer as the options change it.
    fn consumer(&self, consumer: &Consumer) -> Consumer {
        let mut consumer = consumer.clone();
        match self.prestart {
            Some(Prestart::CreateRuntime) => consumer.prestart = OciStage::CreateRuntime,
            Some(Prestart::Prestart) => consumer.prestart = OciStage::Prestart,
            None => {}
        }
        consumer
    }

    fn extension_stages(&self, consumer: &Consumer) -> Vec<String> {
        if self.no_extension_stages {
            return Vec::new();
        }
        if !self.extension_stage.is_empty() {
            return self.extension_stage.clone();
        }
        // podman runs poststop hooks by itself. Nobody would run them for a configuration that is
        // given to a runtime, and so they are added to it.
        let stages = consumer.extension_stages.iter().filter(|&&stage| stage != "poststop");
        stages.map(|&stage| stage.to_owned()).collect()
    }
}

pub(crate) fn run(args: &InjectArgs, context: &mut Context) -> Result<Exit, Error> {
    let consumer = args.consumer(&context.consumer);
    let path = config_path(&args.config);
    let text = context.read_config(&path)?;
    let config = in_config(&path, Config::parse(&text))?;
    let mut load_options = context.load_options();
    load_options.extension_stages = args.extension_stages(&consumer);
    let hooks = context.hooks(&load_options, args.lenient)?;
    let target = args.target.target(&config, &path, &consumer)?;
    let selection: Selection<'_> = hooks.select(&target, &consumer)?;
    let injected = in_config(&path, config.inject(&selection, InjectOptions { once: args.once }))?;
    if args.diff {
        diff::write(context, &text, &injected, &path.to_string_lossy())?;
    } else {
        context.write(&injected)?;
    }
    Ok(Exit::Yes)
}
