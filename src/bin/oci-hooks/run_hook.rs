//! `oci-hooks run-hook`: the recorder in which `inject --capture` wraps hooks.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use oci_hooks::hooks::capture::{self, HookCapture};
use oci_hooks_files::fs::PathContext;

use crate::CommandExit;
use crate::context::CommandContext;
use crate::error::{Diagnostic, HooksCommandError};

/// Size limit of each recorded output stream.
const OUTPUT_LIMIT_BYTES: u64 = 1 << 20;

/// Run a hook and record its output and exit status
#[derive(Debug, Args)]
#[command(after_help = "\
`oci-hooks inject --capture DIR` wraps injected hooks in this command. Standard input, outputs and
exit code are those of the hook; signal N becomes 128+N. Each run writes a JSON file to DIR.

Example:
  oci-hooks run-hook --capture=/var/log/hooks --hook=gpu.json --stage=createRuntime -- \\
      /usr/bin/gpu-hook prestart < state.json")]
pub struct RunHookArgs {
    /// Directory in which to write the record
    #[arg(long, value_name = "DIR")]
    capture: PathBuf,

    /// File name of the hook, as recorded
    #[arg(long, value_name = "NAME", default_value = "")]
    hook: String,

    /// Stage of the hook, as recorded
    #[arg(long, value_name = "STAGE", default_value = "")]
    stage: String,

    /// Kill the hook after this many seconds
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    timeout: Option<i64>,

    /// argv[0] of the hook [default: PROGRAM]
    #[arg(long, value_name = "NAME")]
    arg0: Option<OsString>,

    /// Program of the hook to execute
    program: PathBuf,

    /// Arguments of the hook, without argv[0]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

pub fn run(
    args: &RunHookArgs,
    context: &mut CommandContext,
) -> Result<CommandExit, HooksCommandError> {
    let state = capture::read_state(io::stdin().lock())?;
    let env: Vec<_> = std::env::vars_os().collect();
    let cwd = std::env::current_dir().with_path("find", Path::new("the working directory"))?;
    let arg0 = args.arg0.as_deref().unwrap_or(args.program.as_os_str());
    let argv: Vec<&OsStr> =
        std::iter::once(arg0).chain(args.args.iter().map(OsString::as_os_str)).collect();
    let captured = HookCapture {
        directory: &args.capture,
        hook: &args.hook,
        stage: &args.stage,
        path: &args.program,
        argv,
        env: env.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str())).collect(),
        cwd: &cwd,
        timeout: args.timeout,
        state: &state,
        output_limit_bytes: OUTPUT_LIMIT_BYTES,
    }
    .run();

    // A missing record must not fail the container.
    if let Err(error) = captured.record {
        context.warn(&Diagnostic::of_error("capture", &error));
    }
    if let Some(error) = captured.failure {
        context.warn(&Diagnostic::of_error("execute", &error));
    }
    // A runtime that does not read the output is no reason to fail.
    let _ = io::stderr().write_all(&captured.stderr);
    let _ = context.write(&captured.stdout).and_then(|()| context.flush());
    Ok(CommandExit::Code(captured.exit_code))
}
