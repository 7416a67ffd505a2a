//! A call of the hook, as GitHub's runner makes it: a process of its own, the request on standard input, what it writes
//! in the log, and the runner's signals if the job is cancelled.

use std::io::{self, PipeReader, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use oci_hooks::container::StepSignals as _;
use oci_hooks::sys::error::chain;
use oci_hooks::sys::fs::{PathContext as _, PathError};
use oci_hooks::sys::spawn;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGINT, SIGKILL, SIGTERM};

use super::job_log::JobLog;
use crate::signals::{self, Pending};

/// What the runner sends a process whose step is cancelled, and when.
const CANCEL: [(Duration, i32); 3] = [
    (Duration::ZERO, SIGINT),
    (Duration::from_millis(7500), SIGTERM),
    (Duration::from_millis(10_000), SIGKILL),
];

/// How long the runner waits for the end of what a process wrote that has ended.
const LAST_OUTPUT: Duration = Duration::from_secs(5);

/// What becomes of the call if this program is told to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenToldToEnd {
    Cancel,
    /// It goes on: it is what cleans up.
    GoOn,
}

/// How a call ended.
pub struct Ended {
    pub status: ExitStatus,
    pub seconds: f64,
    /// The signal that told this program to end meanwhile.
    pub signal: Option<i32>,
}

/// Makes a call, and waits for its end.
pub fn call(
    mut command: Command,
    request: &[u8],
    when: WhenToldToEnd,
    signals: &mut Pending,
    log: &mut JobLog<'_>,
) -> Result<Ended, PathError> {
    let program = Path::new(command.get_program()).to_owned();
    let begin = Instant::now();
    let pipe = || io::pipe().at("make a pipe for", &program);
    let ((stdout, writer), (stderr, other)) = (pipe()?, pipe()?);
    // A terminal sends its signals to this program alone, which sends them as the runner does.
    command.stdin(Stdio::piped()).stdout(writer).stderr(other).process_group(0);
    spawn::die_with_us(&mut command);
    let mut child = command.spawn().at("execute", &program)?;
    // Its ends of the pipes are the only ones from now on.
    drop(command);
    if let Some(mut input) = child.stdin.take() {
        // One that does not read has ended, and says so by its status.
        let _ = input.write_all(request);
    }
    let signal = match signals::open(child.id()) {
        Some(process) => {
            Attended { process, readers: [stdout, stderr].map(Some), when }.attend(signals, log)
        }
        None => None,
    };
    let status = child.wait().at("wait for", &program)?;
    log.end();
    Ok(Ended { status, seconds: begin.elapsed().as_secs_f64(), signal })
}

/// A process that runs, and what it writes.
struct Attended {
    process: OwnedFd,
    /// Its standard output and standard error, until their ends.
    readers: [Option<PipeReader>; 2],
    when: WhenToldToEnd,
}

/// What has come of an [`Attended`] process, and of this one.
struct Ready {
    output: [bool; 2],
    has_ended: bool,
    is_told: bool,
}

impl Attended {
    /// Shows what the process writes until its end. Returns the first signal that came meanwhile.
    fn attend(mut self, signals: &mut Pending, log: &mut JobLog<'_>) -> Option<i32> {
        let mut ended: Option<Instant> = None;
        let mut told: Option<(Instant, i32)> = None;
        let mut cancel = CANCEL.iter().peekable();
        while ended.is_none_or(|end| self.may_write() && end.elapsed() < LAST_OUTPUT) {
            let next = told.filter(|_| self.when == WhenToldToEnd::Cancel && ended.is_none());
            if let Some((since, _)) = next
                && let Some((_, signal)) = cancel.next_if(|(after, _)| since.elapsed() >= *after)
            {
                signals::send(&self.process, *signal);
                continue;
            }
            let until = match (ended, next, cancel.peek()) {
                (Some(end), _, _) => Some(end + LAST_OUTPUT),
                (None, Some((since, _)), Some((after, _))) => Some(since + *after),
                _ => None,
            };
            let ready = match self.wait(signals, ended.is_some(), until) {
                Ok(ready) => ready,
                Err(error) => {
                    log.error(&chain(&error));
                    break;
                }
            };
            for stream in (0..self.readers.len()).filter(|stream| ready.output[*stream]) {
                self.read(stream, log);
            }
            if ready.has_ended {
                ended = Some(Instant::now());
            }
            if ready.is_told {
                let signal = signals.take().first().copied();
                told = told.or(signal.map(|signal| (Instant::now(), signal)));
            }
        }
        told.map(|(_, signal)| signal)
    }

    fn may_write(&self) -> bool {
        self.readers.iter().any(Option::is_some)
    }

    /// Waits for output, the end of the process or a signal, until then at most.
    fn wait(
        &self,
        signals: &Pending,
        has_ended: bool,
        until: Option<Instant>,
    ) -> io::Result<Ready> {
        let [stdout, stderr] =
            self.readers.each_ref().map(|reader| reader.as_ref().map(AsFd::as_fd));
        // What has come to its end would never be waited for.
        let process = (!has_ended).then(|| self.process.as_fd());
        let awaited = [stdout, stderr, process, Some(signals.descriptor())];
        let mut fds: Vec<_> = awaited
            .iter()
            .flatten()
            .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
            .collect();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
        let [stdout, stderr, has_ended, is_told] =
            awaited.map(|fd| fd.is_some() && ready.next().unwrap_or(false));
        Ok(Ready { output: [stdout, stderr], has_ended, is_told })
    }

    /// Shows what the process has written to a stream.
    fn read(&mut self, stream: usize, log: &mut JobLog<'_>) {
        let Some(reader) = &mut self.readers[stream] else { return };
        let mut buffer = [0; 16 << 10];
        match reader.read(&mut buffer) {
            Ok(count) if count > 0 => log.write(stream, &buffer[..count]),
            _ => self.readers[stream] = None,
        }
    }
}
