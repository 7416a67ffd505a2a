//! The process that stays with a container: it takes what the container writes, and records how it
//! ended. There is one for each container whose output is kept, and none once that has ended.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use jiff::Timestamp;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{WaitOptions, WaitStatus, wait};

use super::error::ContainerError;
use super::logs::{LogWriter, Stream};
use super::record::{Directory, Ended, Record};
use crate::runtime::Action;
use crate::sys::error::chain;
use crate::sys::fs::PathContext as _;
use crate::sys::identity::Identity;
use crate::sys::spawn;

/// What a monitor says once the container is created; anything else is an error.
const READY: &str = "ready";

/// How long the output of a container that ended is waited for when a process that left its pid
/// namespace still holds it.
const DRAIN: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The program that becomes a monitor, given the run directory and the container's id as further
/// arguments. It has to call [`monitor`].
#[derive(Clone, Debug)]
pub struct MonitorProgram {
    /// The program, usually the own one.
    pub path: PathBuf,
    /// Arguments before the two.
    pub arguments: Vec<String>,
}

impl MonitorProgram {
    /// Has a new monitor create a container.
    pub(super) fn create(&self, run: &Path, id: &str) -> Result<(), ContainerError> {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments).arg(run).arg(id).env_clear().current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        spawn::die_with_us(&mut command);
        let mut child = command.spawn().at("execute", &self.path)?;
        let mut answer = String::new();
        let mut stdout = child.stdout.take().expect("it was asked for");
        stdout.read_to_string(&mut answer).at("read from", &self.path)?;
        if answer == READY {
            return Ok(());
        }
        let _ = child.wait();
        Err(ContainerError::Monitor { id: id.to_owned(), message: answer })
    }
}

/// Creates a container and stays with it until it ended. The process must have been made for this:
/// it leaves its session and adopts orphans, and it talks to its maker by standard output.
pub fn monitor(run: &Path, id: &str) -> Result<(), ContainerError> {
    match create(run, id) {
        Ok(watch) => {
            let mut stdout = io::stdout();
            let said = stdout.write_all(READY.as_bytes()).and_then(|()| stdout.flush());
            said.at("write to", Path::new("standard output"))?;
            // The maker reads to the end.
            let null =
                File::options().write(true).open("/dev/null").at("open", Path::new("/dev/null"))?;
            rustix::stdio::dup2_stdout(&null).at("replace", Path::new("standard output"))?;
            watch.until_the_end()
        }
        Err(error) => {
            // If nobody reads it any more, there is nobody to tell.
            let _ = io::stdout().write_all(chain(&error).as_bytes());
            Err(error)
        }
    }
}

fn create(run: &Path, id: &str) -> Result<Watch, ContainerError> {
    let directory = Directory::of(run, id);
    let record = directory.read()?;
    spawn::detach().at("leave the session for", directory.path())?;
    let log = LogWriter::create(&directory.log(), record.log_bytes)?;
    let pipe = || pipe_with(PipeFlags::CLOEXEC).at("make a pipe for", directory.path());
    let (stdout, stdout_writer) = pipe()?;
    let (stderr, stderr_writer) = pipe()?;

    create_with(&record, &directory, stdout_writer.into(), stderr_writer.into())?;
    let process = directory.process();
    // From here on the container is as good as started, and found by its record.
    spawn::outlive_parent().at("stay with", directory.path())?;
    Ok(Watch { directory, log, process, streams: [Some(stdout), Some(stderr)] })
}

/// Has the runtime create a container that writes to the given streams.
pub(super) fn create_with(
    record: &Record,
    directory: &Directory,
    stdout: Stdio,
    stderr: Stdio,
) -> Result<(), ContainerError> {
    let log = directory.runtime_log();
    let runtime = &record.runtime;
    let mut command = runtime.create(&record.id, &directory.bundle(), &directory.pid_file(), &log);
    command.stdout(stdout).stderr(stderr);
    spawn::die_with_us(&mut command);
    let status = command.status().at("execute", &runtime.program)?;
    if !status.success() {
        return Err(runtime.logged_error(Action::Create, &record.id, &log).into());
    }
    Ok(())
}

/// A container and its output.
struct Watch {
    directory: Directory,
    log: LogWriter,
    process: Option<Identity>,
    streams: [Option<OwnedFd>; 2],
}

impl Watch {
    fn until_the_end(mut self) -> Result<(), ContainerError> {
        for stream in self.streams.iter().flatten() {
            fcntl_setfl(stream, OFlags::NONBLOCK)
                .at("read the output of", self.directory.path())?;
        }
        // Opened when it is a zombie already, too: then it is readable at once.
        let pid = self
            .process
            .and_then(|process| rustix::process::Pid::from_raw(i32::try_from(process.pid).ok()?));
        let mut pidfd = pid.and_then(|pid| {
            rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
        });
        while pidfd.is_some() || self.streams.iter().any(Option::is_some) {
            let timeout = if pidfd.is_some() { None } else { Some(&DRAIN) };
            let mut polled: Vec<_> = self
                .streams
                .iter()
                .flatten()
                .map(|stream| PollFd::new(stream, PollFlags::IN))
                .collect();
            polled.extend(pidfd.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
            match poll(&mut polled, timeout) {
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => break,
            }
            let has_ended =
                pidfd.is_some() && polled.last().is_some_and(|last| !last.revents().is_empty());
            drop(polled);
            self.read();
            if has_ended {
                pidfd = None;
                self.record_end();
            }
        }
        // Who deletes the container may have taken the files away.
        let _ = self.log.finish();
        Ok(())
    }

    /// Reads what there is; a log that cannot be written must not block the container.
    fn read(&mut self) {
        let mut buffer = [0; 64 << 10];
        for (slot, stream) in self.streams.iter_mut().zip([Stream::Stdout, Stream::Stderr]) {
            let Some(fd) = slot else { continue };
            match rustix::io::read(fd.as_fd(), &mut buffer) {
                Ok(0) => *slot = None,
                Ok(count) => {
                    let _ = self.log.add(stream, &buffer[..count]);
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => *slot = None,
            }
        }
    }

    /// Collects all that ended; the container's first process is among them.
    fn record_end(&self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let is_first = self.process.is_some_and(|process| {
                u32::try_from(pid.as_raw_nonzero().get()) == Ok(process.pid)
            });
            if is_first {
                let ended = Ended { code: code(status), at: Timestamp::now() };
                let _ = self.directory.write_end(&ended);
            }
        }
    }
}

/// Returns a status as shells do.
fn code(status: WaitStatus) -> i32 {
    status
        .exit_status()
        .or_else(|| status.terminating_signal().map(|signal| 128 + signal))
        .unwrap_or(1)
}
