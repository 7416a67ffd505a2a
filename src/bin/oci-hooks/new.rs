//! `oci-hooks new`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use oci_hooks::hooks::manage::HookName;
use oci_hooks::hooks::{
    DraftConditions, Hook, HookDefinition, HookDraft, LoadOptions, ParseOptions, PathCheck,
};
use oci_hooks_cli::exit::CliExit;

use crate::context::CommandContext;
use crate::error::HooksCommandError;
use crate::install::InstallOptions;

/// Create a hook file from command-line options
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oci-hooks new --path /usr/bin/note --stage poststop --when-always
  oci-hooks new --path /usr/bin/gpu-hook --arg setup --env PATH=/usr/bin:/bin --timeout 10 \\
      --stage createRuntime --when-annotation '^com\\.example\\.gpu$=^(all|[0-9]+)$'
  oci-hooks new --install --name 50-note --path /usr/bin/note --stage poststop --when-always

A container must meet all conditions; of several commands, one must match.")]
pub struct NewArgs {
    /// Absolute path of the hook's program
    #[arg(long, value_name = "PROGRAM")]
    path: PathBuf,

    /// Argument of the program, after argv[0] (can be repeated)
    #[arg(long, allow_hyphen_values = true)]
    arg: Vec<String>,

    /// Environment variable of the program; without any, the environment is unspecified (can be repeated)
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<String>,

    /// Time limit, after which the runtime kills the program
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(1..=MAX_TIMEOUT))]
    timeout: Option<i64>,

    /// Stage at which the program runs (can be repeated)
    #[arg(long, required = true)]
    stage: Vec<String>,

    /// Install the file in the last hook directory instead of printing it
    #[arg(long, requires = "name")]
    install: bool,

    #[command(flatten)]
    options: InstallOptions,

    // This field is last, because clap lists all options after it under its heading.
    #[command(flatten)]
    when: WhenArgs,
}

/// The path of the unnamed hook file in errors.
const UNNAMED: &str = "new hook";

/// The longest timeout in seconds that does not overflow podman's `time.Duration`.
const MAX_TIMEOUT: i64 = i64::MAX / 1_000_000_000;

#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
#[command(next_help_heading = "Conditions")]
struct WhenArgs {
    /// Match every container, without other conditions
    #[arg(long, conflicts_with_all = ["when_annotation", "when_command", "when_has_bind_mounts"])]
    when_always: bool,

    /// Match containers with an annotation whose key and value match these patterns (can be repeated)
    #[arg(long, value_name = "KEY=VALUE", value_parser = crate::target::key_value)]
    when_annotation: Vec<(String, String)>,

    /// Match containers whose command (`args[0]`) matches this pattern (can be repeated)
    #[arg(long, value_name = "PATTERN")]
    when_command: Vec<String>,

    /// Match containers with bind mounts that the user requested
    #[arg(long)]
    when_has_bind_mounts: bool,
}

pub fn run(args: &NewArgs, context: &mut CommandContext) -> Result<CliExit, HooksCommandError> {
    let text = args.draft()?.to_text();
    if args.install {
        let name = args.options.name.as_ref().expect("--install requires --name");
        let name = HookName::new(name)?;
        return args.options.install(&name, Path::new(UNNAMED), text.as_bytes(), context);
    }
    if let Some(option) = args.options.of_installation() {
        return Err(HooksCommandError::Usage {
            message: format!("{option} has no effect without --install"),
            hint: None,
        });
    }
    args.options.lint(Path::new(UNNAMED), text.as_bytes(), false, context)?;
    let options = LoadOptions::for_consumer(&context.consumer);
    let path_check = if args.options.no_path_check { PathCheck::Skip } else { PathCheck::Exists };
    let schema = ParseOptions::new(&options.extension_stages).with_path_check(path_check);
    HookDefinition::parse(text.as_bytes(), schema).map_err(|fault| HooksCommandError::Fault {
        path: UNNAMED.into(),
        fault: Box::new(fault),
    })?;
    context.write(text)?;
    Ok(CliExit::Done)
}

impl NewArgs {
    fn draft(&self) -> Result<HookDraft, HooksCommandError> {
        let Some(path) = self.path.to_str().filter(|path| path.starts_with('/')) else {
            return Err(HooksCommandError::Usage {
                message: format!("invalid --path {:?}: expected an absolute path", self.path),
                hint: Some("consumers do not search PATH for `hook.path`".to_owned()),
            });
        };
        let mut annotations = BTreeMap::new();
        for (key, value) in &self.when.when_annotation {
            if annotations.insert(key.clone(), value.clone()).is_some_and(|other| other != *value) {
                return Err(HooksCommandError::Usage {
                    message: format!("--when-annotation has two patterns for the key {key:?}"),
                    hint: Some(
                        "a hook file has one value for each key: join them as (A|B)".to_owned(),
                    ),
                });
            }
        }
        let name = self.path.file_name().map(|name| name.to_string_lossy().into_owned());
        let args = if self.arg.is_empty() { None } else { name };
        Ok(HookDraft {
            hook: Hook {
                path: path.to_owned(),
                args: args.into_iter().chain(self.arg.iter().cloned()).collect(),
                env: Some(self.env.clone()).filter(|env| !env.is_empty()),
                timeout: self.timeout,
            },
            when: DraftConditions {
                always: self.when.when_always.then_some(true),
                has_bind_mounts: self.when.when_has_bind_mounts.then_some(true),
                annotations,
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
