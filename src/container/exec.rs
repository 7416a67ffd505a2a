//! One more process in a container.

use std::borrow::Cow;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FileType, Mode, OFlags, fstat};
use serde_json::Value;
use tracing::debug;

use super::engine::Engine;
use super::error::ContainerError;
use super::record::{Record, read_json};
use crate::bundle::{self, BundleError, ExecOptions};
use crate::sys::beneath::Beneath;
use crate::sys::fs::PathContext as _;
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
    pub(super) fn process_file(
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
    pub(super) fn stream_owner(
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
