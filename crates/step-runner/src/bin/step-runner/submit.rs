//! `step-runner submit`.

use std::cell::Cell;
use std::future::pending;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::thread;
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};
use futures_util::future::{Either, select};
use oci_hooks_cli::context::OutputError;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_files::fs::random_u64;
use serde_json::{Map, Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use step_runner::ExprValue;
use step_runner::client::{ClientError, ExecuteOutcome, ServerAddress, StepClient};
use step_runner::document::{StepCall, StepReference, is_name};
use step_runner::log::{LogDemux, LogStream};
use step_runner::resolve::{Interrupt, ReferenceContext};
use step_runner::wire::proto::step_result::Status;
use step_runner::wire::proto::{Job, RunRequest, Variable};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

use crate::error::StepRunnerError;
use crate::step_args::{SOURCE, StepArgs};
use crate::{environment, report, resolver};

/// Exit code after Ctrl-C, as in shells.
const INTERRUPTED: u8 = 130;

/// Maximum time to wait for the answer to a close request. The server answers when the job has ended, and closes the
/// job also if the client leaves earlier.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Send a step to a running server, and follow its log
#[derive(Args, Debug)]
#[command(group = ArgGroup::new(SOURCE).required(true), after_help = "\
The server reads STEP: a directory or a file must exist where the server runs. Ctrl-C cancels the job, which \
may run its cleanup steps; a second Ctrl-C closes it and does not wait: the server removes the job when it has \
ended, and kills it if it runs longer than --grace and --cleanup of serve allow.

Examples:
  step-runner submit ./build --input target=release   Run a step on the default socket
  step-runner submit --socket /run/steps.sock ./build Run a step on another socket
  step-runner submit . --format json | jq .exit_code  Machine-readable outcome

Exit status is 0 if the step succeeded; otherwise that of the failed command, or 1 if no command failed; 130 \
after Ctrl-C.")]
pub struct SubmitArgs {
    #[command(flatten)]
    step: StepArgs,
    /// Socket of the server [default: STEP_RUNNER_SOCKET, or else the default socket of serve]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Id of the job; if a job with this id exists, follow its log [default: random]
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// Time limit for retries while the server cannot be reached
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = crate::quantity::time)]
    wait: Duration,
    /// Output format of the outcome
    ///
    /// With json, the log goes to stderr.
    #[arg(long, value_enum, default_value_t = OutcomeFormat::Text, value_name = "FORMAT")]
    format: OutcomeFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OutcomeFormat {
    /// The log on stdout and stderr
    Text,
    /// Id, status, message and exit code as JSON on stdout
    Json,
}

pub fn run(args: &SubmitArgs) -> Result<CliExit, StepRunnerError> {
    let request = request(args)?;
    let id = request.id.clone();
    let signals = signals()?;
    let socket = args.socket.clone().unwrap_or_else(environment::server_socket);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let interrupts = Cell::new(0);
    let outcome = runtime.map_err(StepRunnerError::Threads)?.block_on(async {
        // `StepClient` requires a tokio runtime.
        let client = StepClient::new(ServerAddress::Socket(socket.clone())).with_give_up(args.wait);
        let followed = pin!(follow(&client, request, args.format));
        let interrupted = pin!(interrupt(&client, &id, signals, &interrupts));
        match select(followed, interrupted).await {
            Either::Left((outcome, _)) => outcome,
            Either::Right(_) => Ok(None),
        }
    });
    let outcome = outcome.map_err(|error| match error {
        StepRunnerError::Submit(source @ ClientError::Unreachable { .. }) => {
            StepRunnerError::Server { socket, source }
        }
        error => error,
    })?;
    match outcome {
        Some(outcome) => {
            show(&id, &outcome, args.format)?;
            Ok(match outcome.status {
                Status::Success => CliExit::Done,
                _ if interrupts.get() > 0 => CliExit::Code(INTERRUPTED),
                _ => CliExit::Code(u8::try_from(outcome.exit_code).unwrap_or(1)),
            })
        }
        // The job was closed, so its status is unknown.
        None if interrupts.get() > 1 => Ok(CliExit::Code(INTERRUPTED)),
        None => Err(StepRunnerError::Submit(ClientError::Lost { id })),
    }
}

fn request(args: &SubmitArgs) -> Result<RunRequest, StepRunnerError> {
    let work_dir = args.step.work_dir()?;
    let vars = args.step.vars()?;
    let env = environment::variables();
    let interrupt = Interrupt::new().map_err(StepRunnerError::Signals)?;
    let caller = ReferenceContext {
        dir: &work_dir,
        tree: None,
        vars: &vars,
        env: &env,
        interrupt: &interrupt,
    };
    let call = args.step.call(&resolver::open()?, &caller)?;
    // Relative references are relative to the working directory on the server too.
    let work_dir = work_dir.to_string_lossy().into_owned();
    let variable = |(key, value)| Variable { key, value, ..Variable::default() };
    let job = Job {
        variables: vars.into_iter().map(variable).collect(),
        build_dir: work_dir.clone(),
        ..Job::default()
    };
    Ok(RunRequest {
        id: args.id.clone().unwrap_or_else(|| format!("submit-{:016x}", random_u64())),
        work_dir,
        job: Some(job),
        steps: format!("{{}}\n---\n{}\n", json!({"run": [call_document(&call)]})),
        ..RunRequest::default()
    })
}

/// Returns a step call as JSON, in the format of calls in step files.
fn call_document(call: &StepCall) -> Value {
    let reference = match &call.reference {
        StepReference::Git { url, rev, path, filename } => {
            let git = json!({"url": url, "rev": rev, "dir": path.join("/")});
            json!({"git": with_member("file", filename.as_ref(), git)})
        }
        StepReference::Oci { registry, repository, tag, path, filename } => {
            let dir = path.join("/");
            let oci =
                json!({"registry": registry, "repository": repository, "tag": tag, "dir": dir});
            json!({"oci": with_member("file", filename.as_ref(), oci)})
        }
        other => other.to_string().into(),
    };
    let json = |(name, value): (&String, &ExprValue)| {
        let value: Value = serde_json::from_str(&value.to_json()).expect("it is written as JSON");
        (name.clone(), value)
    };
    let document = json!({
        "name": name(call),
        "step": reference,
        "env": call.env,
        "inputs": call.inputs.iter().map(json).collect::<Map<_, _>>(),
        "continue_on_error": call.continue_on_error,
    });
    with_member("if", call.condition.as_ref(), document)
}

/// Adds a member to an object, if there is a value.
fn with_member(name: &str, value: Option<&String>, mut object: Value) -> Value {
    if let Some(value) = value {
        object[name] = value.as_str().into();
    }
    object
}

/// Returns the name of a step call: the given one, or else that of its directory or file.
fn name(call: &StepCall) -> &str {
    let path = match &call.reference {
        StepReference::Local { path, filename } => filename.as_ref().or(path.last()),
        StepReference::Builtin { path } => path.last(),
        _ => None,
    };
    let stem = path.and_then(|path| Path::new(path).file_stem()?.to_str());
    [call.name.as_str()].into_iter().chain(stem).find(|name| is_name(name)).unwrap_or("step")
}

/// Runs the job, and prints its log. Returns `None` if the server no longer knows the job.
async fn follow(
    client: &StepClient,
    request: RunRequest,
    format: OutcomeFormat,
) -> Result<Option<ExecuteOutcome>, StepRunnerError> {
    let mut demux = LogDemux::default();
    let mut printed = Ok(());
    let is_terminal = io::stdout().is_terminal() && io::stderr().is_terminal();
    let mut joined = (is_terminal || format == OutcomeFormat::Json).then(StreamJoiner::default);
    let mut print = |stream: LogStream, bytes: &[u8]| {
        let together = joined.as_mut().map(|joined| joined.join(stream, bytes));
        let bytes = together.as_deref().unwrap_or(bytes);
        let written = match stream {
            LogStream::Out if format == OutcomeFormat::Text => {
                let mut out = io::stdout();
                out.write_all(bytes).and_then(|()| out.flush())
            }
            _ => io::stderr().write_all(bytes),
        };
        if printed.is_ok() {
            printed = written;
        }
    };
    let outcome = client.execute(request, |bytes| demux.write(bytes, &mut print)).await;
    demux.finish(&mut print);
    printed.map_err(OutputError::from)?;
    match outcome {
        Ok(outcome) => Ok(Some(outcome)),
        Err(ClientError::Lost { .. }) => Ok(None),
        Err(error) => Err(StepRunnerError::Submit(error)),
    }
}

fn show(id: &str, outcome: &ExecuteOutcome, format: OutcomeFormat) -> Result<(), StepRunnerError> {
    if format == OutcomeFormat::Json {
        let status = outcome.status.as_str_name();
        let ExecuteOutcome { message, exit_code, .. } = outcome;
        let json = json!({"id": id, "status": status, "message": message, "exit_code": exit_code});
        report::print(format!("{json:#}\n"))?;
    }
    if outcome.status != Status::Success {
        report::error(&outcome.message);
    }
    Ok(())
}

fn signals() -> Result<UnboundedReceiver<()>, StepRunnerError> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(StepRunnerError::Signals)?;
    let (sender, receiver) = unbounded_channel();
    thread::spawn(move || {
        let mut is_first = true;
        for signal in &mut signals {
            // A second SIGTERM is ignored: timeout(1) sends two.
            if is_first || signal == SIGINT {
                // The receiver is gone when the job has ended.
                let _ = sender.send(());
            }
            is_first = false;
        }
    });
    Ok(receiver)
}

/// Cancels the job at the first SIGINT or SIGTERM. Closes it at a later SIGINT, and returns without waiting for the end
/// of the job. `signals` gets a message for each of these.
async fn interrupt(
    client: &StepClient,
    id: &str,
    mut signals: UnboundedReceiver<()>,
    interrupts: &Cell<usize>,
) {
    signals.recv().await;
    interrupts.set(1);
    let cancelled = pin!(async {
        report_failure("cancel", id, client.cancel(id).await);
        pending::<()>().await;
    });
    // The server may not answer.
    select(cancelled, pin!(signals.recv())).await;
    interrupts.set(2);
    match timeout(CLOSE_TIMEOUT, client.close(id)).await {
        Ok(closed) => report_failure("close", id, closed),
        Err(_) => report::error(&format!("the server has not confirmed that it closes job {id:?}")),
    }
}

/// Prints the error of a request about a job.
fn report_failure(action: &str, id: &str, result: Result<(), ClientError>) {
    if let Err(error) = result {
        let reason = oci_hooks_files::error::chain(&error);
        report::error(&format!("cannot {action} job {id:?}: {reason}"));
    }
}

/// A filter that keeps lines of standard output and standard error apart.
///
/// [`LogDemux`] holds back the newline of a line until the next entry of its stream. If the other stream writes in
/// between, the line is ended there, and its own newline is dropped later.
#[derive(Default)]
struct StreamJoiner {
    last: Option<LogStream>,
    out: LineState,
    err: LineState,
}

#[derive(Default)]
struct LineState {
    is_open: bool,
    /// Set if a newline was added because the other stream wrote; the line's own newline is then
    /// dropped.
    was_ended: bool,
}

impl StreamJoiner {
    /// Returns `bytes` of a stream as they are to be printed: with newlines added or dropped.
    fn join(&mut self, stream: LogStream, bytes: &[u8]) -> Vec<u8> {
        let mut written = Vec::with_capacity(bytes.len() + 1);
        let (line, other) = match stream {
            LogStream::Out => (&mut self.out, &mut self.err),
            LogStream::Err => (&mut self.err, &mut self.out),
        };
        let rest = match bytes.strip_prefix(b"\n") {
            Some(rest) if line.was_ended => rest,
            _ => bytes,
        };
        if !bytes.is_empty() {
            line.was_ended = false;
        }
        if rest.is_empty() {
            return written;
        }
        if self.last != Some(stream) && other.is_open {
            written.push(b'\n');
            *other = LineState { is_open: false, was_ended: true };
        }
        written.extend_from_slice(rest);
        line.is_open = !rest.ends_with(b"\n");
        self.last = Some(stream);
        written
    }
}

#[test]
fn lines_of_both_streams_are_shown_in_order() {
    let joined = |parts: &[(LogStream, &str)]| {
        let mut joined = StreamJoiner::default();
        let bytes = parts.iter().flat_map(|(stream, text)| joined.join(*stream, text.as_bytes()));
        String::from_utf8(bytes.collect()).unwrap()
    };
    let (out, err) = (LogStream::Out, LogStream::Err);
    assert_eq!(joined(&[(out, "a"), (err, "b"), (out, "\n"), (err, "\n")]), "a\nb\n");
    assert_eq!(joined(&[(out, "a"), (err, "b"), (out, "\nc"), (err, "\nd")]), "a\nb\nc\nd");
    assert_eq!(joined(&[(out, "a"), (out, "\nc"), (out, "\n"), (err, "d\n")]), "a\nc\nd\n");
    assert_eq!(joined(&[(out, "a\n"), (err, "b"), (err, "\n"), (out, "\n")]), "a\nb\n\n");
}

#[test]
fn server_reads_the_step_call_of_the_command_line() {
    for text in [
        "{name: a, step: ./lib/build, inputs: {n: 0b11, o: {p: [null, x]}}, env: {A: b}}",
        "{name: a, step: /lib/build/func.yml, if: failure(), continue_on_error: true}",
        "{name: a, step: '${{ vars.STEP }}'}",
        "{name: a, step: {git: {url: 'https://u:p@host/g/p', rev: v1, dir: a/b, file: c.yml}}}",
        "{name: a, step: {git: {url: host/g/p, rev: v1}}}",
        "{name: a, step: {oci: {registry: 'host:5000', repository: g/p, tag: '1', dir: a}}}",
        "{name: a, script: 'echo \"$A\"'}",
    ] {
        let call = step_runner::document::parse_call(text).unwrap();
        let document = call_document(&call).to_string();
        assert_eq!(step_runner::document::parse_call(&document), Ok(call), "{document}");
    }
}
