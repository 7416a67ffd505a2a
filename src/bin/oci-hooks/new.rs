//! `oci-hooks new`.

use std::path::{Path, PathBuf};

use clap::Args;
use oci_hooks::hooks::manage::HookName;
use oci_hooks::hooks::{Definition, Draft, DraftWhen, Hook, PathCheck, SchemaOptions};

use crate::Exit;
use crate::context::Context;
use crate::error::Error;
use crate::install::InstallOptions;

/// Make a hook file from options
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oci-hooks new --path /usr/bin/note --stage poststop --when-always
  oci-hooks new --path /usr/bin/gpu-hook --arg setup --env PATH=/usr/bin:/bin --timeout 10 \\
      --stage createRuntime --when-annotation '^com\\.example\\.gpu$=^(all|[0-9]+)$'
  oci-hooks new --install --name 50-note --path /usr/bin/note --stage poststop --when-always

All conditions must hold; of several commands, one.")]
pub(crate) struct NewArgs {
    /// Absolute path of the program
    #[arg(long, value_name = "PROGRAM")]
    path: PathBuf,

    /// Pass this to the program, after its name (can be repeated)
    #[arg(long, allow_hyphen_values = true)]
    arg: Vec<String>,

    /// Run the program with this in its environment and nothing else (can be repeated)
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<String>,

    /// Kill the program after this time
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(1..=MAX_TIMEOUT))]
    timeout: Option<i64>,

    /// Run the program at this stage (can be repeated)
    #[arg(long, required = true)]
    stage: Vec<String>,

    /// Put the file into the last hook directory instead of printing it
    #[arg(long, requires = "name")]
    install: bool,

    #[command(flatten)]
    options: InstallOptions,

    // Last, as options after it would stand below its heading.
    #[command(flatten)]
    when: WhenArgs,
}

/// Stands for the path in errors.
const UNNAMED: &str = "new hook";

/// The longest timeout podman does not take for a negative one.
const MAX_TIMEOUT: i64 = i64::MAX / 1_000_000_000;

#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
#[command(next_help_heading = "Conditions")]
struct WhenArgs {
    /// For every container
    #[arg(long)]
    when_always: bool,

    /// For containers with an annotation whose key and value match (can be repeated)
    #[arg(long, value_name = "KEY=VALUE", value_parser = crate::target::key_value)]
    when_annotation: Vec<(String, String)>,

    /// For containers whose program matches (can be repeated)
    #[arg(long, value_name = "PATTERN")]
    when_command: Vec<String>,

    /// For containers with mounts the user asked for
    #[arg(long)]
    when_has_bind_mounts: bool,
}

pub(crate) fn run(args: &NewArgs, context: &mut Context) -> Result<Exit, Error> {
    let text = args.draft()?.to_text();
    if args.install {
        let name = args.options.name.as_ref().expect("--install requires --name");
        let name = HookName::new(name)?;
        return args.options.install(&name, Path::new(UNNAMED), text.as_bytes(), context);
    }
    let options = context.load_options();
    let schema = SchemaOptions {
        extension_stages: &options.extension_stages,
        path_check: if args.options.no_path_check { PathCheck::Skip } else { PathCheck::Exists },
        schema: options.schema,
    };
    Definition::parse(text.as_bytes(), schema)
        .map_err(|fault| Error::Fault { path: UNNAMED.into(), fault: Box::new(fault) })?;
    context.write(text)?;
    Ok(Exit::Yes)
}

impl NewArgs {
    fn draft(&self) -> Result<Draft, Error> {
        let Some(path) = self.path.to_str().filter(|path| path.starts_with('/')) else {
            return Err(Error::Usage {
                message: format!("{:?} is not an absolute path", self.path),
                hint: Some("consumers look hook.path up as it is, without PATH".to_owned()),
            });
        };
        let name = self.path.file_name().map(|name| name.to_string_lossy().into_owned());
        let args = if self.arg.is_empty() { None } else { name };
        Ok(Draft {
            hook: Hook {
                path: path.to_owned(),
                args: args.into_iter().chain(self.arg.iter().cloned()).collect(),
                env: Some(self.env.clone()).filter(|env| !env.is_empty()),
                timeout: self.timeout,
            },
            when: DraftWhen {
                always: self.when.when_always.then_some(true),
                has_bind_mounts: self.when.when_has_bind_mounts.then_some(true),
                annotations: self.when.when_annotation.iter().cloned().collect(),
                commands: self.when.when_command.clone(),
            },
            stages: self.stage.clone(),
        })
    }
}

fn variable(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some((name, _)) if !name.is_empty() => Ok(text.to_owned()),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}
