//! Containers run by runc and crun directly.

use std::fmt;
use std::process::Command;

use serde_json::Value;

use super::bundle::Bundle;
use super::program::{self, Finished};

/// A runtime that every container test runs with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runtime {
    Runc,
    Crun,
}

impl Runtime {
    pub(crate) const ALL: [Self; 2] = [Self::Runc, Self::Crun];

    /// Returns a command that calls the runtime.
    pub(crate) fn command(self) -> Command {
        Command::new(match self {
            Self::Runc => program::find("runc"),
            Self::Crun => {
                program::find("crun");
                program::repository("tests/support/crun.sh")
            }
        })
    }
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Runc => "runc",
            Self::Crun => "crun",
        })
    }
}

/// A container of a bundle, deleted with its processes when dropped.
pub(crate) struct Container<'bundle> {
    runtime: Runtime,
    bundle: &'bundle Bundle,
    id: String,
}

impl<'bundle> Container<'bundle> {
    /// Names a container; nothing runs yet.
    pub(crate) fn new(runtime: Runtime, bundle: &'bundle Bundle) -> Self {
        program::require_root();
        Self { runtime, bundle, id: program::unique_name() }
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn bundle(&self) -> &Bundle {
        self.bundle
    }

    /// Runs the container in the foreground until it ends.
    #[track_caller]
    pub(crate) fn run(&self) -> Finished {
        self.call("run", &["--bundle", self.bundle.path_str()])
    }

    /// Creates the container; it waits for [`Self::start`], and what it writes is lost.
    #[track_caller]
    pub(crate) fn create(&self) -> Finished {
        self.call("create", &["--bundle", self.bundle.path_str()])
    }

    /// Starts a created container.
    #[track_caller]
    pub(crate) fn start(&self) -> Finished {
        self.call("start", &[])
    }

    /// Returns the runtime's state of the container.
    #[track_caller]
    pub(crate) fn state(&self) -> Value {
        serde_json::from_str(&self.call("state", &[]).success()).expect("the state is JSON")
    }

    /// Returns the process id of the container's first process.
    #[track_caller]
    pub(crate) fn pid(&self) -> i64 {
        self.state()["pid"].as_i64().expect("the state has a pid")
    }

    /// Deletes the container, killing its processes.
    #[track_caller]
    pub(crate) fn delete(&self) -> Finished {
        self.call("delete", &["--force"])
    }

    fn call(&self, subcommand: &str, options: &[&str]) -> Finished {
        program::run(&mut self.command(subcommand, options))
    }

    /// Returns a command that calls the runtime for this container.
    pub(crate) fn command(&self, subcommand: &str, options: &[&str]) -> Command {
        let mut command = self.runtime.command();
        command.arg("--root").arg(self.bundle.path().join("state"));
        command.arg(subcommand).args(options).arg(&self.id);
        command
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        // Mostly it is gone already, which the runtimes call an error or not.
        let _ = self.delete();
    }
}
