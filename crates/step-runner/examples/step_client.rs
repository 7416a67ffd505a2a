//! Sends a step to a running `step-runner serve`, prints its log as it arrives, and ends with its exit code.
//!
//! ```text
//! step-runner serve --socket /tmp/steps.sock &
//! cargo run -p step-runner --example step_client -- /tmp/steps.sock 'echo hello'
//! ```
//!
//! The client resumes after a lost connection, and works with GitLab's step-runner too.

use std::env;
use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::process::{self, ExitCode};

use step_runner::client::{ExecuteOutcome, ServerAddress, StepClient};
use step_runner::log::{LogDemux, LogStream};
use step_runner::wire::proto::RunRequest;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [socket, script] = &arguments[..] else {
        return Err("usage: step_client SOCKET SCRIPT".into());
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let id = format!("example-{}", process::id());
    let (out, err) = (&mut io::stdout(), &mut io::stderr());
    let outcome = runtime.block_on(run(Path::new(socket), &id, script, out, err))?;
    writeln!(io::stderr(), "{}: {}", outcome.status.as_str_name(), outcome.message)?;
    Ok(ExitCode::from(u8::try_from(outcome.exit_code).unwrap_or(1)))
}

/// Runs a script as the job `id`, and writes its two streams to `out` and `err`.
///
/// The job outlives the client: sending the same request again follows the job, with the log from the
/// beginning.
pub(crate) async fn run(
    socket: &Path,
    id: &str,
    script: &str,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<ExecuteOutcome, Box<dyn Error>> {
    let client = StepClient::new(ServerAddress::Socket(socket.to_owned()));
    let steps = serde_json::json!({"run": [{"name": "example", "script": script}]});
    let request = RunRequest {
        id: id.to_owned(),
        work_dir: env::temp_dir().to_string_lossy().into_owned(),
        // A step file: a specification without inputs and outputs, and the definition.
        steps: format!("{{}}\n---\n{steps}\n"),
        ..RunRequest::default()
    };

    // The server stores both streams in one log, and marks each line with its stream.
    let mut demux = LogDemux::default();
    let mut written = Ok(());
    let mut write = |stream: LogStream, bytes: &[u8]| {
        let result = match stream {
            LogStream::Out => out.write_all(bytes),
            LogStream::Err => err.write_all(bytes),
        };
        if written.is_ok() {
            written = result;
        }
    };
    let outcome = client.execute(request, |bytes| demux.write(bytes, &mut write)).await;
    demux.finish(&mut write);
    written?;
    Ok(outcome?)
}
