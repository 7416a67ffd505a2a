//! `garm-provider-runc` as an administrator installs it on a host, with settings for tests.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::super::call::RunningCall;
use super::super::host::TestHost;
use super::super::hub::{HostRegistry, RegistryName};
use super::super::leftovers::{InstalledProgram, cgroups_of, containers, containers_below};
use super::super::program::{self, FinishedCommand};
use super::super::runtime::TestRuntime;
use super::super::world::{self, WorldUser};
use super::images;
use super::record::RunnerLog;

/// The program with its settings, and a registry with the images.
pub struct ProviderInstallation<'h> {
    host: &'h TestHost,
    /// User who runs GARM, or none for root.
    user: Option<&'h WorldUser>,
    pub runtime: TestRuntime,
    registry: Mutex<Option<HostRegistry>>,
}

impl<'h> ProviderInstallation<'h> {
    /// Installs the provider for a runtime, with additional settings.
    pub fn new(host: &'h TestHost, runtime: TestRuntime, further: &str) -> Self {
        Self::of(host, None, runtime, further)
    }

    /// Installs the provider for a user who runs GARM, with additional settings.
    pub fn of_user(
        world: &'h world::UserWorld,
        user: &'h WorldUser,
        runtime: TestRuntime,
        further: &str,
    ) -> Self {
        Self::of(world.host(), Some(user), runtime, further)
    }

    fn of(
        host: &'h TestHost,
        user: Option<&'h WorldUser>,
        runtime: TestRuntime,
        further: &str,
    ) -> Self {
        let registry = HostRegistry::serve(host, RegistryName::Hub, None, &images::storage());
        let installation = Self { host, user, runtime, registry: Mutex::new(Some(registry)) };
        installation.configure(further);
        fs::create_dir(host.path().join("bin")).expect("the host has one installation");
        // A copy, because the program in cargo's directory may be writable by a user, who could then become root.
        program::copy_program(
            &program::built_program("garm-provider-runc"),
            &installation.program(),
        );
        installation
    }

    /// Configures the same program for another user of the host, with that user's settings.
    pub fn for_other_user(&self, user: &'h WorldUser, further: &str) -> Self {
        let registry = Mutex::new(None);
        let other = Self { host: self.host, user: Some(user), runtime: self.runtime, registry };
        other.configure(further);
        other
    }

    /// Rewrites the settings, with additional ones. Those can start with keys of `[log]`.
    pub fn configure(&self, further: &str) {
        if let Some(user) = self.user {
            // All other paths are a user's defaults.
            let runtime = program::find(&self.runtime.to_string());
            let run = self.run_directory();
            let text =
                format!("[runtime]\npath = {runtime:?}\n\n[store]\nrun = {run:?}\n\n{further}");
            fs::write(self.settings(), text).expect("the user's directory is there");
            chown(self.settings(), Some(user.id), Some(user.id)).expect("root may do this");
            return;
        }
        let runtime = self.runtime.command();
        let text = format!(
            "[runtime]\npath = {:?}\n\n[store]\nroot = {:?}\nrun = {:?}\n\n\
             [log]\ndirectory = {:?}\n\n{further}",
            runtime.get_program(),
            self.store(),
            self.run_directory(),
            self.log_directory(),
        );
        fs::write(self.settings(), text).expect("the directory of the host is there");
    }

    /// Stops the registry.
    pub fn stop_registry(&self) {
        drop(self.registry.lock().expect("no holder panics").take());
    }

    pub fn host(&self) -> &'h TestHost {
        self.host
    }

    /// Returns the installed program.
    pub fn program(&self) -> PathBuf {
        self.host.path().join("bin/garm-provider-runc")
    }

    /// Returns the provider's settings file, which GARM passes to it.
    pub fn settings(&self) -> PathBuf {
        match self.user {
            Some(user) => user.home.join("garm-provider-runc.toml"),
            None => self.host.path().join("garm-provider-runc.toml"),
        }
    }

    pub fn log_directory(&self) -> PathBuf {
        match self.user {
            Some(user) => user.home.join(".local/state/oci-hooks/garm"),
            None => self.host.path().join("log"),
        }
    }

    /// Runs a command as the administrator.
    pub fn admin(&self, words: &[&str]) -> FinishedCommand {
        self.admin_by(Command::new(self.program()), words)
    }

    /// Runs a command as the administrator, with a limit of open files.
    pub fn limited_admin(&self, descriptors: u32, words: &[&str]) -> FinishedCommand {
        self.admin_by(program::limited(self.program(), descriptors), words)
    }

    fn admin_by(&self, mut command: Command, words: &[&str]) -> FinishedCommand {
        self.host.run(self.prepare_admin_command(&mut command, words))
    }

    /// Starts a command as the administrator.
    pub fn start_admin(&self, words: &[&str]) -> RunningCall {
        let mut command = Command::new(self.program());
        self.prepare_admin_command(&mut command, words);
        RunningCall::start(self.host, command, Vec::new(), None)
    }

    fn prepare_admin_command<'c>(
        &self,
        command: &'c mut Command,
        words: &[&str],
    ) -> &'c mut Command {
        command.arg("--config").arg(self.settings()).args(words);
        if let Some(user) = self.user {
            user.switch_user(command);
        }
        command
    }

    /// Returns the newest log of an instance.
    pub fn log(&self, name: &str) -> RunnerLog {
        self.newest_log(name, |_| true)
    }

    /// Waits until a running instance prints a line that starts with a text, and returns its log.
    #[track_caller]
    pub fn wait_for_log(&self, name: &str, text: &str) -> RunnerLog {
        let deadline = Instant::now() + program::DEADLINE;
        loop {
            let containers = self.containers();
            let is_there = |id: &str| containers.iter().any(|container| container.starts_with(id));
            let log = self.newest_log(name, is_there);
            let begins = |line: &str| Some(line.split_once(" stdout ")?.1.starts_with(text));
            if log.text.lines().filter_map(begins).any(|begins| begins) {
                return log;
            }
            assert!(Instant::now() < deadline, "the log has no {text:?}:\n{}", log.text);
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// Returns the user id and group id of the user who runs GARM, or nothing for root.
    pub fn user(&self) -> Option<(u32, u32)> {
        self.user.map(|user| (user.id, user.id))
    }

    /// Returns the ids of the containers with a record.
    fn containers(&self) -> Vec<String> {
        if self.user.is_none() {
            return containers(self);
        }
        let instances = fs::read_dir(self.run_directory().join("instances"));
        let instances = instances.into_iter().flatten().flatten();
        instances.flat_map(|one| containers_below(&one.path().join("run"))).collect()
    }

    /// Returns the newest log of an instance whose container id matches. File names contain both.
    fn newest_log(&self, name: &str, is_wanted: impl Fn(&str) -> bool) -> RunnerLog {
        let entries = fs::read_dir(self.log_directory()).into_iter().flatten().flatten();
        let logs = entries.filter_map(|entry| {
            let path = entry.path();
            let file = path.file_name()?.to_str()?;
            let id = file.strip_prefix(name)?.strip_prefix('.')?.strip_suffix(".log")?;
            let is_wanted = !id.contains('.') && is_wanted(id);
            is_wanted.then_some((entry.metadata().ok()?.modified().ok()?, path))
        });
        let Some((_, newest)) = logs.max() else { return RunnerLog::new(String::new()) };
        let read = |path: &Path| fs::read(path).unwrap_or_default();
        let text = [read(&newest.with_extension("1")), read(&newest)].concat();
        RunnerLog::new(String::from_utf8_lossy(&text).into_owned())
    }

    /// Returns the cgroup names of the host's processes, except the cgroups of supervisors and of the test itself.
    pub fn cgroups(&self) -> Vec<String> {
        cgroups_of(self.host).into_iter().filter(|name| name != "supervisors").collect()
    }
}

impl InstalledProgram for ProviderInstallation<'_> {
    fn host(&self) -> &TestHost {
        self.host
    }

    fn run_directory(&self) -> PathBuf {
        let home = self.user.map_or_else(|| self.host.path(), |user| &user.home);
        home.join("run")
    }

    fn store(&self) -> PathBuf {
        self.user.map_or_else(|| self.host.path().join("lib"), WorldUser::data)
    }
}
