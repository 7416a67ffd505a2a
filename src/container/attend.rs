//! One more process in a container, from its start to its end, with what it writes read.

use std::fs;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::fs::{Gid, Uid, fchown};
use rustix::pipe::{PipeFlags, pipe_with};
use tracing::debug;

use super::engine::Engine;
use super::error::ContainerError;
use super::record::Record;
use super::watch::{Attendant, Watch};
use crate::bundle::ExecOptions;
use crate::runtime::Action;
use crate::sys::fs::PathContext as _;
use crate::sys::identity::Identity;
use crate::sys::spawn;

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
