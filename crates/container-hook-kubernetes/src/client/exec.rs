//! A program started in a container, and its streams.
//!
//! The streams are channels of one websocket (`v4.channel.k8s.io`, `v5` if the server supports it): each
//! message begins with its channel number. Both directions run concurrently: a slow reader does not block
//! writes.

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

use super::ClusterClient;
use super::error::{ApiOperation, ApiRejection, CallFault, ClusterError, Verb, innermost_cause};
use super::objects::check_request;

/// Timeout for starting a program and its streams.
const START: Duration = Duration::from_secs(20);
/// Interval of pings, and maximum silence. Pings also keep a connection open: load balancers drop
/// connections that are idle for four minutes.
const PING_TIMING: PingTiming =
    PingTiming { interval: Duration::from_secs(20), limit: Duration::from_secs(50) };
/// Size of a stream's buffer.
const BUFFER_BYTES: usize = 64 << 10;

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
/// Channel of messages that close another channel; only `v5` supports them.
const CLOSE: u8 = 255;

/// A program started in a container. Dropping all parts closes the connection, but does not end the program.
#[derive(Debug)]
pub struct ExecStream {
    /// Input of the program. API servers before Kubernetes 1.30 do not support ending it.
    pub stdin: DuplexStream,
    pub stdout: ExecOutput,
    pub stderr: ExecOutput,
    end: oneshot::Receiver<ExecEnd>,
    task: Arc<TaskGuard>,
}

/// End of a program, as far as known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecEnd {
    Exited(i32),
    /// The program could not be started or waited for, with the reason that the node reports.
    Failed(String),
    /// The connection ended before the program, with the reason. The program may still run.
    Lost(String),
}

/// An output stream of a program.
#[derive(Debug)]
pub struct ExecOutput {
    stream: DuplexStream,
    _task: Arc<TaskGuard>,
}

/// Times of the pings by which a dead connection is detected.
#[derive(Clone, Copy)]
struct PingTiming {
    interval: Duration,
    /// Maximum time without any message.
    limit: Duration,
}

/// The task that owns the connection; dropping it closes the connection.
#[derive(Debug)]
struct TaskGuard(AbortHandle);

impl Drop for TaskGuard {
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

impl ExecStream {
    /// Returns stdin, stdout, stderr, and the future of the program's end.
    pub fn into_parts(
        self,
    ) -> (DuplexStream, ExecOutput, ExecOutput, impl Future<Output = ExecEnd> + Send + use<>) {
        let ExecStream { stdin, stdout, stderr, end, task } = self;
        (stdin, stdout, stderr, async move {
            let end = end.await;
            drop(task);
            end.unwrap_or_else(|_| ExecEnd::Lost("the connection was closed".to_owned()))
        })
    }
}

impl ClusterClient {
    /// Starts a program in a container, with or without stdin.
    ///
    /// A failed call is not retried here: the program may have been started.
    ///
    /// # Errors
    ///
    /// Fails if the API server rejects the call or does not answer within 20 seconds. A missing program is
    /// reported later, as [`ExecEnd::Failed`].
    pub async fn exec(
        &self,
        pod: &str,
        container: &str,
        argv: &[&str],
        has_stdin: bool,
    ) -> Result<ExecStream, ClusterError> {
        let name = Some(pod.to_owned());
        let operation =
            ApiOperation { verb: Verb::Get, resource: "pods", subresource: Some("exec"), name };
        let params = AttachParams::default().container(container);
        let params = params.stdin(has_stdin).stdout(true).stderr(true);
        let request = self.pod_requests().exec(pod, argv.iter().copied(), &params);
        let request = check_request(&operation, request)?;
        let fault = match timeout(START, self.client.connect(request)).await {
            Ok(Ok(connection)) => {
                let can_close = connection.supports_stream_close();
                return Ok(start(connection.into_stream(), can_close, PING_TIMING));
            }
            Ok(Err(error)) => rejected_call(&operation, &error),
            Err(_) => CallFault::TimedOut(START),
        };
        Err(ClusterError::Call { operation, fault })
    }
}

fn rejected_call(operation: &ApiOperation, error: &kube::Error) -> CallFault {
    match error {
        kube::Error::Api(status) => {
            let body = serde_json::to_vec(status).unwrap_or_default();
            CallFault::Rejected(Box::new(ApiRejection::new(operation, status.code, None, &body)))
        }
        // A proxy in between does not support websockets.
        kube::Error::UpgradeConnection(error) => {
            CallFault::Malformed { problem: innermost_cause(error) }
        }
        error => CallFault::of_connection(error),
    }
}

/// Starts to serve the streams of a program, until the program or the connection ends.
fn start<S>(socket: S, can_close: bool, timing: PingTiming) -> ExecStream
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
        let mut receiving = pin!(receive(stream, output, errors, timing.limit));
        let how = tokio::select! {
            how = &mut receiving => how,
            // Messages received before the failure may still be unread.
            () = send(sink, input, can_close, timing.interval) => receiving.await,
        };
        // The receiver may have been dropped.
        let _ = ended.send(how);
    });
    let task = Arc::new(TaskGuard(task.abort_handle()));
    let output = |stream| ExecOutput { stream, _task: Arc::clone(&task) };
    ExecStream { stdin, stdout: output(stdout), stderr: output(stderr), end, task }
}

/// Forwards stdin and sends pings, until sending fails.
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

/// Forwards the output, until the program or the connection ends.
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
            Ok(Some(Err(error))) => return ExecEnd::Lost(innermost_cause(&error)),
            Ok(None) => return ExecEnd::Lost("the connection was closed".to_owned()),
            Err(_) => {
                return ExecEnd::Lost(format!("the API server sent nothing for {limit:?}"));
            }
        };
        let bytes = match message {
            Message::Binary(bytes) => bytes,
            // No message follows it.
            Message::Close(_) => return ExecEnd::Lost("the connection was closed".to_owned()),
            _ => continue,
        };
        let Some((&channel, bytes)) = bytes.split_first() else { continue };
        match channel {
            STDOUT => pass_on(&mut output, bytes).await,
            STDERR => pass_on(&mut errors, bytes).await,
            // An empty message only announces the channel.
            STATUS if !bytes.is_empty() => return end_of(bytes),
            _ => {}
        }
    }
}

/// Writes to a stream, unless its reader has been dropped.
async fn pass_on(to: &mut Option<DuplexStream>, bytes: &[u8]) {
    if let Some(stream) = to
        && stream.write_all(bytes).await.is_err()
    {
        *to = None;
    }
}

fn end_of(bytes: &[u8]) -> ExecEnd {
    let status: Status = match serde_json::from_slice(bytes) {
        Ok(status) => status,
        Err(error) => {
            return ExecEnd::Lost(format!("invalid exit status from the API server: {error}"));
        }
    };
    if status.status.as_deref() == Some("Success") {
        return ExecEnd::Exited(0);
    }
    let causes = status.details.and_then(|details| details.causes).unwrap_or_default();
    let code = causes.iter().find(|cause| cause.reason.as_deref() == Some("ExitCode"));
    let code = code.and_then(|cause| cause.message.as_ref()?.parse().ok());
    match code {
        // Failures never have code 0.
        Some(code) if code != 0 => ExecEnd::Exited(code),
        _ => ExecEnd::Failed(status.message.unwrap_or_else(|| "no reason is given".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use tokio_tungstenite::WebSocketStream;
    use tokio_tungstenite::tungstenite::protocol::Role;

    use super::*;

    type TestServer = WebSocketStream<DuplexStream>;

    async fn connect_stream(can_close: bool) -> (ExecStream, TestServer) {
        let (ours, theirs) = duplex(1 << 20);
        let ours = WebSocketStream::from_raw_socket(ours, Role::Client, None).await;
        let theirs = WebSocketStream::from_raw_socket(theirs, Role::Server, None).await;
        (start(ours, can_close, PING_TIMING), theirs)
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
    fn channels_are_separated_and_the_exit_code_is_exact() {
        run(async {
            let (mut exec, mut server) = connect_stream(false).await;
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
    fn end_without_a_status_is_an_error() {
        run(async {
            let (exec, server) = connect_stream(false).await;
            drop(server);
            assert!(matches!(exec.into_parts().3.await, ExecEnd::Lost(_)));
            let (exec, mut server) = connect_stream(false).await;
            server.close(None).await.unwrap();
            assert!(matches!(exec.into_parts().3.await, ExecEnd::Lost(_)));
            let (exec, mut server) = connect_stream(false).await;
            server.send(message(STATUS, b"{")).await.unwrap();
            assert!(matches!(exec.into_parts().3.await, ExecEnd::Lost(_)));
        });
        assert_eq!(end_of(br#"{"status":"Success"}"#), ExecEnd::Exited(0));
        assert_eq!(end_of(b"{}"), ExecEnd::Failed("no reason is given".into()));
        let lying = br#"{"details":{"causes":[{"reason":"ExitCode","message":"0"}]}}"#;
        assert!(matches!(end_of(lying), ExecEnd::Failed(_)));
        let missing = br#"{"status":"Failure","message":"exec failed: no such file"}"#;
        assert_eq!(end_of(missing), ExecEnd::Failed("exec failed: no such file".into()));
    }

    #[test]
    fn end_of_input_is_sent_only_if_the_protocol_supports_it() {
        run(async {
            let (exec, mut server) = connect_stream(true).await;
            let (stdin, _stdout, _stderr, _end) = exec.into_parts();
            drop(stdin);
            let end = Message::binary(vec![CLOSE, STDIN]);
            assert_eq!(server.next().await.unwrap().unwrap(), end);
            // With `v4`, no message is sent, and the program continues.
            let (exec, mut server) = connect_stream(false).await;
            let (stdin, _stdout, _stderr, end) = exec.into_parts();
            drop(stdin);
            server.send(message(STATUS, SEVEN)).await.unwrap();
            assert_eq!(end.await, ExecEnd::Exited(7));
        });
    }

    #[test]
    fn slow_reader_does_not_block_writing() {
        run(async {
            let (mut exec, mut server) = connect_stream(false).await;
            // More than all buffers hold.
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
    fn frozen_connection_is_pinged_and_dropped() {
        run(async {
            let (ours, theirs) = duplex(1 << 20);
            let ours = WebSocketStream::from_raw_socket(ours, Role::Client, None).await;
            let timing =
                PingTiming { interval: Duration::from_millis(20), limit: Duration::from_secs(3) };
            let end = start(ours, false, timing).into_parts().3.await;
            assert_eq!(end, ExecEnd::Lost("the API server sent nothing for 3s".into()));
            let mut server = WebSocketStream::from_raw_socket(theirs, Role::Server, None).await;
            assert!(matches!(server.next().await, Some(Ok(Message::Ping(_)))));
        });
    }
}
