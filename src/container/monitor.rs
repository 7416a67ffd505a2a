//! The process that stays with a container: it takes what the container writes, and records how it
//! ended. There is one for each container whose output is kept, and none once that has ended.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use jiff::Timestamp;
use rustix::pipe::{PipeFlags, pipe_with};
use tracing::debug;

use super::error::ContainerError;
use super::logs::LogWriter;
use super::record::{Directory, Ended, Record};
use super::steps;
use super::watch::Watch;
use crate::runtime::{Action, FIRST_DESCRIPTOR, Files};
use crate::sys::error::chain;
use crate::sys::fs::PathContext as _;
use crate::sys::mount::MountNamespace;
use crate::sys::spawn;

/// What a monitor says once the container is started; anything else is an error.
const READY: &str = "ready";

/// The program that becomes a monitor, given the run directory, the container's id and the number of
/// a descriptor as further arguments. It has to call [`monitor`].
#[derive(Clone, Debug)]
pub struct MonitorProgram {
    /// The program, usually the own one.
    pub path: PathBuf,
    pub arguments: Vec<String>,
}

impl MonitorProgram {
    /// Has a new monitor start a container.
    pub(super) fn start(
        &self,
        run: &Path,
        id: &str,
        mounts: &MountNamespace,
    ) -> Result<(), ContainerError> {
        let mut command = Command::new(&self.path);
        let mounts = mounts.try_clone_fd().at("enter the mounts of", run)?;
        let number = mounts.as_raw_fd().to_string();
        spawn::pass_descriptor(&mut command, mounts);
        command.args(&self.arguments).arg(run).arg(id).arg(number).env_clear().current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        spawn::die_with_us(&mut command);
        debug!(program = %self.path.display(), id, "create the container by a monitor");
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

/// Starts a container and stays with it until it ended. The process must have been made for this:
/// it leaves its session and adopts orphans, and it talks to its maker by standard output.
///
/// `mounts` is the descriptor that it was given, of where the container's mounts are.
pub fn monitor(run: &Path, id: &str, mounts: RawFd) -> Result<(), ContainerError> {
    let directory = Directory::of(run, id);
    let mounts = spawn::inherited(mounts).map(MountNamespace::from);
    let entered = mounts.at("enter the mounts of", directory.path()).map_err(Into::into);
    match entered.and_then(|mounts| start(&directory, &mounts)) {
        Ok((watch, mut log)) => {
            let mut stdout = io::stdout();
            let said = stdout.write_all(READY.as_bytes()).and_then(|()| stdout.flush());
            said.at("write to", Path::new("standard output"))?;
            // The maker reads to the end.
            let null =
                File::options().write(true).open("/dev/null").at("open", Path::new("/dev/null"))?;
            rustix::stdio::dup2_stdout(&null).at("replace", Path::new("standard output"))?;
            let record_end = |code| {
                let _ = directory.write_end(&Ended { code, at: Timestamp::now() });
            };
            let watched = watch.until_the_end(&mut log, record_end);
            // Who deletes the container may have taken the files away.
            let _ = log.flush();
            watched.map(drop).at("read the output of", directory.path()).map_err(Into::into)
        }
        Err(error) => {
            // The reader may have ended.
            let _ = io::stdout().write_all(chain(&error).as_bytes());
            Err(error)
        }
    }
}

fn start(
    directory: &Directory,
    mounts: &MountNamespace,
) -> Result<(Watch, LogWriter), ContainerError> {
    let record = directory.read()?;
    spawn::detach().at("leave the session for", directory.path())?;
    let log = LogWriter::open(&directory.log(), record.log_bytes)?;
    let pipe = || pipe_with(PipeFlags::CLOEXEC).at("make a pipe for", directory.path());
    let (stdout, stdout_writer) = pipe()?;
    let (stderr, stderr_writer) = pipe()?;

    start_with(&record, directory, mounts, stdout_writer.into(), stderr_writer.into())?;
    let process = directory.child();
    // From here on the container is found by its record.
    spawn::outlive_parent().at("stay with", directory.path())?;
    Ok((Watch { process, streams: [Some(stdout), Some(stderr)] }, log))
}

/// Has the runtime start a container that writes to the given standard output and error.
pub fn start_with(
    record: &Record,
    directory: &Directory,
    mounts: &MountNamespace,
    stdout: Stdio,
    stderr: Stdio,
) -> Result<(), ContainerError> {
    let log = directory.runtime_log();
    let runtime = &record.runtime;
    let listen = || steps::listen(directory.run(), &record.id);
    let socket = record.steps.is_some().then(listen).transpose()?;
    let files = Files {
        bundle: &directory.bundle(),
        pid_file: &directory.pid_file(),
        log: &log,
        descriptors: usize::from(socket.is_some()),
    };
    let mut command = runtime.run_detached(&record.id, files);
    command.stdout(stdout).stderr(stderr);
    spawn::die_with_us(&mut command);
    mounts.enter(&mut command).at("enter the mounts of", directory.path())?;
    if let Some(socket) = socket {
        let passed = spawn::pass_descriptor_as(&mut command, socket, FIRST_DESCRIPTOR);
        passed.at("pass a descriptor to the container of", directory.path())?;
    }
    let _parents = record.keep_parents();
    debug!(runtime = %runtime.program.display(), "start the container");
    let status = command.status().at("execute", &runtime.program)?;
    if !status.success() {
        return Err(runtime.logged_error(Action::Run, &record.id, &log).into());
    }
    Ok(())
}
