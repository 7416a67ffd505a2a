//! The connection of an exec to the process that keeps a step.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::frames::journal::{Attach, JournalRequest, MAX_EVENT_BYTES, StepEvent};
use crate::frames::{Answer, Failure, FailureKind, Frames};
use crate::os;
use crate::place::{Place, StepPlace};
use crate::remote::{Gone, Host};

const READ_AT_ONCE: usize = 64 << 10;
/// How often it is tried to begin a step that somebody else begins as well.
const ATTEMPTS: usize = 5;
/// How long the first process may take to begin a step: it waits for a cancelled one to be dead.
const BEGUN_WITHIN: Duration = Duration::from_secs(15);
/// How long the first process may take to listen, of a container that has just been started.
const LISTENS_WITHIN: Duration = Duration::from_secs(5);
const LOOK_EACH: Duration = Duration::from_millis(5);

/// A step that a host is attached to.
pub struct Attached {
    socket: UnixStream,
    place: StepPlace,
    frames: Frames,
    buffer: Vec<u8>,
    /// Whether the host was told how the step ended.
    is_ended: bool,
}

impl Attached {
    /// Finds who keeps the step, or begins it. If neither can be, the host is told the end at once, and
    /// nothing is attached.
    pub fn open(place: &Place, attach: Attach, host: &mut Host) -> Result<Option<Self>, Gone> {
        let step_place = place.step(&attach.id);
        match connect(place, &step_place, attach) {
            Ok((socket, frames)) => {
                let buffer = vec![0; READ_AT_ONCE];
                let mut attached =
                    Attached { socket, place: step_place, frames, buffer, is_ended: false };
                attached.pass_frames(host)?;
                Ok(Some(attached))
            }
            Err(failure) => {
                host.send(&known_end(&step_place, failure).encode())?;
                Ok(None)
            }
        }
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Passes on to the host what there is; returns whether there may be more.
    pub fn pass(&mut self, host: &mut Host) -> Result<bool, Gone> {
        match self.socket.read(&mut self.buffer) {
            Err(error) if is_temporary(&error) => return Ok(true),
            Ok(count) if count > 0 => {
                self.frames.push(&self.buffer[..count]);
                self.pass_frames(host)?;
                return Ok(true);
            }
            _ => {}
        }
        if !self.is_ended {
            let end = known_end(&self.place, failure(FailureKind::Keeper, 0, "step"));
            host.send(&end.encode())?;
        }
        Ok(false)
    }

    /// Passes whole frames on: others may go between them.
    fn pass_frames(&mut self, host: &mut Host) -> Result<(), Gone> {
        let mut out = Vec::with_capacity(self.frames.length());
        while let Some((kind, payload)) = self.frames.take()? {
            self.is_ended |= matches!(kind, 0x03..=0x05);
            out.push(kind);
            out.extend(u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes());
            out.extend(payload);
        }
        host.send(&out)
    }

    /// Sends what the host says about the step. If that cannot be, who keeps it has gone, which is seen
    /// when there is nothing to read any more.
    pub fn send(&self, request: &JournalRequest) -> Result<(), Gone> {
        os::send_all(self.socket.as_fd(), &request.encode()?);
        Ok(())
    }
}

/// Returns how a step ended that nobody keeps any more, or why that is not known.
fn known_end(place: &StepPlace, failure: Failure) -> StepEvent {
    let unknown = StepEvent::Ended { offset: 0, end: Answer::Failed(failure) };
    place.read_end().unwrap_or(unknown)
}

fn failure(kind: FailureKind, errno: i32, path: &str) -> Failure {
    Failure { kind, errno, path: path.as_bytes().to_vec(), found: Vec::new() }
}

/// Connects to who keeps a step, which is begun unless there was one of its id; returns the connection,
/// and what has come already.
fn connect(
    place: &Place,
    step_place: &StepPlace,
    attach: Attach,
) -> Result<(UnixStream, Frames), Failure> {
    let has_step = attach.step.is_some();
    let again = Attach { id: attach.id.clone(), from: attach.from, step: None };
    let encode = |attach: Attach| {
        let request = JournalRequest::Attach(Box::new(attach));
        request.encode().map_err(|error| failure(FailureKind::Request, 0, &error.to_string()))
    };
    let (begin, again) = (encode(attach)?, encode(again)?);
    for _ in 0..ATTEMPTS {
        // In this order: who is there has a socket from the beginning on.
        let is_there = step_place.exists();
        let connected = UnixStream::connect(step_place.socket());
        if let Ok(mut socket) = connected
            && socket.write_all(&again).and_then(|()| socket.set_nonblocking(true)).is_ok()
        {
            return Ok((socket, Frames::new(MAX_EVENT_BYTES)));
        }
        if is_there || !has_step {
            return Err(failure(FailureKind::Keeper, 0, "step"));
        }
        let begun = self::begin(place, &begin);
        let error = |error: io::Error| {
            failure(FailureKind::Process, error.raw_os_error().unwrap_or_default(), "step")
        };
        if let Some(begun) = begun.map_err(error)? {
            return Ok(begun);
        }
    }
    Err(failure(FailureKind::Busy, 0, "step"))
}

/// Has the first process begin a step; returns none if there is one of this id by now.
fn begin(place: &Place, request: &[u8]) -> io::Result<Option<(UnixStream, Frames)>> {
    let mut socket = connect_first(place)?;
    socket.set_read_timeout(Some(BEGUN_WITHIN))?;
    socket.set_write_timeout(Some(BEGUN_WITHIN))?;
    let mut frames = Frames::new(MAX_EVENT_BYTES);
    let mut buffer = [0; 4096];
    let mut is_greeted = false;
    loop {
        let count = match socket.read(&mut buffer) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if count == 0 {
            return Ok(None);
        }
        frames.push(&buffer[..count]);
        if is_greeted {
            break;
        }
        // The hello is of a copy of ourselves.
        if frames.take().map_err(io::Error::other)?.is_some() {
            is_greeted = true;
            socket.write_all(request)?;
        }
    }
    socket.set_nonblocking(true)?;
    Ok(Some((socket, frames)))
}

/// Connects to the first process, which may have been started a moment ago.
fn connect_first(place: &Place) -> io::Result<UnixStream> {
    let until = Instant::now() + LISTENS_WITHIN;
    loop {
        let error = match UnixStream::connect(place.socket()) {
            Ok(socket) => return Ok(socket),
            Err(error) => error,
        };
        let is_early =
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused);
        if !is_early || Instant::now() >= until {
            return Err(error);
        }
        thread::sleep(LOOK_EACH);
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
