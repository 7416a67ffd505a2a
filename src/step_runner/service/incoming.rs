//! The connections of a socket, those of other users left out.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::time::Sleep;
use tokio_stream::Stream;

use super::server::{Notice, Notify};

/// How long no connection is taken after one could not be.
const PAUSE: Duration = Duration::from_millis(100);

/// The connections that are made to a socket.
pub(super) struct Incoming {
    pub(super) listener: UnixListener,
    pub(super) notify: Notify,
    /// Runs while there are no descriptors left, say: trying again at once would use a processor.
    pub(super) pause: Option<Pin<Box<Sleep>>>,
}

impl Stream for Incoming {
    type Item = Result<UnixStream, std::io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                std::task::ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            match std::task::ready!(self.listener.poll_accept(context)) {
                Ok((stream, _)) => match stream.peer_cred() {
                    Ok(peer) if is_trusted(peer.uid()) => return Poll::Ready(Some(Ok(stream))),
                    Ok(peer) => (self.notify)(&Notice::Refused { uid: peer.uid() }),
                    Err(error) => (self.notify)(&Notice::Accept(error)),
                },
                Err(error) => {
                    (self.notify)(&Notice::Accept(error));
                    self.pause = Some(Box::pin(tokio::time::sleep(PAUSE)));
                }
            }
        }
    }
}

/// The file's mode keeps others out; who has opened it up does so for nobody.
fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}
