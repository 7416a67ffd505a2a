//! `oci-hooks run-hook`: runs the hook of a hook file, or records the run of a hook that `inject --capture` wrapped.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use clap_complete::ArgValueCandidates;
use oci_hooks::hooks::capture::HookCapture;
use oci_hooks::hooks::manage::{HookName, ManageError};
use oci_hooks::hooks::{self, Hook, HookStage};
use oci_hooks_cli::exit::CliExit;
use oci_hooks_files::error::chain;
use oci_hooks_files::fs::PathContext;
use oci_hooks_files::process::ProgramEnd;

use crate::context::{CommandContext, read_limited};
use crate::directories;
use crate::error::{Diagnostic, HooksCommandError};
use crate::remove::complete_active;

/// Size limit of each recorded output stream.
const OUTPUT_LIMIT_BYTES: u64 = 1 << 20;

/// Run a hook, and record its output and exit status
#[derive(Debug, Args)]
#[command(after_help = "\
With --hook alone, the hook file in force decides program, arguments, environment and timeout, as
for the engine. `oci-hooks inject --capture DIR` wraps injected hooks in this command, with PROGRAM.
Standard input, the container's state, outputs and exit code are those of the hook; signal N becomes
128+N.

Examples:
  runc state web | oci-hooks run-hook --hook gpu.json
  oci-hooks run-hook --capture=/var/log/hooks --hook=gpu.json --stage=createRuntime -- \\
      /usr/bin/gpu-hook prestart < state.json")]
pub struct RunHookArgs {
    /// Write a record of the run, a JSON file, to DIR
    #[arg(long, value_name = "DIR")]
    capture: Option<PathBuf>,

    /// Name of the hook file to run; with PROGRAM, only the name in the record
    #[arg(long, value_name = "NAME", add = ArgValueCandidates::new(complete_active))]
    hook: Option<String>,

    /// Stage of the hook in the record [default: the first of the hook file]
    #[arg(long, value_name = "STAGE")]
    stage: Option<String>,

    /// Kill the hook after this many seconds [default: `timeout` of the hook file]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    timeout: Option<i64>,

    /// argv[0] of the hook [default: PROGRAM]
    #[arg(long, value_name = "NAME")]
    arg0: Option<OsString>,

    /// Program of the hook to execute [default: that of the hook file]
    #[arg(required_unless_present = "hook")]
    program: Option<PathBuf>,

    /// Arguments of the hook, without argv[0]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// A hook to run.
struct HookCall {
    name: String,
    stage: String,
    program: PathBuf,
    /// `argv[0]`; by default the program.
    arg0: Option<OsString>,
    /// Arguments, without `argv[0]`.
    args: Vec<OsString>,
    /// Environment; by default that of this process.
    env: Option<Vec<(OsString, OsString)>>,
    timeout: Option<i64>,
}

impl HookCall {
    /// Returns the hook of the hook file `name` that the consumer uses.
    fn of_file(name: &HookName, context: &mut CommandContext) -> Result<Self, HooksCommandError> {
        context.use_installed();
        let directories = context.directories()?;
        let loaded = hooks::load(&context.load_options(&directories));
        let name = name.as_os_str();
        let Some(file) = loaded.hooks.get(name) else {
            context.warn_of_problems(&loaded.problems);
            let error = ManageError::NoSuchHook { name: name.to_owned() };
            return Err(directories::explain_error(error, &directories, &context.consumer));
        };
        let Hook { path, args, env, timeout } = file.definition.hook.clone();
        let variable = |text: String| {
            let (name, value) = text.split_once('=').unwrap_or((&text, ""));
            (name.into(), value.into())
        };
        Ok(HookCall {
            name: name.to_string_lossy().into_owned(),
            stage: file.definition.stages.first().map_or("", HookStage::name).to_owned(),
            program: path.into(),
            arg0: args.first().map(OsString::from),
            args: args.into_iter().skip(1).map(OsString::from).collect(),
            env: env.map(|env| env.into_iter().map(variable).collect()),
            timeout,
        })
    }
}

pub fn run(args: &RunHookArgs, context: &mut CommandContext) -> Result<CliExit, HooksCommandError> {
    let call = match &args.program {
        Some(program) => HookCall {
            name: args.hook.clone().unwrap_or_default(),
            stage: String::new(),
            program: program.clone(),
            arg0: None,
            args: args.args.clone(),
            env: None,
            timeout: None,
        },
        None => {
            HookCall::of_file(&HookName::new(args.hook.as_deref().unwrap_or_default())?, context)?
        }
    };
    let state = read_limited(io::stdin().lock(), Path::new("standard input"))?;
    let env = call.env.unwrap_or_else(|| std::env::vars_os().collect());
    let cwd = std::env::current_dir().with_path("find", Path::new("the working directory"))?;
    let arg0 = args.arg0.as_deref().or(call.arg0.as_deref());
    let arg0 = arg0.unwrap_or(call.program.as_os_str());
    let argv: Vec<&OsStr> =
        std::iter::once(arg0).chain(call.args.iter().map(OsString::as_os_str)).collect();
    let timeout = args.timeout.or(call.timeout);
    let captured = HookCapture {
        directory: args.capture.as_deref(),
        hook: &call.name,
        stage: args.stage.as_deref().unwrap_or(&call.stage),
        path: &call.program,
        argv,
        env: env.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str())).collect(),
        cwd: &cwd,
        timeout,
        state: &state,
        output_limit_bytes: OUTPUT_LIMIT_BYTES,
    }
    .run();

    // A missing record must not fail the container.
    if let Err(error) = captured.record {
        context.warn(&Diagnostic::new("capture", None, chain(&error)));
    }
    match &captured.result {
        Ok(finished) => {
            if finished.end == ProgramEnd::TimedOut {
                let message = format!("killed at its timeout of {} s", timeout.unwrap_or_default());
                context.warn(&Diagnostic::new("timeout", Some(&call.program), message));
            }
            // A runtime that does not read the output is no reason to fail.
            let _ = io::stderr().write_all(&finished.stderr);
            let _ = context.write(&finished.stdout).and_then(|()| context.flush());
        }
        Err(error) => context.warn(&Diagnostic::new("execute", None, chain(error))),
    }
    Ok(CliExit::Code(captured.exit_code))
}
