//! Incoming connections of a socket, without those of other users.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::time::Sleep;
use tokio_stream::Stream;

use super::super::http2::Tidied;
use super::server::{Notice, Notify};

/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Stream of accepted connections.
pub(super) struct Incoming {
    pub(super) listener: UnixListener,
    pub(super) notify: Notify,
    /// Pause after an error such as EMFILE: an immediate retry would be a busy loop.
    pub(super) pause: Option<Pin<Box<Sleep>>>,
}

impl Stream for Incoming {
    type Item = Result<Tidied<UnixStream>, std::io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                std::task::ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            match std::task::ready!(self.listener.poll_accept(context)) {
                Ok((stream, _)) => match stream.peer_cred() {
                    Ok(peer) if is_trusted(peer.uid()) => {
                        return Poll::Ready(Some(Ok(Tidied::new(stream))));
                    }
                    Ok(peer) => (self.notify)(&Notice::Rejected { uid: peer.uid() }),
                    Err(error) => (self.notify)(&Notice::Accept(error)),
                },
                Err(error) => {
                    (self.notify)(&Notice::Accept(error));
                    self.pause = Some(Box::pin(tokio::time::sleep(ACCEPT_PAUSE)));
                }
            }
        }
    }
}

/// The mode of the socket excludes other users; this holds even if the mode was changed.
fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}
