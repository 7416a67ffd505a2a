//! `container-hook` as an administrator installs it, with settings for tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use super::call::Call;
use super::host::Host;
use super::leftovers::Installed;
use super::program::{self, DEADLINE, Finished};
use super::runtime::Runtime;

const PROGRAM: &str = env!("CARGO_BIN_EXE_container-hook");

/// The program with its settings on a host.
pub(crate) struct Installation<'h> {
    host: &'h Host,
    runtime: PathBuf,
}

impl<'h> Installation<'h> {
    /// Installs the hook for a runtime, with further settings.
    pub(crate) fn new(host: &'h Host, runtime: Runtime, further: &str) -> Self {
        let runtime = runtime.command();
        let installation = Self { host, runtime: runtime.get_program().into() };
        let text = format!(
            "[runtime]\npath = {:?}\n\n[store]\nroot = {:?}\nrun = {:?}\n\n{further}",
            runtime.get_program(),
            installation.store(),
            installation.run_directory(),
        );
        fs::write(installation.settings(), text).expect("the host has one installation");
        fs::create_dir(host.path().join("bin")).expect("the host has one installation");
        // A copy: the program that cargo made may belong to a user, who then would be root here.
        program::copy_program(Path::new(PROGRAM), &installation.program());
        let directory = host.path().join("hook");
        installation.admin(&["install", directory.to_str().expect("it is ASCII")]).success();
        installation
    }

    pub(crate) fn host(&self) -> &'h Host {
        self.host
    }

    /// Returns the program that runs containers.
    pub(crate) fn runtime(&self) -> PathBuf {
        self.runtime.clone()
    }

    /// Returns the installed program.
    pub(crate) fn program(&self) -> PathBuf {
        self.host.path().join("bin/container-hook")
    }

    /// Returns the script that the runner calls.
    pub(crate) fn entry(&self) -> PathBuf {
        self.host.path().join("hook/container-hook.sh")
    }

    /// Returns the directory of images.
    pub(crate) fn store(&self) -> PathBuf {
        self.host.path().join("lib")
    }

    /// Returns the directory of what runs.
    pub(crate) fn run_directory(&self) -> PathBuf {
        self.host.path().join("run")
    }

    /// Returns the variable that an administrator gives to the runner, for the settings.
    pub(crate) fn variable(&self) -> (String, String) {
        let settings = self.settings().display().to_string();
        ("OCI_HOOKS_CONTAINER_HOOK_CONFIG".to_owned(), settings)
    }

    /// Waits until no hook runs on the host.
    pub(crate) fn wait_for_hooks(&self) {
        let deadline = Instant::now() + DEADLINE;
        let (entry, program) = (self.entry(), self.program());
        let words = [entry.display().to_string(), format!("{} ", program.display())];
        let is_hook = |line: &str| line.contains(&words[0]) || line == words[1];
        while self.host.processes().iter().any(|process| is_hook(&process.line)) {
            assert!(Instant::now() < deadline, "a hook does not end");
            std::thread::yield_now();
        }
    }

    /// Runs the program as an administrator.
    pub(crate) fn admin(&self, words: &[&str]) -> Finished {
        self.admin_by(Command::new(self.program()), words)
    }

    /// Runs the program as an administrator who may have few files open.
    pub(crate) fn limited_admin(&self, descriptors: u32, words: &[&str]) -> Finished {
        self.admin_by(program::limited(self.program(), descriptors), words)
    }

    fn admin_by(&self, mut command: Command, words: &[&str]) -> Finished {
        let (name, settings) = self.variable();
        self.host.run(command.env(name, settings).args(words))
    }

    /// Starts the program as an administrator does.
    pub(crate) fn start_admin(&self, words: &[&str]) -> Call {
        let mut command = Command::new(self.program());
        command.args(words).envs([self.variable()]);
        Call::start(self.host, command, Vec::new(), None)
    }

    fn settings(&self) -> PathBuf {
        self.host.path().join("container-hook.toml")
    }
}

impl Installed for Installation<'_> {
    fn host(&self) -> &Host {
        self.host
    }

    fn run_directory(&self) -> PathBuf {
        Self::run_directory(self)
    }

    fn store(&self) -> PathBuf {
        Self::store(self)
    }
}
