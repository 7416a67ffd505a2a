//! Containers run by runc and crun directly.

use std::process::Command;
use std::{env, fmt};

use serde_json::Value;

use super::bundle::BusyboxBundle;
use super::program::{self, FinishedCommand};

/// A runtime that runs the containers of tests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TestRuntime {
    Runc,
    Crun,
}

impl TestRuntime {
    pub const ALL: [Self; 2] = [Self::Runc, Self::Crun];

    /// Returns the runtimes of a test: all, or in nextest's `gate` profile one that depends on the test's name
    /// and on the index of the user that the test runs as.
    pub fn selected(user: usize) -> &'static [Self] {
        let is_gate = env::var("NEXTEST_PROFILE").is_ok_and(|profile| profile == "gate");
        match env::var("NEXTEST_TEST_NAME") {
            Ok(name) if is_gate => {
                let sum: usize = name.bytes().map(usize::from).sum();
                &Self::ALL[(sum + user) % 2..][..1]
            }
            _ => &Self::ALL,
        }
    }

    /// Returns a command that calls the runtime.
    pub fn command(self) -> Command {
        Command::new(match self {
            Self::Runc => program::find("runc"),
            Self::Crun => {
                program::find("crun");
                program::repository("tests/support/crun.sh")
            }
        })
    }
}

impl fmt::Display for TestRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Runc => "runc",
            Self::Crun => "crun",
        })
    }
}

/// A container of a bundle, deleted with its processes on drop.
pub struct RuntimeContainer<'bundle> {
    runtime: TestRuntime,
    bundle: &'bundle BusyboxBundle,
    id: String,
}

impl<'bundle> RuntimeContainer<'bundle> {
    /// Names a container without starting it.
    pub fn new(runtime: TestRuntime, bundle: &'bundle BusyboxBundle) -> Self {
        program::require_root();
        Self { runtime, bundle, id: program::unique_name() }
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn bundle(&self) -> &BusyboxBundle {
        self.bundle
    }

    /// Runs the container in the foreground until it exits.
    #[track_caller]
    pub fn run(&self) -> FinishedCommand {
        self.call("run", &["--bundle", self.bundle.path_str()])
    }

    /// Creates the container, to be started with [`Self::start`]. Its output is lost.
    #[track_caller]
    pub fn create(&self) -> FinishedCommand {
        self.call("create", &["--bundle", self.bundle.path_str()])
    }

    /// Starts a created container.
    #[track_caller]
    pub fn start(&self) -> FinishedCommand {
        self.call("start", &[])
    }

    /// Returns the runtime's state of the container.
    #[track_caller]
    pub fn state(&self) -> Value {
        serde_json::from_str(&self.call("state", &[]).success()).expect("the state is JSON")
    }

    /// Returns the process id of the container's init.
    #[track_caller]
    pub fn pid(&self) -> i64 {
        self.state()["pid"].as_i64().expect("the state has a pid")
    }

    /// Deletes the container, killing its processes.
    #[track_caller]
    pub fn delete(&self) -> FinishedCommand {
        self.call("delete", &["--force"])
    }

    fn call(&self, subcommand: &str, options: &[&str]) -> FinishedCommand {
        program::run(&mut self.command(subcommand, options))
    }

    /// Returns a command that calls the runtime for this container.
    pub fn command(&self, subcommand: &str, options: &[&str]) -> Command {
        let mut command = self.runtime.command();
        command.arg("--root").arg(self.bundle.path().join("state"));
        command.arg(subcommand).args(options).arg(&self.id);
        command
    }
}

impl Drop for RuntimeContainer<'_> {
    fn drop(&mut self) {
        // The container is usually gone already. Only some runtimes report that as an error.
        let _ = self.delete();
    }
}
