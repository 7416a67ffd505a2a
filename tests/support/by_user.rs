//! `container-hook` installed and called by a user who is not root, or by root beside.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::call::Call;
use super::externals;
use super::github_runner::{Hook, Runner};
use super::host::Host;
use super::leftovers::Installed;
use super::program::{self, Finished};
use super::runtime::Runtime;
use super::world::{User, World};

const PROGRAM: &str = env!("CARGO_BIN_EXE_container-hook");

/// The program with the settings of somebody in a world.
pub(crate) struct ByUser<'w> {
    pub(crate) world: &'w World,
    /// Who runs it, if not root.
    pub(crate) user: Option<&'w User>,
    pub(crate) runtime: PathBuf,
    /// Where the runners and the script are.
    home: PathBuf,
    /// Variables that the administrator has in the environments of runners.
    variables: Vec<(String, String)>,
}

impl<'w> ByUser<'w> {
    /// Installs the hook as a user does, or root, with further settings.
    pub(crate) fn new(
        world: &'w World,
        user: Option<&'w User>,
        runtime: Runtime,
        further: &str,
    ) -> Self {
        // That of users has to do without root's help, and root's is the one of all tests.
        let runtime = match user {
            Some(_) => program::find(&runtime.to_string()),
            None => runtime.command().get_program().into(),
        };
        let home = user.map_or_else(|| world.host().path().join("root"), |user| user.home.clone());
        let mut variables = user.map(User::variables).unwrap_or_default();
        // A runner has its own.
        variables.retain(|(name, _)| name != "PATH" && name != "LANG");
        if user.is_none() {
            // Those of the system would be the users' too.
            let settings = home.join("container-hook.toml").display().to_string();
            variables.push(("OCI_HOOKS_CONTAINER_HOOK_CONFIG".to_owned(), settings));
        }
        let installation = Self { world, user, runtime, home, variables };
        let mut text = format!("[runtime]\npath = {:?}\n\n", installation.runtime);
        if user.is_none() {
            let (store, run) = (installation.store(), installation.run_directory());
            text += &format!("[store]\nroot = {store:?}\nrun = {run:?}\n\n");
        }
        installation.write_settings(&(text + further));
        installation.place_program();
        installation.place_externals();
        let directory = installation.entry().with_file_name("");
        let directory = directory.to_str().expect("it is ASCII");
        installation.admin(&["install", directory]).success();
        installation
    }

    /// Copies the program to where all users of the world find it.
    fn place_program(&self) {
        let program = self.program();
        if !program.exists() {
            let directory = program.parent().expect("it is in a directory").display();
            self.world.host().shell(&format!("install -d -m 755 {directory}"));
            program::copy_program(Path::new(PROGRAM), &program);
        }
    }

    /// Returns where runners have node.
    fn externals(&self) -> PathBuf {
        self.world.host().path().join("externals")
    }

    /// Has the shared ones where all users of the world find them.
    fn place_externals(&self) {
        let place = self.externals();
        if !place.exists() {
            let shared = externals::shared();
            let (shared, place) = (shared.display(), place.display());
            self.world.host().shell(&format!("mkdir {place}; mount --bind {shared} {place}"));
        }
    }

    /// Writes the settings of who runs it anew.
    pub(crate) fn write_settings(&self, text: &str) {
        let path = match self.user {
            Some(user) => user.settings(),
            None => self.home.join("container-hook.toml"),
        };
        let (owner, directory) = (self.ids(), path.parent().expect("it is in a directory"));
        let owner = format!("-o {} -g {}", owner.0, owner.1);
        let (path, directory) = (path.display(), directory.display());
        let base = self.home.join(".config");
        let mut make = Command::new("sh");
        make.arg("-ec").arg(format!(
            "install -d {owner} {home} {base} {directory}; install {owner} -m 644 /dev/stdin {path}",
            home = self.home.display(),
            base = base.display(),
        ));
        let host = self.world.host();
        program::run_by(&mut make, text.as_bytes(), |make| host.enter(|| make.spawn())).success();
    }

    /// Returns the number of who runs it and of the group.
    pub(crate) fn ids(&self) -> (u32, u32) {
        self.user.map_or((0, 0), |user| (user.id, user.id))
    }

    /// Returns whether it is not root who runs it.
    pub(crate) fn is_rootless(&self) -> bool {
        self.user.is_some()
    }

    /// Returns whether there are ids for more users than the container's root.
    pub(crate) fn has_ids(&self) -> bool {
        self.user.is_none_or(|user| user.first.is_some())
    }

    /// Returns the installed program.
    pub(crate) fn program(&self) -> PathBuf {
        self.world.host().path().join("bin/container-hook")
    }

    /// Runs the program as its user does at a terminal.
    #[track_caller]
    pub(crate) fn admin(&self, words: &[&str]) -> Finished {
        self.world.host().run(&mut self.admin_command(words))
    }

    /// Starts the program as its user does at a terminal.
    pub(crate) fn start_admin(&self, words: &[&str]) -> Call {
        Call::start(self.world.host(), self.admin_command(words), Vec::new(), None)
    }

    fn admin_command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.program());
        command.args(words);
        match self.user {
            Some(user) => user.become_by(&mut command),
            None => command.envs(self.variables.iter().cloned()),
        };
        command
    }

    /// Returns a runner of the user that has node.
    pub(crate) fn runner(&self, name: &str) -> Runner<'_, Self> {
        let mut runner = Runner::new(self, name);
        runner.externals = self.externals();
        if let Some(user) = self.user {
            runner.run_as((user.id, user.id));
        }
        runner
    }

    /// Writes a file of a runner as its user would, with the directories above it.
    pub(crate) fn write(&self, path: impl AsRef<Path>, text: &str) {
        let path = path.as_ref();
        let missing: Vec<_> =
            path.ancestors().skip(1).take_while(|above| !above.exists()).collect();
        fs::create_dir_all(path.parent().expect("it is in a directory")).expect("root may do this");
        fs::write(path, text).expect("the directory is there");
        let (uid, gid) = self.ids();
        for path in missing.into_iter().chain([path]) {
            chown(path, Some(uid), Some(gid)).expect("root may do this");
        }
    }

    /// Returns where the jobs of the user have what runs.
    pub(crate) fn jobs_directory(&self) -> PathBuf {
        self.run_directory().join("jobs")
    }
}

impl Hook for ByUser<'_> {
    fn runners(&self) -> &Path {
        &self.home
    }

    fn entry(&self) -> PathBuf {
        self.home.join("hook/container-hook.sh")
    }

    fn variables(&self, _runner: &str) -> Vec<(String, String)> {
        self.variables.clone()
    }

    fn start(&self, command: Command, request: Vec<u8>, response: Option<PathBuf>) -> Call {
        Call::start(self.world.host(), command, request, response)
    }
}

impl Installed for ByUser<'_> {
    fn host(&self) -> &Host {
        self.world.host()
    }

    fn run_directory(&self) -> PathBuf {
        self.user.map_or_else(|| self.world.host().path().join("run"), User::run_directory)
    }

    fn store(&self) -> PathBuf {
        match self.user {
            None => self.world.host().path().join("lib"),
            // Its layers have no owners, so that they are not those of others.
            Some(user) if user.first.is_none() => user.data().join("single"),
            Some(user) => user.data(),
        }
    }
}
