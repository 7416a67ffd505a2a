//! `step-runner submit`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};
use oci_hooks::step_runner::client::{Address, Client, ClientError, ExecuteOutcome, Retry};
use oci_hooks::step_runner::document::{Reference, is_name};
use oci_hooks::step_runner::log::{Demux, Stream};
use oci_hooks::step_runner::resolve::{Caller, Interrupt};
use oci_hooks::step_runner::wire::proto::step_result::Status;
use oci_hooks::step_runner::wire::proto::{Job, RunRequest, Variable};
use oci_hooks::sys::fs::{PathContext as _, random_u64};
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::error::Error;
use crate::{Exit, environment, report, resolver, run};

/// Exit code after Ctrl-C, as shells have it.
const INTERRUPTED: u8 = 130;

/// Send a step to a running server, and follow its log
#[derive(Args, Debug)]
#[command(after_help = "\
The server reads STEP: a directory or a file must exist where the server runs. Ctrl-C cancels the job, which \
may run its cleanup steps; a second one ends it at once.

Examples:
  step-runner submit ./build --input target=release   Run a step on the default socket
  step-runner submit --socket /run/steps.sock ./build Run it on another server
  step-runner submit . --format json | jq .exit_code  Machine-readable outcome

Exit status is 0 if the step succeeded, that of the command that failed, or else 1; 130 after Ctrl-C.")]
pub struct SubmitArgs {
    /// Directory or file of the step, or a reference: URL@REV, IMAGE:TAG, builtin://NAME
    #[arg(value_name = "STEP")]
    step: String,
    /// Socket of the server [default: STEP_RUNNER_SOCKET, or else the default socket of serve]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Input of the step; as JSON, unless it is declared a string (can be repeated)
    #[arg(short, long = "input", value_name = "NAME=VALUE")]
    input: Vec<String>,
    /// Environment variable of the step (can be repeated)
    #[arg(short, long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// Job variable, `vars.NAME` in expressions (can be repeated)
    #[arg(long = "var", alias = "job", value_name = "NAME=VALUE")]
    vars: Vec<String>,
    /// Working directory of the step
    #[arg(short = 'C', long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    /// Id of the job; that of a job that runs follows it [default: a random one]
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// How long to retry while the server cannot be reached
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = crate::quantity::time)]
    wait: Duration,
    /// Output format of the outcome
    ///
    /// With json, the log goes to stderr.
    #[arg(long, value_enum, default_value_t = Format::Text, value_name = "FORMAT")]
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// The log on stdout and stderr
    Text,
    /// Id, status, message and exit code as JSON on stdout
    Json,
}

pub fn run(args: &SubmitArgs) -> Result<Exit, Error> {
    let request = request(args)?;
    let id = request.id.clone();
    let signals = signals()?;
    let socket = args.socket.clone().unwrap_or_else(environment::server_socket);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let (outcome, interrupts) = runtime.map_err(Error::Threads)?.block_on(async {
        // The client needs the runtime.
        let client = Client::new(Address::Socket(socket.clone()))
            .with_retry(Retry::default().giving_up_after(args.wait));
        let interrupts = Arc::new(AtomicUsize::new(0));
        tokio::spawn(interrupt(client.clone(), request.id.clone(), signals, interrupts.clone()));
        let outcome = follow(&client, request, args.format).await;
        (outcome, interrupts.load(Ordering::Relaxed))
    });
    let outcome = outcome.map_err(|error| match error {
        Error::Submit(source @ ClientError::Unreachable { .. }) => Error::Server { socket, source },
        error => error,
    })?;
    match outcome {
        Some(outcome) => {
            show(&id, &outcome, args.format)?;
            Ok(match outcome.status {
                Status::Success => Exit::Done,
                _ if interrupts > 0 => Exit::Code(INTERRUPTED),
                _ => Exit::Code(u8::try_from(outcome.exit_code).unwrap_or(1)),
            })
        }
        // It was closed, and nobody knows any more how it ended.
        None if interrupts > 1 => Ok(Exit::Code(INTERRUPTED)),
        None => Err(Error::Submit(ClientError::Lost { id })),
    }
}

fn request(args: &SubmitArgs) -> Result<RunRequest, Error> {
    let work_dir = fs::canonicalize(&args.directory).at("resolve", &args.directory)?;
    let path = work_dir.join(&args.step);
    // An existing path takes precedence, with or without `./`; the server has another working directory.
    let reference = if path.exists() {
        fs::canonicalize(&path).at("resolve", &path)?.to_string_lossy().into_owned()
    } else {
        args.step.clone()
    };
    let vars = run::pairs(&args.vars, "--var")?;
    let parsed = Reference::parse(&reference)?;
    let inputs = inputs(args, &parsed, &work_dir, &vars)?;
    let name = path.file_stem().and_then(|name| name.to_str()).filter(|name| is_name(name));
    let step = json!({
        "name": name.unwrap_or("step"),
        "step": reference,
        "env": run::pairs(&args.env, "--env")?,
        "inputs": inputs,
    });
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
        steps: format!("{{}}\n---\n{}\n", json!({"run": [step]})),
        ..RunRequest::default()
    })
}

/// Returns the inputs, as the step declares them.
fn inputs(
    args: &SubmitArgs,
    reference: &Reference,
    work_dir: &Path,
    vars: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, Value>, Error> {
    if args.input.is_empty() {
        return Ok(BTreeMap::new());
    }
    let env = environment::variables();
    let interrupt = Interrupt::new().map_err(Error::Signals)?;
    let caller = Caller { dir: work_dir, tree: None, vars, env: &env, interrupt: &interrupt };
    let loaded = resolver::open()?.load(reference, &caller)?;
    let inputs = run::typed(&run::pairs(&args.input, "--input")?, &loaded.file.spec)?;
    let json = |(name, value): (String, oci_hooks::step_runner::Value)| {
        (name, serde_json::from_str(&value.to_json()).expect("it is written as JSON"))
    };
    Ok(inputs.into_iter().map(json).collect())
}

/// Runs the job, and prints its log. Returns nothing if the server does not know it any more.
async fn follow(
    client: &Client,
    request: RunRequest,
    format: Format,
) -> Result<Option<ExecuteOutcome>, Error> {
    let mut demux = Demux::new();
    let mut printed = Ok(());
    let is_terminal = io::stdout().is_terminal() && io::stderr().is_terminal();
    let mut joined = (is_terminal || format == Format::Json).then(Joined::default);
    let mut print = |stream: Stream, bytes: &[u8]| {
        let together = joined.as_mut().map(|joined| joined.join(stream, bytes));
        let bytes = together.as_deref().unwrap_or(bytes);
        let written = match stream {
            Stream::Out if format == Format::Text => {
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
    printed.map_err(Error::Print)?;
    match outcome {
        Ok(outcome) => Ok(Some(outcome)),
        Err(ClientError::Lost { .. }) => Ok(None),
        Err(error) => Err(Error::Submit(error)),
    }
}

fn show(id: &str, outcome: &ExecuteOutcome, format: Format) -> Result<(), Error> {
    if format == Format::Json {
        let status = outcome.status.as_str_name();
        let ExecuteOutcome { message, exit_code, .. } = outcome;
        let json = json!({"id": id, "status": status, "message": message, "exit_code": exit_code});
        writeln!(io::stdout(), "{json:#}").map_err(Error::Print)?;
    }
    if outcome.status != Status::Success {
        report::error(&outcome.message);
    }
    Ok(())
}

fn signals() -> Result<UnboundedReceiver<()>, Error> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(Error::Signals)?;
    let (sender, receiver) = unbounded_channel();
    thread::spawn(move || {
        // The receiver is gone when the job has ended.
        for _ in &mut signals {
            let _ = sender.send(());
        }
    });
    Ok(receiver)
}

/// Cancels the job at the first signal, and ends it at the second.
async fn interrupt(
    client: Client,
    id: String,
    mut signals: UnboundedReceiver<()>,
    interrupts: Arc<AtomicUsize>,
) {
    while signals.recv().await.is_some() {
        let number = interrupts.fetch_add(1, Ordering::Relaxed) + 1;
        let asked = if number == 1 { client.cancel(&id).await } else { client.close(&id).await };
        if let Err(error) = asked {
            report::error(&oci_hooks::sys::error::chain(&error));
        }
    }
}

/// Puts the lines of both streams one below the other.
///
/// The end of a line comes with the line after it, as that may continue it. Where the other stream writes
/// meanwhile, the line ends there, and its own end is left out.
#[derive(Default)]
struct Joined {
    last: Option<Stream>,
    out: Line,
    err: Line,
}

#[derive(Default)]
struct Line {
    is_open: bool,
    /// It was ended for the sake of the other stream.
    was_ended: bool,
}

impl Joined {
    /// Returns the bytes to write for those that came from a stream.
    fn join(&mut self, stream: Stream, bytes: &[u8]) -> Vec<u8> {
        let mut written = Vec::with_capacity(bytes.len() + 1);
        let (line, other) = match stream {
            Stream::Out => (&mut self.out, &mut self.err),
            Stream::Err => (&mut self.err, &mut self.out),
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
            *other = Line { is_open: false, was_ended: true };
        }
        written.extend_from_slice(rest);
        line.is_open = !rest.ends_with(b"\n");
        self.last = Some(stream);
        written
    }
}

#[test]
fn lines_of_two_streams_stand_one_below_the_other() {
    let joined = |parts: &[(Stream, &str)]| {
        let mut joined = Joined::default();
        let bytes = parts.iter().flat_map(|(stream, text)| joined.join(*stream, text.as_bytes()));
        String::from_utf8(bytes.collect()).unwrap()
    };
    let (out, err) = (Stream::Out, Stream::Err);
    assert_eq!(joined(&[(out, "a"), (err, "b"), (out, "\n"), (err, "\n")]), "a\nb\n");
    assert_eq!(joined(&[(out, "a"), (err, "b"), (out, "\nc"), (err, "\nd")]), "a\nb\nc\nd");
    assert_eq!(joined(&[(out, "a"), (out, "\nc"), (out, "\n"), (err, "d\n")]), "a\nc\nd\n");
    assert_eq!(joined(&[(out, "a\n"), (err, "b"), (err, "\n"), (out, "\n")]), "a\nb\n\n");
}
