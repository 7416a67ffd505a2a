//! `container-hook` as an administrator installs it, with a configuration for tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use super::host::Host;
use super::program::{DEADLINE, Finished};
use super::runtime::Runtime;

const PROGRAM: Option<&str> = option_env!("CARGO_BIN_EXE_container-hook");

/// The program with its configuration on a host.
pub(crate) struct Installation<'h> {
    host: &'h Host,
    config: PathBuf,
    entry: PathBuf,
    state: PathBuf,
}

impl<'h> Installation<'h> {
    /// Installs the hook for a runtime with further lines of configuration.
    pub(crate) fn new(host: &'h Host, runtime: Runtime, further: &str) -> Self {
        let state = host.path().join("state");
        let installation = Self {
            host,
            config: host.path().join("container-hook.toml"),
            entry: host.path().join("container-hook.sh"),
            state,
        };
        let runtime = runtime.command();
        let text = format!(
            "[runtime]\npath = {:?}\n\n[store]\nroot = {:?}\nrun = {:?}\n\n{further}",
            runtime.get_program(),
            installation.store(),
            installation.run_directory(),
        );
        fs::write(&installation.config, text).expect("the host has one installation");
        let entry = format!(
            "#!/bin/sh\nexec {} --config {} \"$@\"\n",
            PROGRAM.unwrap_or("/bin/false"),
            installation.config.display(),
        );
        fs::write(&installation.entry, entry).expect("the host has one installation");
        installation
    }

    pub(crate) fn host(&self) -> &'h Host {
        self.host
    }

    /// Returns the file of settings.
    pub(crate) fn config(&self) -> &Path {
        &self.config
    }

    /// Returns the script that the runner calls.
    pub(crate) fn entry(&self) -> &Path {
        &self.entry
    }

    /// Returns the directory of images.
    pub(crate) fn store(&self) -> PathBuf {
        self.state.join("lib")
    }

    /// Returns the directory of what runs.
    pub(crate) fn run_directory(&self) -> PathBuf {
        self.state.join("run")
    }

    /// Waits until no hook runs on the host.
    pub(crate) fn wait_for_hooks(&self) {
        let deadline = Instant::now() + DEADLINE;
        let script = self.entry.display().to_string();
        let config = self.config.display().to_string();
        let is_hook = |line: &str| line.contains(&script) || line.contains(&config);
        while self.host.processes().iter().any(|process| is_hook(&process.line)) {
            assert!(Instant::now() < deadline, "a hook does not end");
            std::thread::yield_now();
        }
    }

    /// Runs the program as an administrator.
    pub(crate) fn admin(&self, words: &[&str]) -> Finished {
        let mut command = Command::new(PROGRAM.unwrap_or("/bin/false"));
        command.arg("--config").arg(&self.config).args(words);
        self.host.run(&mut command)
    }
}
