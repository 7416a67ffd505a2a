//! One more process in a container.

use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use super::engine::Engine;
use super::error::ContainerError;
use super::record::{Record, read_json};
use crate::bundle::{self, ExecOptions};
use crate::sys::fs::PathContext as _;
use crate::sys::spawn;

impl Engine {
    /// Returns the command that runs a process in a container, in the foreground and with the
    /// streams of the command.
    ///
    /// What the process gets is in a file without a name that only this command can read: its
    /// environment holds secrets, and a file in a directory could outlive us.
    pub fn exec(&self, record: &Record, options: &ExecOptions) -> Result<Command, ContainerError> {
        if !record.process.is_some_and(|process| process.is_running()) {
            let ended = self.directory(&record.id).end().map(|ended| ended.code);
            return Err(ContainerError::NotRunning { id: record.id.clone(), ended });
        }
        let process = self.process(record, options)?;
        let text = serde_json::to_vec(&process).expect("values are JSON");
        let bundle = self.directory(&record.id).bundle();
        let file = spawn::memory_file("process", &text).at("make a file in memory for", &bundle)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let mut command = record.runtime.exec(&record.id, &path);
        spawn::pass_descriptor(&mut command, file);
        Ok(command)
    }

    /// Returns what the runtime is told of a further process.
    pub(super) fn process(
        &self,
        record: &Record,
        options: &ExecOptions,
    ) -> Result<Value, ContainerError> {
        let path = self.directory(&record.id).bundle().join("config.json");
        let config: Value = read_json(&path)?;
        Ok(bundle::process(&config, options)?)
    }
}
