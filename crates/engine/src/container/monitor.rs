//! The monitor of a container: it reads the container's output, and records how the container ended. Each
//! container whose output is kept has one, until the container ends.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use jiff::Timestamp;
use oci_hooks_files::error::chain;
use oci_hooks_files::fs::PathContext as _;
use oci_hooks_files::spawn;
use oci_hooks_host::cgroup;
use oci_hooks_host::mount::MountNamespace;
use rustix::pipe::{PipeFlags, pipe_with};
use tracing::debug;

use super::error::ContainerError;
use super::logs::LogWriter;
use super::record::{ContainerRecord, RecordDirectory, RecordedEnd};
use super::steps;
use super::watch::ProcessWatch;
use crate::runtime::{FIRST_DESCRIPTOR, RuntimeAction, RuntimeFiles};

/// Answer of a monitor after the container has started; any other answer is an error.
const READY: &str = "ready";

/// Program that becomes a monitor. It gets the run directory, the container's id and the number of a
/// descriptor as additional arguments, and must call [`monitor`].
#[derive(Clone, Debug)]
pub struct MonitorProgram {
    /// Path of the program, usually this one.
    pub path: PathBuf,
    pub arguments: Vec<String>,
}

impl MonitorProgram {
    /// Starts a container with a new monitor.
    pub(super) fn start(
        &self,
        run: &Path,
        id: &str,
        mounts: &MountNamespace,
    ) -> Result<(), ContainerError> {
        let mut command = Command::new(&self.path);
        let mounts = mounts.try_clone_fd().with_path("enter the mount namespace of", run)?;
        let number = mounts.as_raw_fd().to_string();
        spawn::pass_descriptor(&mut command, mounts);
        command.args(&self.arguments).arg(run).arg(id).arg(number).env_clear().current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        spawn::die_with_us(&mut command);
        debug!(program = %self.path.display(), id, "create the container with a monitor process");
        let mut child = command.spawn().with_path("execute", &self.path)?;
        let mut answer = String::new();
        let mut stdout = child.stdout.take().expect("it was asked for");
        stdout.read_to_string(&mut answer).with_path("read from", &self.path)?;
        if answer == READY {
            return Ok(());
        }
        let _ = child.wait();
        let message = if answer.is_empty() {
            "its monitor process ended without a message".to_owned()
        } else {
            answer
        };
        Err(ContainerError::Monitor { id: id.to_owned(), message })
    }
}

/// Starts a container and monitors it until it ends. The process must have been created for this: it leaves
/// its session, adopts orphans, and reports to its parent on stdout.
///
/// `mounts` is the inherited descriptor of the container's mount namespace.
pub fn monitor(run: &Path, id: &str, mounts: RawFd) -> Result<(), ContainerError> {
    let directory = RecordDirectory::of(run, id);
    let mounts = spawn::take_inherited(mounts).map(MountNamespace::from);
    let entered =
        mounts.with_path("enter the mount namespace of", directory.path()).map_err(Into::into);
    match entered.and_then(|mounts| start(&directory, &mounts)) {
        Ok((watch, mut log)) => {
            let mut stdout = io::stdout();
            let said = stdout.write_all(READY.as_bytes()).and_then(|()| stdout.flush());
            said.with_path("write to", Path::new("standard output"))?;
            // The parent reads until the end of the stream.
            let null = File::options()
                .write(true)
                .open("/dev/null")
                .with_path("open", Path::new("/dev/null"))?;
            rustix::stdio::dup2_stdout(&null).with_path("replace", Path::new("standard output"))?;
            let record_end = |code| {
                let _ = directory.write_end(&RecordedEnd { code, at: Timestamp::now() });
            };
            let watched = watch.read_until_end(&mut log, record_end);
            // The container may have been removed with its files.
            let _ = log.flush();
            watched.map(drop).with_path("read the output of", directory.path()).map_err(Into::into)
        }
        Err(error) => {
            // The parent may have ended.
            let _ = io::stdout().write_all(chain(&error).as_bytes());
            Err(error)
        }
    }
}

fn start(
    directory: &RecordDirectory,
    mounts: &MountNamespace,
) -> Result<(ProcessWatch, LogWriter), ContainerError> {
    let record = directory.read()?;
    spawn::detach().with_path("make this process adopt the orphans of", directory.path())?;
    let log = LogWriter::open(&directory.log(), record.log_bytes)?;
    let pipe = || pipe_with(PipeFlags::CLOEXEC).with_path("make a pipe for", directory.path());
    let (stdout, stdout_writer) = pipe()?;
    let (stderr, stderr_writer) = pipe()?;

    start_with(&record, directory, mounts, stdout_writer.into(), stderr_writer.into())?;
    let process = directory.child();
    // From here on, later processes find the container by its record.
    spawn::outlive_parent().with_path("outlive the parent process to monitor", directory.path())?;
    Ok((ProcessWatch { process, streams: [Some(stdout), Some(stderr)] }, log))
}

/// Starts a container with its runtime, and with the given stdout and stderr.
pub fn start_with(
    record: &ContainerRecord,
    directory: &RecordDirectory,
    mounts: &MountNamespace,
    stdout: Stdio,
    stderr: Stdio,
) -> Result<(), ContainerError> {
    let log = directory.runtime_log();
    let runtime = &record.runtime;
    let listen = || steps::listen(directory.run(), &record.id);
    let socket = record.steps.is_some().then(listen).transpose()?;
    let files = RuntimeFiles {
        bundle: &directory.bundle(),
        pid_file: &directory.pid_file(),
        log: &log,
        descriptors: usize::from(socket.is_some()),
    };
    let mut command = runtime.run_detached(&record.id, files);
    command.stdout(stdout).stderr(stderr);
    spawn::die_with_us(&mut command);
    mounts.enter(&mut command).with_path("enter the mount namespace of", directory.path())?;
    if let Some(socket) = socket {
        let passed = spawn::pass_descriptor_as(&mut command, socket, FIRST_DESCRIPTOR);
        passed.with_path("pass a descriptor to the container of", directory.path())?;
    }
    let _parents = cgroup::keep_parents_of(&record.cgroup);
    debug!(runtime = %runtime.program.display(), "start the container");
    let bundle = directory.bundle();
    let status = runtime.finish(&mut command, RuntimeAction::Run, &record.id, &bundle)?;
    if !status.success() {
        return Err(runtime.logged_error(RuntimeAction::Run, &record.id, &log).into());
    }
    Ok(())
}
