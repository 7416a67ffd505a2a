//! Runs additional processes in a container through the runtime, and follows them until they end.

use std::borrow::Cow;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use oci_hooks_files::beneath::{ConfinedRoot, descriptor_path};
use oci_hooks_files::fs::PathContext as _;
use oci_hooks_files::spawn;
use oci_hooks_host::identity::ProcessIdentity;
use oci_hooks_host::userns::OwnerIds;
use rustix::fs::{FileType, Gid, Mode, OFlags, Uid, fchown, fstat};
use rustix::pipe::{PipeFlags, pipe_with};
use serde_json::Value;
use tracing::debug;

use super::engine::Engine;
use super::error::ContainerError;
use super::record::{ContainerRecord, read_json};
use super::watch::{OutputReceiver, ProcessWatch};
use crate::bundle::{self, BundleError, ExecOptions};
use crate::runtime::RuntimeAction;

impl Engine {
    /// Returns the command that runs a process in a container, in the foreground and with the
    /// streams of the command.
    ///
    /// The process is described in an unnamed file that only this command can read: the environment has
    /// secrets, and a file in a directory could outlive this process.
    pub fn exec(
        &self,
        record: &ContainerRecord,
        options: &ExecOptions,
    ) -> Result<Command, ContainerError> {
        let file = self.process_file(record, options)?;
        let path = PathBuf::from(descriptor_path(&file));
        debug!(runtime = %record.runtime.program.display(), id = record.id, "execute in the container");
        let mut command = record.runtime.exec(&record.id, &path);
        spawn::pass_descriptor(&mut command, file);
        Ok(command)
    }

    /// Returns the error for a container whose first process should start steps, but does not.
    pub fn no_steps(&self, record: &ContainerRecord) -> ContainerError {
        match is_working(record) {
            true => ContainerError::NoSteps { id: record.id.clone() },
            false => self.not_running(record),
        }
    }

    fn not_running(&self, record: &ContainerRecord) -> ContainerError {
        ContainerError::NotRunning { id: record.id.clone(), ended: self.code(record) }
    }

    /// Returns an unnamed file that describes a process for a running container.
    fn process_file(
        &self,
        record: &ContainerRecord,
        options: &ExecOptions,
    ) -> Result<OwnedFd, ContainerError> {
        if !is_working(record) {
            return Err(self.not_running(record));
        }
        let config = self.config(record)?;
        let mut process = bundle::process(&config, self.possible_options(options)?.as_ref())?;
        if let Some(found) = locate(record, &process, &config) {
            process["args"][0] = found.into();
        }
        let text = serde_json::to_vec(&process).expect("values are JSON");
        let bundle = self.directory(&record.id).bundle();
        Ok(spawn::memory_file("process", &text).with_path("make a file in memory for", &bundle)?)
    }

    /// Returns the owner for pipes that the user of a container with a user namespace can open by name: the
    /// runtime cannot change an owner that has no id in the namespace.
    fn stream_owner(
        &self,
        record: &ContainerRecord,
        options: &ExecOptions,
    ) -> Result<Option<OwnerIds>, ContainerError> {
        let Some(user) = &options.user else { return Ok(None) };
        Ok(bundle::host_ids(&self.config(record)?, (user.uid, user.gid)))
    }

    /// Returns the `process.json` of an additional process.
    pub(super) fn process(
        &self,
        record: &ContainerRecord,
        options: &ExecOptions,
    ) -> Result<Value, ContainerError> {
        Ok(bundle::process(&self.config(record)?, self.possible_options(options)?.as_ref())?)
    }

    /// Returns the options with the ids that this process can give; fails if that is not possible.
    fn possible_options<'a>(
        &self,
        options: &'a ExecOptions,
    ) -> Result<Cow<'a, ExecOptions>, ContainerError> {
        let Some(user) = &options.user else { return Ok(Cow::Borrowed(options)) };
        let user =
            user.clone().limit_to_privilege(self.privilege, &[]).map_err(BundleError::from)?;
        Ok(Cow::Owned(ExecOptions { user: Some(user), ..options.clone() }))
    }

    fn config(&self, record: &ContainerRecord) -> Result<Value, ContainerError> {
        read_json(&self.directory(&record.id).bundle().join("config.json"))
    }
}

fn is_working(record: &ContainerRecord) -> bool {
    record.process.is_some_and(|process| process.is_working())
}

/// Returns the path of a program that only the container's own `PATH` finds.
///
/// A step may set `PATH` to directories of its own, but the shell that runs its script must still be found.
fn locate(record: &ContainerRecord, process: &Value, config: &Value) -> Option<String> {
    let name = process["args"][0].as_str().filter(|name| !name.contains('/'))?;
    let (own, step) = (path_of(&config["process"])?, path_of(process)?);
    if own == step {
        return None;
    }
    let root = ConfinedRoot::new(Path::new(&format!("/proc/{}/root", record.process?.pid))).ok()?;
    let is_program = |dir: &str| {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let file = root.open_as_root(&Path::new(dir).join(name), flags, Mode::empty()).ok();
        let stat = file.and_then(|file| fstat(file).ok());
        stat.is_some_and(|stat| {
            FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_mode & 0o111 != 0
        })
    };
    if step.split(':').any(is_program) {
        return None;
    }
    let dir = own.split(':').find(|dir| is_program(dir))?;
    Some(format!("{}/{name}", dir.trim_end_matches('/')))
}

fn path_of(process: &Value) -> Option<&str> {
    let mut env = process["env"].as_array()?.iter().filter_map(Value::as_str);
    env.find_map(|pair| pair.strip_prefix("PATH="))
}

/// Timeout for a killed process to end.
const KILL: Duration = Duration::from_secs(10);

/// Result of running a process to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecOutcome {
    /// The process ended; the exit code, or 128 plus the signal that ended it.
    Ended(i32),
    /// The process was killed at its deadline.
    TimedOut,
}

impl Engine {
    /// Runs a process in a container to its end, with `stdin` as its standard input. The receiver gets its
    /// output, and sets its deadline. The runtime itself ends before the process.
    ///
    /// This process must adopt orphans, as after [`spawn::detach`], and have no other children.
    pub fn exec_to_end(
        &self,
        record: &ContainerRecord,
        options: &ExecOptions,
        stdin: &[u8],
        receiver: &mut impl OutputReceiver,
    ) -> Result<ExecOutcome, ContainerError> {
        let directory = self.directory(&record.id);
        let path = directory.path();
        let pipe = || pipe_with(PipeFlags::CLOEXEC).with_path("make a pipe for", path);
        let (stdout, stdout_writer) = pipe()?;
        let (stderr, stderr_writer) = pipe()?;
        let stdin: Stdio =
            spawn::memory_file("stdin", stdin).with_path("make a file in memory for", path)?.into();
        if let Some((uid, gid)) = self.stream_owner(record, options)? {
            for writer in [&stdout_writer, &stderr_writer] {
                fchown(writer, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
                    .with_path("change the owner of a pipe for", path)?;
            }
        }
        let process = self.process_file(record, options)?;
        let process_path = PathBuf::from(descriptor_path(&process));
        let pid_file = path.join("exec.pid");
        // The PID of an earlier process may belong to another one by now.
        let _ = fs::remove_file(&pid_file);
        let runtime = &record.runtime;
        let runtime_log = directory.runtime_log();
        let mut command = runtime.exec_detached(&record.id, &process_path, &pid_file, &runtime_log);
        command.stdin(stdin).stdout(stdout_writer).stderr(stderr_writer);
        spawn::pass_descriptor(&mut command, process);
        spawn::die_with_us(&mut command);
        debug!(runtime = %runtime.program.display(), id = record.id, "execute in the container");
        let bundle = directory.bundle();
        let status = runtime.finish(&mut command, RuntimeAction::Exec, &record.id, &bundle)?;
        // Closes our copies of the pipes' write ends.
        drop(command);
        if !status.success() {
            return Err(runtime.logged_error(RuntimeAction::Exec, &record.id, &runtime_log).into());
        }
        let pid = fs::read_to_string(&pid_file).with_path("read", &pid_file)?;
        let pid = pid.trim().parse().ok();
        let process = pid.and_then(ProcessIdentity::of_child);
        let mut code = None;
        let watch = ProcessWatch { process, streams: [Some(stdout), Some(stderr)] };
        let has_ended = watch
            .read_until_end(receiver, |ended| code = Some(ended))
            .with_path("read the output of a process of", path)?;
        if !has_ended {
            if let Some(process) = process {
                process.kill(KILL).with_path("kill a process of", path)?;
            }
            return Ok(ExecOutcome::TimedOut);
        }
        // Without a code, the process was reaped elsewhere.
        Ok(ExecOutcome::Ended(code.unwrap_or(1)))
    }
}
