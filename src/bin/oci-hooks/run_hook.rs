//! `oci-hooks run-hook`: the recorder that `inject --capture` puts in front of a hook.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use oci_hooks::hooks::capture::{self, Capture};
use oci_hooks::sys::fs::PathContext;

use crate::Exit;
use crate::context::Context;
use crate::error::{Diagnostic, Error};

/// How much of each of the hook's outputs is kept.
const OUTPUT_LIMIT_BYTES: u64 = 1 << 20;

/// Run a hook and record what it writes and how it ends
#[derive(Debug, Args)]
#[command(after_help = "\
`oci-hooks inject --capture DIR` puts this in front of the hooks it injects. Standard input, outputs
and the exit code are those of the hook; a signal N becomes 128+N. Each run makes a JSON file in DIR.

Example:
  oci-hooks run-hook --capture=/var/log/hooks --hook=gpu.json --stage=createRuntime -- /usr/bin/gpu-hook prestart < state.json")]
pub(crate) struct RunHookArgs {
    /// Directory for the record
    #[arg(long, value_name = "DIR")]
    capture: PathBuf,

    /// File name of the hook, for the record
    #[arg(long, value_name = "NAME", default_value = "")]
    hook: String,

    /// Stage the hook runs at, for the record
    #[arg(long, value_name = "STAGE", default_value = "")]
    stage: String,

    /// Kill the hook after this many seconds
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    timeout: Option<i64>,

    /// What the hook gets as argv[0] [default: PROGRAM]
    #[arg(long, value_name = "NAME")]
    arg0: Option<OsString>,

    /// The hook's program
    program: PathBuf,

    /// Its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

pub(crate) fn run(args: &RunHookArgs, context: &mut Context) -> Result<Exit, Error> {
    let state = capture::read_state(io::stdin().lock())?;
    let env: Vec<_> = std::env::vars_os().collect();
    let cwd = std::env::current_dir().at("find", Path::new("the working directory"))?;
    let arg0 = args.arg0.as_deref().unwrap_or(args.program.as_os_str());
    let argv: Vec<&OsStr> =
        std::iter::once(arg0).chain(args.args.iter().map(OsString::as_os_str)).collect();
    let captured = Capture {
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

    // The container must not fail for want of a record.
    if let Err(error) = captured.record {
        context.warn(&Diagnostic::of_error("capture", &error));
    }
    if let Some(error) = captured.failure {
        context.warn(&Diagnostic::of_error("execute", &error));
    }
    // If the runtime does not read what the hook writes, neither would it have been told.
    let _ = io::stderr().write_all(&captured.stderr);
    let _ = context.write(&captured.stdout).and_then(|()| context.flush());
    Ok(Exit::Code(captured.exit_code))
}
