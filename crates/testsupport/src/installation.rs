//! `container-hook` as an administrator installs it, with settings for tests.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::call::RunningCall;
use super::host::TestHost;
use super::leftovers::InstalledProgram;
use super::program::{self, FinishedCommand};
use super::runtime::TestRuntime;

/// The program on a host, with its settings.
pub struct HookInstallation<'h> {
    host: &'h TestHost,
    runtime: PathBuf,
}

impl<'h> HookInstallation<'h> {
    /// Installs the hook for a runtime, with additional settings.
    pub fn new(host: &'h TestHost, runtime: TestRuntime, further: &str) -> Self {
        Self::with_runtime(host, runtime.command().get_program().into(), further)
    }

    /// Installs the hook for a program as runtime, with additional settings.
    pub fn with_runtime(host: &'h TestHost, runtime: PathBuf, further: &str) -> Self {
        let installation = Self { host, runtime };
        let text = format!(
            "[runtime]\npath = {:?}\n\n[store]\nroot = {:?}\nrun = {:?}\n\n{further}",
            installation.runtime,
            installation.store(),
            installation.run_directory(),
        );
        fs::write(installation.settings(), text).expect("the host has one installation");
        fs::create_dir(host.path().join("bin")).expect("the host has one installation");
        // A copy, because the program in cargo's directory may be writable by a user, who could then become root.
        program::copy_program(&program::built_program("container-hook"), &installation.program());
        let directory = host.path().join("hook");
        installation.admin(&["install", directory.to_str().expect("it is ASCII")]).success();
        installation
    }

    pub fn host(&self) -> &'h TestHost {
        self.host
    }

    /// Returns the path of the OCI runtime.
    pub fn runtime(&self) -> PathBuf {
        self.runtime.clone()
    }

    /// Returns the installed program.
    pub fn program(&self) -> PathBuf {
        self.host.path().join("bin/container-hook")
    }

    /// Returns the script that the runner calls.
    pub fn entry(&self) -> PathBuf {
        self.host.path().join("hook/container-hook.sh")
    }

    /// Returns the image store.
    pub fn store(&self) -> PathBuf {
        self.host.path().join("lib")
    }

    /// Returns the run directory.
    pub fn run_directory(&self) -> PathBuf {
        self.host.path().join("run")
    }

    /// Returns the environment variable with the path of the settings, which an administrator sets for the runner.
    pub fn variable(&self) -> (String, String) {
        let settings = self.settings().display().to_string();
        ("OCI_HOOKS_CONTAINER_HOOK_CONFIG".to_owned(), settings)
    }

    /// Waits until no hook runs on the host.
    pub fn wait_for_hooks(&self) {
        let (entry, program) = (self.entry(), self.program());
        let words = [entry.display().to_string(), format!("{} ", program.display())];
        let is_hook = |line: &str| line.contains(&words[0]) || line == words[1];
        program::wait_until("all hooks have ended", || {
            !self.host.processes().iter().any(|process| is_hook(&process.line))
        });
    }

    /// Runs the program as an administrator.
    pub fn admin(&self, words: &[&str]) -> FinishedCommand {
        self.admin_by(Command::new(self.program()), words)
    }

    /// Runs the program as an administrator, with a limit of open files.
    pub fn limited_admin(&self, descriptors: u32, words: &[&str]) -> FinishedCommand {
        self.admin_by(program::limited(self.program(), descriptors), words)
    }

    fn admin_by(&self, mut command: Command, words: &[&str]) -> FinishedCommand {
        let (name, settings) = self.variable();
        self.host.run(command.env(name, settings).args(words))
    }

    /// Starts the program as an administrator.
    pub fn start_admin(&self, words: &[&str]) -> RunningCall {
        let mut command = Command::new(self.program());
        command.args(words).envs([self.variable()]);
        RunningCall::start(self.host, command, Vec::new(), None)
    }

    fn settings(&self) -> PathBuf {
        self.host.path().join("container-hook.toml")
    }
}

impl InstalledProgram for HookInstallation<'_> {
    fn host(&self) -> &TestHost {
        self.host
    }

    fn run_directory(&self) -> PathBuf {
        Self::run_directory(self)
    }

    fn store(&self) -> PathBuf {
        Self::store(self)
    }
}
