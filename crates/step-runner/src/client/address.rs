//! Connects to a server: by socket, or through a command.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

/// Maximum size of a command's stderr kept for error messages.
const STDERR_TAIL_BYTES: usize = 4 << 10;

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    /// A Unix socket on this host.
    Socket(PathBuf),
    /// A command, program and arguments, that forwards standard input and output to the server. It is
    /// started for each connection.
    Command(Vec<OsString>),
}

/// The last bytes that commands wrote to stderr.
#[derive(Clone, Debug, Default)]
pub struct StderrTail {
    bytes: Arc<Mutex<VecDeque<u8>>>,
}

impl StderrTail {
    pub(super) fn text(&self) -> String {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = bytes.iter().copied().collect();
        String::from_utf8_lossy(&bytes).trim().to_owned()
    }

    fn clear(&self) {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    async fn listen(self, mut stderr: ChildStderr) {
        let mut buffer = [0; 1024];
        while let Ok(count @ 1..) = stderr.read(&mut buffer).await {
            let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
            bytes.extend(&buffer[..count]);
            let surplus = bytes.len().saturating_sub(STDERR_TAIL_BYTES);
            bytes.drain(..surplus);
        }
    }
}

impl ServerAddress {
    pub(super) async fn connect(self, tail: StderrTail) -> io::Result<ClientStream> {
        match self {
            ServerAddress::Socket(path) => {
                UnixStream::connect(path).await.map(ClientStream::Socket)
            }
            ServerAddress::Command(words) => {
                let Some((program, arguments)) = words.split_first() else {
                    let text = "the command that connects is empty";
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
                };
                let mut command = Command::new(program);
                command.args(arguments).kill_on_drop(true);
                command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
                let mut child = command.spawn()?;
                let gone = || io::Error::other("pipe already taken");
                let stdin = child.stdin.take().ok_or_else(gone)?;
                let stdout = child.stdout.take().ok_or_else(gone)?;
                let stderr = child.stderr.take().ok_or_else(gone)?;
                tail.clear();
                tokio::spawn(tail.listen(stderr));
                Ok(ClientStream::Command { stdin, stdout, _child: Box::new(child) })
            }
        }
    }
}

/// A connection: a socket, or the pipes of a command.
pub enum ClientStream {
    Socket(UnixStream),
    Command {
        stdin: ChildStdin,
        stdout: ChildStdout,
        /// Killed when the connection is dropped.
        _child: Box<Child>,
    },
}

impl AsyncRead for ClientStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ClientStream::Socket(stream) => Pin::new(stream).poll_read(context, buffer),
            ClientStream::Command { stdout, .. } => Pin::new(stdout).poll_read(context, buffer),
        }
    }
}

impl ClientStream {
    fn writer(self: Pin<&mut Self>) -> Pin<&mut (dyn AsyncWrite + Unpin)> {
        match self.get_mut() {
            ClientStream::Socket(stream) => Pin::new(stream),
            ClientStream::Command { stdin, .. } => Pin::new(stdin),
        }
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.writer().poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer().poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer().poll_shutdown(context)
    }
}
