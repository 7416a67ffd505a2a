//! `container-hook` as an administrator installs it, with a configuration for tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::host::Host;
use super::program::Finished;
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
            "root = {:?}\nrun = {:?}\n\n{further}\n\n[runtime]\npath = {:?}\n",
            installation.store(),
            installation.run_directory(),
            runtime.get_program(),
        );
        fs::write(&installation.config, text).expect("the host has one installation");
        let entry = format!(
            "#!/bin/sh\nexec {} --config {} \"$@\"\n",
            PROGRAM.expect("the program is built"),
            installation.config.display(),
        );
        fs::write(&installation.entry, entry).expect("the host has one installation");
        installation
    }

    pub(crate) fn host(&self) -> &'h Host {
        self.host
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

    /// Runs the program as an administrator.
    pub(crate) fn admin(&self, words: &[&str]) -> Finished {
        let mut command = Command::new(PROGRAM.expect("the program is built"));
        command.arg("--config").arg(&self.config).args(words);
        self.host.run(&mut command)
    }
}
