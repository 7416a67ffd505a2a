//! One more process in a container, and staying with it from its start to its end.

use std::borrow::Cow;
use std::fs;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{FileType, Gid, Mode, OFlags, Uid, fchown, fstat};
use rustix::pipe::{PipeFlags, pipe_with};
use serde_json::Value;
use tracing::debug;

use super::engine::Engine;
use super::error::ContainerError;
use super::record::{Record, read_json};
use super::watch::{Attendant, Watch};
use crate::bundle::{self, BundleError, ExecOptions};
use crate::runtime::Action;
use crate::sys::beneath::Beneath;
use crate::sys::fs::PathContext as _;
use crate::sys::identity::Identity;
use crate::sys::spawn;
use crate::sys::userns::Ids;

impl Engine {
    /// Returns the command that runs a process in a container, in the foreground and with the
    /// streams of the command.
    ///
    /// What the process gets is in a file without a name that only this command can read: its
    /// environment holds secrets, and a file in a directory could outlive us.
    pub fn exec(&self, record: &Record, options: &ExecOptions) -> Result<Command, ContainerError> {
        let file = self.process_file(record, options)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        debug!(runtime = %record.runtime.program.display(), id = record.id, "execute in the container");
        let mut command = record.runtime.exec(&record.id, &path);
        spawn::pass_descriptor(&mut command, file);
        Ok(command)
    }

    /// Returns a file without a name that describes a process for a container that runs.
    fn process_file(
        &self,
        record: &Record,
        options: &ExecOptions,
    ) -> Result<OwnedFd, ContainerError> {
        if !record.process.is_some_and(|process| process.is_working()) {
            let ended = self.code(record);
            return Err(ContainerError::NotRunning { id: record.id.clone(), ended });
        }
        let config = self.config(record)?;
        let mut process = bundle::process(&config, self.possible(options)?.as_ref())?;
        if let Some(found) = locate(record, &process, &config) {
            process["args"][0] = found.into();
        }
        let text = serde_json::to_vec(&process).expect("values are JSON");
        let bundle = self.directory(&record.id).bundle();
        Ok(spawn::memory_file("process", &text).at("make a file in memory for", &bundle)?)
    }

    /// Returns whose pipes have to be that a user of a container with a user namespace is to open by name:
    /// there, runtimes cannot give away what belongs to none of its users.
    fn stream_owner(
        &self,
        record: &Record,
        options: &ExecOptions,
    ) -> Result<Option<Ids>, ContainerError> {
        let Some(user) = &options.user else { return Ok(None) };
        Ok(bundle::on_host(&self.config(record)?, (user.uid, user.gid)))
    }

    /// Returns what the runtime is told of a further process.
    pub(super) fn process(
        &self,
        record: &Record,
        options: &ExecOptions,
    ) -> Result<Value, ContainerError> {
        Ok(bundle::process(&self.config(record)?, self.possible(options)?.as_ref())?)
    }

    /// Returns the options of a process that this one can start; fails if it cannot.
    fn possible<'a>(
        &self,
        options: &'a ExecOptions,
    ) -> Result<Cow<'a, ExecOptions>, ContainerError> {
        let Some(user) = &options.user else { return Ok(Cow::Borrowed(options)) };
        let user = user.clone().within(self.privilege, &[]).map_err(BundleError::from)?;
        Ok(Cow::Owned(ExecOptions { user: Some(user), ..options.clone() }))
    }

    fn config(&self, record: &Record) -> Result<Value, ContainerError> {
        read_json(&self.directory(&record.id).bundle().join("config.json"))
    }
}

/// Returns where a program is that only the container's own `PATH` leads to.
///
/// A step may set `PATH` to directories of its own; the shell that runs its script is to be found all
/// the same.
fn locate(record: &Record, process: &Value, config: &Value) -> Option<String> {
    let name = process["args"][0].as_str().filter(|name| !name.contains('/'))?;
    let (own, step) = (path_of(&config["process"])?, path_of(process)?);
    if own == step {
        return None;
    }
    let root = Beneath::new(Path::new(&format!("/proc/{}/root", record.process?.pid))).ok()?;
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

/// How long a killed process may take to be gone.
const KILL: Duration = Duration::from_secs(10);

/// How a process that was attended to went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attended {
    /// It ended with this code, or 128 and the signal that ended it.
    Ended(i32),
    /// Its time was up, and it was killed.
    TimedOut,
}

impl Engine {
    /// Runs a process in a container to its end, with this on its standard input; what it writes goes
    /// to the attendant, who says how long it may run. The runtime itself does not stay meanwhile.
    ///
    /// This process has to adopt orphans, as after [`spawn::detach`], and have no other children.
    pub fn attend(
        &self,
        record: &Record,
        options: &ExecOptions,
        stdin: &[u8],
        attendant: &mut impl Attendant,
    ) -> Result<Attended, ContainerError> {
        let directory = self.directory(&record.id);
        let path = directory.path();
        let pipe = || pipe_with(PipeFlags::CLOEXEC).at("make a pipe for", path);
        let (stdout, stdout_writer) = pipe()?;
        let (stderr, stderr_writer) = pipe()?;
        let stdin: Stdio =
            spawn::memory_file("stdin", stdin).at("make a file in memory for", path)?.into();
        if let Some((uid, gid)) = self.stream_owner(record, options)? {
            for writer in [&stdout_writer, &stderr_writer] {
                fchown(writer, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
                    .at("change the owner of a pipe for", path)?;
            }
        }
        let process = self.process_file(record, options)?;
        let process_path = PathBuf::from(format!("/proc/self/fd/{}", process.as_raw_fd()));
        let pid_file = path.join("exec.pid");
        // What an earlier one left there may be the number of another process by now.
        let _ = fs::remove_file(&pid_file);
        let runtime = &record.runtime;
        let runtime_log = directory.runtime_log();
        let mut command = runtime.exec_detached(&record.id, &process_path, &pid_file, &runtime_log);
        command.stdin(stdin).stdout(stdout_writer).stderr(stderr_writer);
        spawn::pass_descriptor(&mut command, process);
        spawn::die_with_us(&mut command);
        debug!(runtime = %runtime.program.display(), id = record.id, "execute in the container");
        let status = command.status().at("execute", &runtime.program)?;
        // With it go our ends of the pipes that are the process's.
        drop(command);
        if !status.success() {
            return Err(runtime.logged_error(Action::Exec, &record.id, &runtime_log).into());
        }
        let pid = fs::read_to_string(&pid_file).at("read", &pid_file)?;
        let pid = pid.trim().parse().ok();
        let process = pid.and_then(Identity::of_child);
        let mut code = None;
        let watch = Watch { process, streams: [Some(stdout), Some(stderr)] };
        let has_ended = watch
            .until_the_end(attendant, |ended| code = Some(ended))
            .at("read what is written in", path)?;
        if !has_ended {
            if let Some(process) = process {
                process.kill(KILL).at("kill a process of", path)?;
            }
            return Ok(Attended::TimedOut);
        }
        // Whoever else collected it, it did not say how it ended.
        Ok(Attended::Ended(code.unwrap_or(1)))
    }
}
