//! A first process that is played, well and badly.

use std::fs::File;
use std::io::{IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::thread;

use rustix::cmsg_space;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, recvmsg};
use rustix::pipe::{PipeFlags, pipe_with};

use super::*;
use crate::sys::init::drain;
use crate::sys::init::frames::{FailureKind, Hello, MAX_REQUEST_BYTES, STREAMS};

/// The other end, which answers as it is told.
struct First {
    socket: UnixStream,
    frames: Frames,
    streams: Vec<OwnedFd>,
}

impl First {
    fn say(&mut self, answer: &Answer) {
        self.socket.write_all(&answer.encode()).unwrap();
    }

    fn hello(&mut self) {
        self.say(&Answer::Hello(VERSIONS));
    }

    /// Returns the next request; none when the host has gone.
    fn take(&mut self) -> Option<Request> {
        loop {
            if let Some((kind, payload)) = self.frames.take().unwrap() {
                return Some(Request::decode(kind, &payload).unwrap());
            }
            let mut bytes = vec![0; 64 << 10];
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(STREAMS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [IoSliceMut::new(&mut bytes)];
            let received = recvmsg(&self.socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC);
            let count = received.unwrap().bytes;
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    self.streams.extend(descriptors);
                }
            }
            if count == 0 {
                return None;
            }
            self.frames.push(&bytes[..count]);
        }
    }

    /// Takes the step, and returns where its program would write.
    fn start(&mut self) -> [File; 2] {
        self.hello();
        assert!(matches!(self.take(), Some(Request::Step(_))));
        self.say(&Answer::Started);
        assert_eq!(self.streams.len(), STREAMS);
        let mut streams = self.streams.drain(1..3);
        [streams.next().unwrap().into(), streams.next().unwrap().into()]
    }
}

/// Signals that a test sends.
struct Sent(UnixStream);

impl StepSignals for Sent {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn take(&mut self) -> Vec<i32> {
        let mut bytes = [0; 8];
        let count = self.0.read(&mut bytes).unwrap();
        bytes[..count].iter().map(|byte| i32::from(*byte)).collect()
    }
}

/// Returns how a step went, and what it wrote, beside a first process that does what it is told; that
/// can send signals to this end.
fn play(
    answer_within: Duration,
    first: impl FnOnce(First, UnixStream) + Send,
) -> (Result<StepEnd, StepError>, [Vec<u8>; 2]) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let (signals, signaller) = UnixStream::pair().unwrap();
    let frames = Frames::new(MAX_REQUEST_BYTES);
    let first_end = First { socket: theirs, frames, streams: Vec::new() };
    let connection = StepConnection { socket: ours.into(), answer_within };
    let step = Step {
        args: vec![b"sh".to_vec()],
        env: vec![(b"SECRET".to_vec(), vec![b'x'; 3 << 20])],
        ..Step::default()
    };
    thread::scope(|scope| {
        scope.spawn(|| first(first_end, signaller));
        let (pipes, readers): (Vec<_>, Vec<_>) = [(), ()]
            .map(|()| pipe_with(PipeFlags::CLOEXEC).unwrap())
            .map(|(reader, writer)| (writer, File::from(reader)))
            .into_iter()
            .unzip();
        let readers: Vec<_> = readers
            .into_iter()
            .map(|mut reader| {
                scope.spawn(move || {
                    let mut bytes = Vec::new();
                    reader.read_to_end(&mut bytes).unwrap();
                    bytes
                })
            })
            .collect();
        let result = connection.run(step, &mut Sent(signals), [pipes[0].as_fd(), pipes[1].as_fd()]);
        drop(pipes);
        let mut written = readers.into_iter().map(|reader| reader.join().unwrap());
        (result, [written.next().unwrap(), written.next().unwrap()])
    })
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn what_a_step_writes_and_how_it_ends_is_passed_on() {
    let (end, [out, err]) = play(LONG, |mut first, _signals| {
        let [mut out, mut err] = first.start();
        let megabyte = vec![b'x'; 1 << 20];
        for _ in 0..8 {
            out.write_all(&megabyte).unwrap();
        }
        err.write_all(b"oops").unwrap();
        first.say(&Answer::Exited(7));
    });
    assert_eq!(end.unwrap(), StepEnd::Exited(7));
    assert_eq!((out.len(), err.as_slice()), (8 << 20, &b"oops"[..]));

    let (end, _) = play(LONG, |mut first, _signals| {
        drop(first.start());
        first.say(&Answer::Signalled(9));
    });
    assert_eq!(end.unwrap().code(), 137);
}

#[test]
fn what_is_left_running_is_listened_to_for_a_while() {
    // It writes nothing more.
    let began = Instant::now();
    let (end, [out, _]) = play(LONG, |mut first, _signals| {
        let [mut out, _err] = first.start();
        out.write_all(b"listening\n").unwrap();
        first.say(&Answer::Exited(0));
        assert_eq!(first.take(), None, "the host goes");
    });
    assert!(began.elapsed() >= drain::QUIET);
    assert_eq!((end.unwrap().code(), out.as_slice()), (0, &b"listening\n"[..]));

    // It goes on and on.
    let began = Instant::now();
    let (end, [out, _]) = play(LONG, |mut first, _signals| {
        let [mut out, _err] = first.start();
        first.say(&Answer::Exited(0));
        first.socket.set_nonblocking(true).unwrap();
        let mut byte = [0];
        // Nobody reads any more once the host has gone, and this end holds no reader here.
        first.streams.clear();
        while first.socket.read(&mut byte).is_err() && out.write_all(b"y\n").is_ok() {}
    });
    assert!(began.elapsed() >= drain::LIMIT);
    assert!(end.is_ok() && !out.is_empty());
}

#[test]
fn signals_reach_the_step_and_one_that_stays_is_killed() {
    let (end, _) = play(LONG, |mut first, mut signals| {
        drop(first.start());
        for signal in [2, 15] {
            signals.write_all(&[signal]).unwrap();
            assert_eq!(first.take(), Some(Request::Signal(signal.into())));
        }
        let told = Instant::now();
        assert_eq!(first.take(), Some(Request::Kill));
        assert!(told.elapsed() >= TERM_GRACE / 2);
        first.say(&Answer::Signalled(9));
    });
    assert_eq!(end.unwrap(), StepEnd::Signalled(9));

    let (end, _) = play(LONG, |mut first, mut signals| {
        signals.write_all(&[2]).unwrap();
        assert_eq!(first.take(), None, "nothing was sent yet");
    });
    assert_eq!(end.unwrap_err().code(), 130);
}

#[test]
fn a_container_that_ends_takes_the_step_with_it_but_not_what_it_wrote() {
    let (end, [out, _]) = play(LONG, |mut first, _signals| {
        let [mut out, _err] = first.start();
        out.write_all(b"last words").unwrap();
    });
    assert!(matches!(end, Err(StepError::Lost)));
    assert_eq!(out, b"last words");
}

#[test]
fn what_cannot_be_run_in_this_way_is_told_apart() {
    let (end, _) = play(LONG, |first, _signals| drop(first));
    assert!(end.unwrap_err().is_unavailable());
    let (end, _) = play(LONG, |mut first, _signals| {
        first.say(&Answer::Hello(Hello { oldest: 7, newest: 9 }));
        assert_eq!(first.take(), None);
    });
    assert!(end.unwrap_err().is_unavailable());
    let (end, _) = play(LONG, |mut first, _signals| {
        first.hello();
        first.take().unwrap();
        let (path, found) = (b"zsh".to_vec(), vec![b"sh".to_vec()]);
        let failure = Failure { kind: FailureKind::ProgramMissing, errno: 2, path, found };
        first.say(&Answer::Failed(failure));
    });
    let error = end.unwrap_err();
    assert!(!error.is_unavailable() && error.code() == 127, "{error}");
}

#[test]
fn a_hostile_first_process_is_bounded() {
    let short = Duration::from_millis(300);
    let (end, _) = play(short, |mut first, _signals| assert_eq!(first.take(), None));
    assert!(matches!(end, Err(StepError::Silent(_))));
    let (end, _) = play(short, |mut first, _signals| {
        first.hello();
        // It takes the step and says no more.
        while first.take().is_some() {}
    });
    assert!(matches!(end, Err(StepError::Silent(_))));
    let endless: [&[u8]; 4] =
        [&[0xff; 4096], &[0; 4096], &Answer::Started.encode(), b"\x02\x10\x27\0\0"];
    for bytes in endless {
        let (end, _) =
            play(LONG, |mut first, _signals| while first.socket.write_all(bytes).is_ok() {});
        let error = end.unwrap_err();
        assert!(matches!(error, StepError::Answer(_) | StepError::Turn(_)), "{error}");
        assert!(!error.is_unavailable());
    }
    let (end, _) = play(LONG, |mut first, _signals| {
        let _streams = first.start();
        while first.socket.write_all(&Answer::Started.encode()).is_ok() {}
    });
    assert!(matches!(end, Err(StepError::Turn("started"))));
}
