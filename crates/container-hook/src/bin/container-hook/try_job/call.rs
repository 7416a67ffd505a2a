//! A call of the hook, as GitHub's runner makes it: a separate process with the request on standard input,
//! its output in the log, and the runner's signals if the job is cancelled.

use std::io::{self, PipeReader, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use oci_hooks_engine::container::StepSignals as _;
use oci_hooks_files::error::chain;
use oci_hooks_files::fs::{PathContext as _, PathError};
use oci_hooks_files::spawn;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGINT, SIGKILL, SIGTERM};

use super::job_log::JobLog;
use crate::signals::{self, PendingSignals};

/// Signals that the runner sends to the process of a cancelled step, with their times.
const CANCEL: [(Duration, i32); 3] = [
    (Duration::ZERO, SIGINT),
    (Duration::from_millis(7500), SIGTERM),
    (Duration::from_millis(10_000), SIGKILL),
];

/// Time for which the runner waits for the remaining output of an ended process.
const LAST_OUTPUT: Duration = Duration::from_secs(5);

/// Reaction of a call to a signal that tells this program to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnTermination {
    Cancel,
    /// The call goes on, because it cleans up.
    Continue,
}

/// Result of a call.
pub struct CallResult {
    pub status: ExitStatus,
    pub seconds: f64,
    /// Signal that told this program to end during the call.
    pub signal: Option<i32>,
    /// Lines of the log, if it collects them.
    pub lines: Vec<String>,
}

impl CallResult {
    /// Returns the last error in the collected lines, else the last line.
    pub fn reason(&self) -> &str {
        let errors = self.lines.iter().rev().filter_map(|line| line.strip_prefix("Error: "));
        errors.chain(self.lines.last().map(String::as_str)).next().unwrap_or("no output")
    }
}

/// Makes a call and waits for its end.
pub fn call(
    mut command: Command,
    request: &[u8],
    when: OnTermination,
    signals: &mut PendingSignals,
    log: &mut JobLog<'_>,
) -> Result<CallResult, PathError> {
    let program = Path::new(command.get_program()).to_owned();
    let begin = Instant::now();
    let pipe = || io::pipe().with_path("make a pipe for", &program);
    let ((stdout, writer), (stderr, other)) = (pipe()?, pipe()?);
    // In its own process group, the child gets no signals of the terminal, only those sent by this program.
    command.stdin(Stdio::piped()).stdout(writer).stderr(other).process_group(0);
    spawn::die_with_us(&mut command);
    let mut child = command.spawn().with_path("execute", &program)?;
    // From now on only the child holds the other ends of the pipes.
    drop(command);
    if let Some(mut input) = child.stdin.take() {
        // Writing fails only if the child has exited; its status is reported.
        let _ = input.write_all(request);
    }
    let signal = match signals::open(child.id()) {
        Some(process) => RunningCall { process, readers: [stdout, stderr].map(Some), when }
            .show_output(signals, log),
        None => None,
    };
    let status = child.wait().with_path("wait for", &program)?;
    log.end();
    Ok(CallResult { status, seconds: begin.elapsed().as_secs_f64(), signal, lines: log.take() })
}

/// The process of a call, and its output.
struct RunningCall {
    process: OwnedFd,
    /// Standard output and standard error, until they are closed.
    readers: [Option<PipeReader>; 2],
    when: OnTermination,
}

/// Events of a call: output of each stream, the end of its process, and a signal to this program.
struct CallEvents {
    /// Set for streams with new output.
    output: [bool; 2],
    has_ended: bool,
    has_signal: bool,
}

impl RunningCall {
    /// Shows the output of the process until its end. Returns the first signal received meanwhile.
    fn show_output(mut self, signals: &mut PendingSignals, log: &mut JobLog<'_>) -> Option<i32> {
        let mut ended: Option<Instant> = None;
        let mut told: Option<(Instant, i32)> = None;
        let mut cancel = CANCEL.iter().peekable();
        while ended.is_none_or(|end| self.can_write() && end.elapsed() < LAST_OUTPUT) {
            let next = told.filter(|_| self.when == OnTermination::Cancel && ended.is_none());
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
            if ready.has_signal {
                let signal = signals.take().first().copied();
                told = told.or(signal.map(|signal| (Instant::now(), signal)));
            }
        }
        told.map(|(_, signal)| signal)
    }

    /// Returns whether a stream is still open.
    fn can_write(&self) -> bool {
        self.readers.iter().any(Option::is_some)
    }

    /// Waits for output, the end of the process or a signal, at most until `until`.
    fn wait(
        &self,
        signals: &PendingSignals,
        has_ended: bool,
        until: Option<Instant>,
    ) -> io::Result<CallEvents> {
        let [stdout, stderr] =
            self.readers.each_ref().map(|reader| reader.as_ref().map(AsFd::as_fd));
        // The descriptor of an ended process would always be ready.
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
        let [stdout, stderr, has_ended, has_signal] =
            awaited.map(|fd| fd.is_some() && ready.next().unwrap_or(false));
        Ok(CallEvents { output: [stdout, stderr], has_ended, has_signal })
    }

    /// Shows new output of a stream.
    fn read(&mut self, stream: usize, log: &mut JobLog<'_>) {
        let Some(reader) = &mut self.readers[stream] else { return };
        let mut buffer = [0; 16 << 10];
        match reader.read(&mut buffer) {
            Ok(count) if count > 0 => log.write(stream, &buffer[..count]),
            _ => self.readers[stream] = None,
        }
    }
}
