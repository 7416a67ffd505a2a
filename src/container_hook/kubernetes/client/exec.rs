//! A program started in a container, and its streams.
//!
//! They are channels of one websocket (`v4.channel.k8s.io`, `v5` where the server has it): each message
//! begins with the number of its channel. Both directions go on at the same time: a reader that is slow
//! holds nothing up that is written.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{Sink, SinkExt as _, Stream, StreamExt as _};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::AttachParams;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadBuf, duplex};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_tungstenite::tungstenite;
use tokio_tungstenite::tungstenite::Message;

use super::Cluster;
use super::error::{ClusterError, Fault, Operation, Refusal, Verb, innermost};
use super::objects::made;

/// How long the start of a program may take, until its streams are there.
const START: Duration = Duration::from_secs(20);
/// Balancers forget connections that are idle for four minutes.
const SIGNS: SignsOfLife =
    SignsOfLife { interval: Duration::from_secs(20), limit: Duration::from_secs(50) };
/// What is read of a stream at once, and kept for a reader that is slow.
const BUFFER_BYTES: usize = 64 << 10;

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
/// Says that a channel ends; only `v5` has it.
const CLOSE: u8 = 255;

/// A program that was started in a container. The connection is closed when all of its parts are
/// dropped; that does not end the program.
#[derive(Debug)]
pub struct Exec {
    /// Its input. Servers before 1.30 cannot be told that it ends.
    pub stdin: DuplexStream,
    pub stdout: ExecOutput,
    pub stderr: ExecOutput,
    end: oneshot::Receiver<ExecEnd>,
    task: Arc<Task>,
}

/// How a program ended, or that nobody knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecEnd {
    /// With this code.
    Exited(i32),
    /// It could not be started, or be waited for, for the reason that the node gives.
    Failed(String),
    /// The connection ended, for this reason, before the program did: it may run still.
    Lost(String),
}

/// What a program writes.
#[derive(Debug)]
pub struct ExecOutput {
    stream: DuplexStream,
    _task: Arc<Task>,
}

/// How a connection is found to be lost that nothing comes of any more.
#[derive(Clone, Copy)]
struct SignsOfLife {
    /// How often the other side is asked for one.
    interval: Duration,
    /// After how long without one it is lost.
    limit: Duration,
}

/// The task that has the connection.
#[derive(Debug)]
struct Task(AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl AsyncRead for ExecOutput {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl Exec {
    /// Returns the input, the output, the error output, and what [`Exec::ended`] returns.
    pub fn into_parts(
        self,
    ) -> (DuplexStream, ExecOutput, ExecOutput, impl Future<Output = ExecEnd> + Send + use<>) {
        let Exec { stdin, stdout, stderr, end, task } = self;
        (stdin, stdout, stderr, async move {
            let end = received(end).await;
            drop(task);
            end
        })
    }

    /// Waits for the end, and throws away what the program writes until then.
    pub async fn ended(self) -> ExecEnd {
        let (_stdin, stdout, stderr, end) = self.into_parts();
        drop((stdout, stderr));
        end.await
    }
}

async fn received(end: oneshot::Receiver<ExecEnd>) -> ExecEnd {
    end.await.unwrap_or_else(|_| ExecEnd::Lost("the connection was closed".to_owned()))
}

impl Cluster {
    /// Starts a program in a container.
    ///
    /// A call that failed is not repeated here: the program may have been started.
    ///
    /// # Errors
    ///
    /// Fails if the API server refuses it or does not answer in 20 seconds. That there is no such program
    /// is said later on, as its end.
    pub async fn exec(
        &self,
        pod: &str,
        container: &str,
        argv: &[&str],
    ) -> Result<Exec, ClusterError> {
        let name = Some(pod.to_owned());
        let operation =
            Operation { verb: Verb::Get, resource: "pods", subresource: Some("exec"), name };
        let params =
            AttachParams { container: Some(container.to_owned()), ..AttachParams::default() };
        let params = params.stdin(true).stdout(true).stderr(true);
        let request = self.pod_requests().exec(pod, argv.iter().copied(), &params);
        let request = made(&operation, request)?;
        let fault = match timeout(START, self.client.connect(request)).await {
            Ok(Ok(connection)) => {
                let can_close = connection.supports_stream_close();
                return Ok(start(connection.into_stream(), can_close, SIGNS));
            }
            Ok(Err(error)) => refused(&operation, &error),
            Err(_) => Fault::TimedOut(START),
        };
        Err(ClusterError::Call { operation, fault })
    }
}

fn refused(operation: &Operation, error: &kube::Error) -> Fault {
    match error {
        kube::Error::Api(status) => {
            let body = serde_json::to_vec(status).unwrap_or_default();
            Fault::Refused(Box::new(Refusal::new(operation, status.code, None, &body)))
        }
        // Something between us and the server knows no websockets.
        kube::Error::UpgradeConnection(error) => Fault::Malformed { problem: innermost(error) },
        error => Fault::of_connection(error),
    }
}

/// Serves the streams of a program until it ends or the connection does.
fn start<S>(socket: S, can_close: bool, signs: SignsOfLife) -> Exec
where
    S: Stream<Item = Result<Message, tungstenite::Error>>
        + Sink<Message, Error = tungstenite::Error>
        + Send
        + 'static,
{
    let (stdin, input) = duplex(BUFFER_BYTES);
    let (stdout, output) = duplex(BUFFER_BYTES);
    let (stderr, errors) = duplex(BUFFER_BYTES);
    let (ended, end) = oneshot::channel();
    let task = tokio::spawn(async move {
        let (sink, stream) = socket.split();
        let mut receiving = pin!(receive(stream, output, errors, signs.limit));
        let how = tokio::select! {
            how = &mut receiving => how,
            // What was received before may be there to be read still.
            () = send(sink, input, can_close, signs.interval) => receiving.await,
        };
        // Nobody may want to know.
        let _ = ended.send(how);
    });
    let task = Arc::new(Task(task.abort_handle()));
    let output = |stream| ExecOutput { stream, _task: Arc::clone(&task) };
    Exec { stdin, stdout: output(stdout), stderr: output(stderr), end, task }
}

/// Passes on what is to be written, and asks for signs of life, until that fails.
async fn send(
    mut sink: impl Sink<Message, Error = tungstenite::Error> + Unpin,
    mut input: DuplexStream,
    can_close: bool,
    each: Duration,
) {
    let mut pings = interval(each);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pings.reset();
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut open = true;
    loop {
        let message = tokio::select! {
            read = input.read(&mut buffer), if open => match read {
                Ok(count) if count > 0 => {
                    let mut message = Vec::with_capacity(count + 1);
                    message.push(STDIN);
                    message.extend_from_slice(&buffer[..count]);
                    Message::binary(message)
                }
                _ => {
                    open = false;
                    if !can_close {
                        continue;
                    }
                    Message::binary(vec![CLOSE, STDIN])
                }
            },
            _ = pings.tick() => Message::Ping(Vec::new().into()),
        };
        if sink.send(message).await.is_err() {
            return;
        }
    }
}

/// Passes on what comes, until the end of the program or of the connection.
async fn receive(
    mut stream: impl Stream<Item = Result<Message, tungstenite::Error>> + Unpin,
    output: DuplexStream,
    errors: DuplexStream,
    limit: Duration,
) -> ExecEnd {
    let (mut output, mut errors) = (Some(output), Some(errors));
    loop {
        let message = match timeout(limit, stream.next()).await {
            Ok(Some(Ok(message))) => message,
            Ok(Some(Err(error))) => return ExecEnd::Lost(innermost(&error)),
            Ok(None) => return ExecEnd::Lost("the connection was closed".to_owned()),
            Err(_) => {
                return ExecEnd::Lost(format!("nothing came from the server for {limit:?}"));
            }
        };
        let bytes = match message {
            Message::Binary(bytes) => bytes,
            // Nothing follows it.
            Message::Close(_) => return ExecEnd::Lost("the connection was closed".to_owned()),
            _ => continue,
        };
        let Some((&channel, bytes)) = bytes.split_first() else { continue };
        match channel {
            STDOUT => pass_on(&mut output, bytes).await,
            STDERR => pass_on(&mut errors, bytes).await,
            // One without anything in it says that there is such a channel.
            STATUS if !bytes.is_empty() => return end_of(bytes),
            _ => {}
        }
    }
}

/// Writes to a stream, unless nobody reads it any more.
async fn pass_on(to: &mut Option<DuplexStream>, bytes: &[u8]) {
    if let Some(stream) = to
        && stream.write_all(bytes).await.is_err()
    {
        *to = None;
    }
}

/// Reads the last message.
fn end_of(bytes: &[u8]) -> ExecEnd {
    let status: Status = match serde_json::from_slice(bytes) {
        Ok(status) => status,
        Err(error) => return ExecEnd::Lost(format!("the status of the program is none: {error}")),
    };
    if status.status.as_deref() == Some("Success") {
        return ExecEnd::Exited(0);
    }
    let causes = status.details.and_then(|details| details.causes).unwrap_or_default();
    let code = causes.iter().find(|cause| cause.reason.as_deref() == Some("ExitCode"));
    let code = code.and_then(|cause| cause.message.as_ref()?.parse().ok());
    match code {
        // No failure has this code.
        Some(code) if code != 0 => ExecEnd::Exited(code),
        _ => ExecEnd::Failed(status.message.unwrap_or_else(|| "no reason is given".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use tokio_tungstenite::WebSocketStream;
    use tokio_tungstenite::tungstenite::protocol::Role;

    use super::*;

    type Server = WebSocketStream<DuplexStream>;

    async fn connected(can_close: bool) -> (Exec, Server) {
        let (ours, theirs) = duplex(1 << 20);
        let ours = WebSocketStream::from_raw_socket(ours, Role::Client, None).await;
        let theirs = WebSocketStream::from_raw_socket(theirs, Role::Server, None).await;
        (start(ours, can_close, SIGNS), theirs)
    }

    fn message(channel: u8, bytes: &[u8]) -> Message {
        Message::binary([&[channel], bytes].concat())
    }

    fn run<F: Future>(future: F) -> F::Output {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().unwrap().block_on(future)
    }

    const SEVEN: &[u8] = br#"{"status":"Failure","message":"command terminated with exit code 7",
        "reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#;

    #[test]
    fn channels_are_kept_apart_and_the_code_is_exact() {
        run(async {
            let (mut exec, mut server) = connected(false).await;
            exec.stdin.write_all(b"in").await.unwrap();
            assert_eq!(server.next().await.unwrap().unwrap(), message(STDIN, b"in"));
            for (channel, bytes) in [(STDOUT, &b""[..]), (STDERR, b"err"), (STDOUT, b"out")] {
                server.send(message(channel, bytes)).await.unwrap();
            }
            server.send(message(STATUS, SEVEN)).await.unwrap();
            let (_stdin, mut stdout, mut stderr, end) = exec.into_parts();
            assert_eq!(end.await, ExecEnd::Exited(7));
            let (mut out, mut err) = (String::new(), String::new());
            stdout.read_to_string(&mut out).await.unwrap();
            stderr.read_to_string(&mut err).await.unwrap();
            assert_eq!((out.as_str(), err.as_str()), ("out", "err"));
        });
    }

    #[test]
    fn an_end_without_a_status_is_no_success() {
        run(async {
            let (exec, server) = connected(false).await;
            drop(server);
            assert!(matches!(exec.ended().await, ExecEnd::Lost(_)));
            let (exec, mut server) = connected(false).await;
            server.close(None).await.unwrap();
            assert!(matches!(exec.ended().await, ExecEnd::Lost(_)));
            let (exec, mut server) = connected(false).await;
            server.send(message(STATUS, b"{")).await.unwrap();
            assert!(matches!(exec.ended().await, ExecEnd::Lost(_)));
        });
        assert_eq!(end_of(br#"{"status":"Success"}"#), ExecEnd::Exited(0));
        assert_eq!(end_of(b"{}"), ExecEnd::Failed("no reason is given".into()));
        let lying = br#"{"details":{"causes":[{"reason":"ExitCode","message":"0"}]}}"#;
        assert!(matches!(end_of(lying), ExecEnd::Failed(_)));
        let missing = br#"{"status":"Failure","message":"exec failed: no such file"}"#;
        assert_eq!(end_of(missing), ExecEnd::Failed("exec failed: no such file".into()));
    }

    #[test]
    fn the_end_of_the_input_is_said_only_where_there_is_a_word_for_it() {
        run(async {
            let (exec, mut server) = connected(true).await;
            let (stdin, _stdout, _stderr, _end) = exec.into_parts();
            drop(stdin);
            let end = Message::binary(vec![CLOSE, STDIN]);
            assert_eq!(server.next().await.unwrap().unwrap(), end);
            // Else nothing is said, and the program goes on.
            let (exec, mut server) = connected(false).await;
            let (stdin, _stdout, _stderr, end) = exec.into_parts();
            drop(stdin);
            server.send(message(STATUS, SEVEN)).await.unwrap();
            assert_eq!(end.await, ExecEnd::Exited(7));
        });
    }

    #[test]
    fn a_slow_reader_holds_nothing_up_that_is_written() {
        run(async {
            let (mut exec, mut server) = connected(false).await;
            // More than all buffers have room for.
            let big = vec![b'x'; 2 * BUFFER_BYTES];
            server.send(message(STDOUT, &big)).await.unwrap();
            exec.stdin.write_all(b"in").await.unwrap();
            assert_eq!(server.next().await.unwrap().unwrap(), message(STDIN, b"in"));
            let mut read = vec![0; big.len()];
            exec.stdout.read_exact(&mut read).await.unwrap();
            assert_eq!(read, big);
        });
    }

    #[test]
    fn a_frozen_connection_is_asked_for_a_sign_of_life_and_given_up() {
        run(async {
            let (ours, theirs) = duplex(1 << 20);
            let ours = WebSocketStream::from_raw_socket(ours, Role::Client, None).await;
            let signs = SignsOfLife {
                interval: Duration::from_millis(20),
                limit: Duration::from_millis(400),
            };
            let end = start(ours, false, signs).ended().await;
            assert_eq!(end, ExecEnd::Lost("nothing came from the server for 400ms".into()));
            let mut server = WebSocketStream::from_raw_socket(theirs, Role::Server, None).await;
            assert!(matches!(server.next().await, Some(Ok(Message::Ping(_)))));
        });
    }
}
