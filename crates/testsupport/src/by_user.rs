//! `container-hook`, installed and called by an ordinary user, or by root on the same host.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::call::RunningCall;
use super::externals;
use super::github_runner::{GithubRunner, InstalledHook};
use super::host::TestHost;
use super::leftovers::InstalledProgram;
use super::program::{self, FinishedCommand};
use super::runtime::TestRuntime;
use super::world::{UserWorld, WorldUser};

/// The program with the settings of one user of a world.
pub struct UserInstallation<'w> {
    pub world: &'w UserWorld,
    /// User who runs the program, or none for root.
    pub user: Option<&'w WorldUser>,
    pub runtime: PathBuf,
    /// Parent directory of the runners and of the hook script.
    home: PathBuf,
    /// Environment variables that the administrator gives to the runners.
    variables: Vec<(String, String)>,
}

impl<'w> UserInstallation<'w> {
    /// Installs the hook as a user, or as root, with additional settings.
    pub fn new(
        world: &'w UserWorld,
        user: Option<&'w WorldUser>,
        runtime: TestRuntime,
        further: &str,
    ) -> Self {
        // Users run the runtime without the wrapper that root's tests use.
        let runtime = match user {
            Some(_) => program::find(&runtime.to_string()),
            None => runtime.command().get_program().into(),
        };
        let home = user.map_or_else(|| world.host().path().join("root"), |user| user.home.clone());
        let mut variables = user.map(WorldUser::variables).unwrap_or_default();
        // Runners set their own values.
        variables.retain(|(name, _)| name != "PATH" && name != "LANG");
        if user.is_none() {
            // A settings file in `/etc` would also apply to the users.
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

    /// Copies the program to a directory that all users of the world can read.
    fn place_program(&self) {
        let program = self.program();
        if !program.exists() {
            let directory = program.parent().expect("it is in a directory").display();
            self.world.host().shell(&format!("install -d -m 755 {directory}"));
            program::copy_program(&program::built_program("container-hook"), &program);
        }
    }

    /// Returns the `externals` directory of the runners, with node.
    fn externals(&self) -> PathBuf {
        self.world.host().path().join("externals")
    }

    /// Bind-mounts the shared externals where all users of the world can read them.
    fn place_externals(&self) {
        let place = self.externals();
        if !place.exists() {
            let shared = externals::shared();
            let (shared, place) = (shared.display(), place.display());
            self.world.host().shell(&format!("mkdir {place}; mount --bind {shared} {place}"));
        }
    }

    /// Writes the settings file of the user.
    pub fn write_settings(&self, text: &str) {
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

    /// Returns the user id and group id of the user.
    pub fn ids(&self) -> (u32, u32) {
        self.user.map_or((0, 0), |user| (user.id, user.id))
    }

    /// Returns whether an ordinary user runs the program.
    pub fn is_rootless(&self) -> bool {
        self.user.is_some()
    }

    /// Returns whether the user has subordinate ids (always true for root).
    pub fn has_ids(&self) -> bool {
        self.user.is_none_or(|user| user.first.is_some())
    }

    /// Returns the installed program.
    pub fn program(&self) -> PathBuf {
        self.world.host().path().join("bin/container-hook")
    }

    /// Runs the program as its user does in a terminal.
    #[track_caller]
    pub fn admin(&self, words: &[&str]) -> FinishedCommand {
        self.world.host().run(&mut self.admin_command(words))
    }

    /// Starts the program as its user does in a terminal.
    pub fn start_admin(&self, words: &[&str]) -> RunningCall {
        RunningCall::start(self.world.host(), self.admin_command(words), Vec::new(), None)
    }

    /// Runs a shell script of the user in a terminal.
    pub fn in_terminal(&self, script: &str) -> FinishedCommand {
        let mut command = Command::new(program::find("script"));
        command.args(["-qec", script, "/dev/null"]);
        self.world.host().run(self.of_user(&mut command))
    }

    fn admin_command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.program());
        self.of_user(command.args(words));
        command
    }

    fn of_user<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        match self.user {
            Some(user) => user.switch_user(command),
            None => command.envs(self.variables.iter().cloned()),
        };
        command
    }

    /// Returns a runner of the user with node in its externals.
    pub fn runner(&self, name: &str) -> GithubRunner<'_, Self> {
        let mut runner = GithubRunner::new(self, name);
        runner.externals = self.externals();
        if let Some(user) = self.user {
            runner.run_as((user.id, user.id));
        }
        runner
    }

    /// Writes a file of a runner, owned by its user like the missing parent directories.
    pub fn write(&self, path: impl AsRef<Path>, text: &str) {
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

    /// Returns the run directory of the user's rootless jobs.
    pub fn jobs_directory(&self) -> PathBuf {
        self.run_directory().join("jobs")
    }
}

impl InstalledHook for UserInstallation<'_> {
    fn runners(&self) -> &Path {
        &self.home
    }

    fn entry(&self) -> PathBuf {
        self.home.join("hook/container-hook.sh")
    }

    fn variables(&self, _runner: &str) -> Vec<(String, String)> {
        self.variables.clone()
    }

    fn start(&self, command: Command, request: Vec<u8>, response: Option<PathBuf>) -> RunningCall {
        RunningCall::start(self.world.host(), command, request, response)
    }
}

impl InstalledProgram for UserInstallation<'_> {
    fn host(&self) -> &TestHost {
        self.world.host()
    }

    fn run_directory(&self) -> PathBuf {
        self.user.map_or_else(|| self.world.host().path().join("run"), WorldUser::run_directory)
    }

    fn store(&self) -> PathBuf {
        match self.user {
            None => self.world.host().path().join("lib"),
            // Without subordinate ids, layers are stored without owners, in a store of their own.
            Some(user) if user.first.is_none() => user.data().join("single"),
            Some(user) => user.data(),
        }
    }
}
