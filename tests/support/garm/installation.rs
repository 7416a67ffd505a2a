//! `garm-provider-runc` as an administrator installs it on a host, with settings for tests.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::super::call::Call;
use super::super::host::Host;
use super::super::hub::{Name, Registry};
use super::super::leftovers::{Installed, cgroups_of, containers, containers_below};
use super::super::program::{self, Finished};
use super::super::runtime::Runtime;
use super::super::world::{self, User};
use super::images;
use super::record::Record;

const PROGRAM: &str = env!("CARGO_BIN_EXE_garm-provider-runc");

/// The program with its settings, and a registry that has the images.
pub(crate) struct Installation<'h> {
    host: &'h Host,
    /// Who runs GARM, if not root.
    user: Option<&'h User>,
    pub(crate) runtime: Runtime,
    registry: Mutex<Option<Registry>>,
}

impl<'h> Installation<'h> {
    /// Installs the provider for a runtime, with further settings.
    pub(crate) fn new(host: &'h Host, runtime: Runtime, further: &str) -> Self {
        Self::of(host, None, runtime, further)
    }

    /// Installs the provider for a user who runs GARM, with further settings.
    pub(crate) fn of_user(
        world: &'h world::World,
        user: &'h User,
        runtime: Runtime,
        further: &str,
    ) -> Self {
        Self::of(world.host(), Some(user), runtime, further)
    }

    fn of(host: &'h Host, user: Option<&'h User>, runtime: Runtime, further: &str) -> Self {
        let registry = Registry::serve(host, Name::Hub, None, &images::storage());
        let installation = Self { host, user, runtime, registry: Mutex::new(Some(registry)) };
        installation.configure(further);
        fs::create_dir(host.path().join("bin")).expect("the host has one installation");
        // A copy: the program that cargo made may belong to a user, who then would be root here.
        program::copy_program(Path::new(PROGRAM), &installation.program());
        installation
    }

    /// Returns the same program for another user of the host, with settings of theirs.
    pub(crate) fn for_other(&self, user: &'h User, further: &str) -> Self {
        let registry = Mutex::new(None);
        let other = Self { host: self.host, user: Some(user), runtime: self.runtime, registry };
        other.configure(further);
        other
    }

    /// Writes the settings anew, with further ones; the first can be some of the log's.
    pub(crate) fn configure(&self, further: &str) {
        if let Some(user) = self.user {
            // What else there is, a user has where users have it; `/run` is seen on the host alone.
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

    /// Has the registry not answer any more.
    pub(crate) fn stop_registry(&self) {
        drop(self.registry.lock().expect("no holder panics").take());
    }

    pub(crate) fn host(&self) -> &'h Host {
        self.host
    }

    /// Returns the installed program.
    pub(crate) fn program(&self) -> PathBuf {
        self.host.path().join("bin/garm-provider-runc")
    }

    /// Returns the file that GARM names as the provider's own.
    pub(crate) fn settings(&self) -> PathBuf {
        match self.user {
            Some(user) => user.home.join("garm-provider-runc.toml"),
            None => self.host.path().join("garm-provider-runc.toml"),
        }
    }

    pub(crate) fn log_directory(&self) -> PathBuf {
        match self.user {
            Some(user) => user.home.join(".local/state/oci-hooks/garm"),
            None => self.host.path().join("log"),
        }
    }

    /// Runs a command of the administrator's.
    pub(crate) fn admin(&self, words: &[&str]) -> Finished {
        self.admin_by(Command::new(self.program()), words)
    }

    /// Does the same with few files open at a time.
    pub(crate) fn limited_admin(&self, descriptors: u32, words: &[&str]) -> Finished {
        self.admin_by(program::limited(self.program(), descriptors), words)
    }

    fn admin_by(&self, mut command: Command, words: &[&str]) -> Finished {
        self.host.run(self.for_admin(&mut command, words))
    }

    /// Starts a command of the administrator's.
    pub(crate) fn start_admin(&self, words: &[&str]) -> Call {
        let mut command = Command::new(self.program());
        self.for_admin(&mut command, words);
        Call::start(self.host, command, Vec::new(), None)
    }

    fn for_admin<'c>(&self, command: &'c mut Command, words: &[&str]) -> &'c mut Command {
        command.arg("--config").arg(self.settings()).args(words);
        if let Some(user) = self.user {
            user.become_by(command);
        }
        command
    }

    /// Returns the log of the last instance of a name.
    pub(crate) fn log(&self, name: &str) -> Record {
        self.newest_log(name, |_| true)
    }

    /// Waits until an instance that is there writes a line that begins with a text, and returns its
    /// log.
    #[track_caller]
    pub(crate) fn wait_for_log(&self, name: &str, text: &str) -> Record {
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

    /// Returns the number of the user and group who run GARM, if it is not root.
    pub(crate) fn user(&self) -> Option<(u32, u32)> {
        self.user.map(|user| (user.id, user.id))
    }

    /// Returns the identifiers of the containers that have a record.
    fn containers(&self) -> Vec<String> {
        if self.user.is_none() {
            return containers(self);
        }
        let instances = fs::read_dir(self.run_directory().join("instances"));
        let instances = instances.into_iter().flatten().flatten();
        instances.flat_map(|one| containers_below(&one.path().join("run"))).collect()
    }

    /// Returns the newest log of a name and of a container that a function takes; files are called
    /// after both.
    fn newest_log(&self, name: &str, is_wanted: impl Fn(&str) -> bool) -> Record {
        let entries = fs::read_dir(self.log_directory()).into_iter().flatten().flatten();
        let logs = entries.filter_map(|entry| {
            let path = entry.path();
            let file = path.file_name()?.to_str()?;
            let id = file.strip_prefix(name)?.strip_prefix('.')?.strip_suffix(".log")?;
            let is_wanted = !id.contains('.') && is_wanted(id);
            is_wanted.then_some((entry.metadata().ok()?.modified().ok()?, path))
        });
        let Some((_, newest)) = logs.max() else { return Record::new(String::new()) };
        let read = |path: &Path| fs::read(path).unwrap_or_default();
        let text = [read(&newest.with_extension("1")), read(&newest)].concat();
        Record::new(String::from_utf8_lossy(&text).into_owned())
    }

    /// Returns the names of the cgroups that processes of the host are in, other than the test's own.
    pub(crate) fn cgroups(&self) -> BTreeSet<String> {
        cgroups_of(self.host)
    }
}

impl Installed for Installation<'_> {
    fn host(&self) -> &Host {
        self.host
    }

    fn run_directory(&self) -> PathBuf {
        let home = self.user.map_or_else(|| self.host.path(), |user| &user.home);
        home.join("run")
    }

    fn store(&self) -> PathBuf {
        self.user.map_or_else(|| self.host.path().join("lib"), User::data)
    }
}
