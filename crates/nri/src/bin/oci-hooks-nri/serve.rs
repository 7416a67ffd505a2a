//! A conversation with a runtime on its socket.

use std::io;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use oci_hooks_nri::{NriSession, PluginIdentity};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;
use tracing::{debug, info};

use crate::error::PluginError;
use crate::plugin::HookPlugin;

/// Timeout for the answer to the registration, the same as the runtime's default for plugins.
const REGISTRATION: Duration = Duration::from_secs(5);

/// Timeout for writing a response.
const WRITE: Duration = Duration::from_secs(10);

const READ_BYTES: usize = 64 << 10;

/// Regular ends of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServeEnd {
    Stopped,
    /// The runtime closed the connection after it had accepted the plugin.
    Closed,
}

/// Events that ended a wait.
struct ServeEvents {
    stop: bool,
    readable: bool,
}

/// Registers the plugin with a runtime, and answers its calls until the conversation ends.
pub fn serve(
    plugin: &mut HookPlugin,
    identity: &PluginIdentity,
    mut socket: UnixStream,
    stop: &StopDescriptor,
) -> Result<ServeEnd, PluginError> {
    let failed = |action| move |source| PluginError::Socket { action, source };
    socket.set_write_timeout(Some(WRITE)).map_err(failed("set up the connection to"))?;
    let (mut session, registration) = NriSession::new(identity.clone());
    debug!(plugin = %identity, "register");
    socket.write_all(&registration).map_err(failed("write to"))?;
    let deadline = Instant::now() + REGISTRATION;
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let until = (!session.is_registered()).then_some(deadline);
        if until.is_some_and(|until| until <= Instant::now()) {
            return Err(PluginError::Timeout { seconds: REGISTRATION.as_secs() });
        }
        let ready = wait(plugin, &socket, stop, until)?;
        if ready.stop {
            return Ok(ServeEnd::Stopped);
        }
        if ready.readable {
            let count = match socket.read(&mut buffer) {
                Ok(0) if session.is_registered() => return Ok(ServeEnd::Closed),
                Ok(0) => return Err(PluginError::Closed),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                Err(source) => return Err(failed("read from")(source)),
            };
            let was_registered = session.is_registered();
            let answer = session.receive(&buffer[..count], plugin)?;
            socket.write_all(&answer).map_err(failed("write to"))?;
            if session.is_registered() && !was_registered {
                info!(plugin = %identity, "registered");
                plugin.set_connected(true);
            }
        }
        plugin.poll();
    }
}

/// Waits for an event.
fn wait(
    plugin: &HookPlugin,
    socket: &UnixStream,
    stop: &StopDescriptor,
    until: Option<Instant>,
) -> Result<ServeEvents, PluginError> {
    let until = [until, plugin.due_time()].into_iter().flatten().min();
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let left = left.and_then(|left| Timespec::try_from(left).ok());
    let mut fds = vec![PollFd::new(stop, PollFlags::IN), PollFd::new(socket, PollFlags::IN)];
    fds.extend(plugin.monitor().map(|monitor| PollFd::new(monitor, PollFlags::IN)));
    match poll(&mut fds, left.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(PluginError::Wait(errno.into())),
    }
    let is_ready = |at: usize| !fds[at].revents().is_empty();
    Ok(ServeEvents { stop: is_ready(0), readable: is_ready(1) })
}

/// A descriptor that is readable after SIGTERM or SIGINT.
pub struct StopDescriptor(UnixStream);

impl StopDescriptor {
    /// Handles SIGTERM and SIGINT from now on, in place of their default actions.
    pub fn new() -> io::Result<Self> {
        let (stop, sender) = UnixStream::pair()?;
        for signal in [SIGTERM, SIGINT] {
            pipe::register(signal, sender.try_clone()?)?;
        }
        Ok(StopDescriptor(stop))
    }
}

impl AsFd for StopDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
