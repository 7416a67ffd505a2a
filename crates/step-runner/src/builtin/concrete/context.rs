//! The context of a job of `builtin://concrete`: its environment, its log and its commands.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use oci_hooks_files::error::chain;
use oci_hooks_files::fs::{PathContext as _, PathError, create_private, random_u64};

use super::super::super::log::LogStream;
use super::super::error::{CommandError, ignore_benign};
use super::super::gitlab_env::GitlabEnv;
use super::super::host::{BuiltinHost, CommandLimits, JobState, StepCommand};
use super::config::ConcreteConfig;
use super::go;

/// Status of the job's scripts, for `CI_JOB_STATUS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptStatus {
    Running,
    Success,
    Failed,
    TimedOut,
    Canceled,
}

impl ScriptStatus {
    fn name(self) -> &'static str {
        match self {
            ScriptStatus::Running => "running",
            ScriptStatus::Success => "success",
            ScriptStatus::Failed => "failed",
            ScriptStatus::TimedOut => "timedout",
            ScriptStatus::Canceled => "canceled",
        }
    }
}

/// Maximum size in bytes of captured output of a command.
const MAX_CAPTURED_BYTES: u64 = 64 << 10;

/// Minimum and maximum delay before another attempt to fetch sources, artifacts or a cache.
const PAUSES: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(300)];

/// A job of `builtin://concrete`: its configuration, its variables, and the engine that runs its commands.
pub struct JobContext<'a> {
    pub host: &'a mut dyn BuiltinHost,
    pub config: &'a ConcreteConfig,
    pub work_dir: PathBuf,
    /// Directory for temporary files: the path of the working directory with the suffix `.tmp`.
    pub temp_dir: PathBuf,
    pub env: BTreeMap<String, String>,
    /// `GITLAB_ENV`, and the variables that scripts wrote to the file which it names.
    added: BTreeMap<String, String>,
    pub gitlab_env: GitlabEnv,
    status: ScriptStatus,
    /// Limits of the commands of the current stage.
    pub limits: CommandLimits,
}

impl<'a> JobContext<'a> {
    pub(super) fn new(host: &'a mut dyn BuiltinHost, config: &'a ConcreteConfig) -> Self {
        let work_dir = host.work_dir().to_owned();
        let mut temp_dir = work_dir.clone().into_os_string();
        temp_dir.push(".tmp");
        let temp_dir = PathBuf::from(temp_dir);
        let mut env = host.env().clone();
        env.extend(host.vars().clone());
        let gitlab_env = GitlabEnv::of(&temp_dir);
        let mut context = JobContext {
            host,
            config,
            work_dir,
            temp_dir,
            env,
            added: BTreeMap::new(),
            gitlab_env,
            status: ScriptStatus::Running,
            limits: CommandLimits::default(),
        };
        context.set_status(ScriptStatus::Running);
        context
    }

    pub(super) fn set_status(&mut self, status: ScriptStatus) {
        self.status = status;
        self.env.insert("CI_JOB_STATUS".to_owned(), status.name().to_owned());
    }

    /// Returns `on_success` if the scripts are running or have succeeded, or else `on_failure`. Prints a notice that
    /// `part` is skipped if that is false.
    pub(super) fn applies(&mut self, part: &str, on_success: bool, on_failure: bool) -> bool {
        let applies = if self.is_successful() { on_success } else { on_failure };
        if !applies {
            let status = self.status.name();
            self.notice(&format!("Skipping {part}: not configured for job status {status}"));
        }
        applies
    }

    pub(super) fn is_successful(&self) -> bool {
        matches!(self.status, ScriptStatus::Running | ScriptStatus::Success)
    }

    /// Creates the directory for temporary files, and in it an empty `GITLAB_ENV` file.
    pub(super) fn set_up(&mut self) -> Result<(), PathError> {
        make_directories(&self.temp_dir)?;
        self.gitlab_env.create()?;
        self.added = self.gitlab_env.file_variable();
        Ok(())
    }

    /// Reads the variables that scripts wrote to the file `GITLAB_ENV`. If it cannot be read, a message is
    /// printed, and the previous variables stay.
    pub(super) fn load_variables(&mut self) {
        match self.gitlab_env.variables() {
            Ok(variables) => self.added = variables,
            Err(error) => {
                let reason = chain(&error);
                self.print_uncolored(&format!("Cannot read the file GITLAB_ENV: {reason}"));
            }
        }
    }

    /// Returns the value of a variable in the environment of commands; empty if it is not set.
    pub(super) fn variable(&self, name: &str) -> &str {
        self.added.get(name).or_else(|| self.env.get(name)).map_or("", String::as_str)
    }

    /// Returns the environment of a command: that of the job, with the variables that scripts
    /// added, and then `extra`. Later variables replace earlier ones of the same name.
    pub(super) fn environment(&self, extra: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let mut env = self.env.clone();
        for layer in [&self.added, extra] {
            env.extend(layer.iter().map(|(name, value)| (name.clone(), value.clone())));
        }
        env
    }

    pub(super) fn notice(&mut self, text: &str) {
        self.host.print(LogStream::Err, &format!("\x1b[32;1m{text}\x1b[0;m\n"));
    }

    pub(super) fn warn(&mut self, text: &str) {
        self.host.print(LogStream::Err, &format!("\x1b[0;33m{text}\x1b[0;m\n"));
    }

    /// Prints a message without a colour.
    pub(super) fn print_uncolored(&mut self, text: &str) {
        self.host.print(LogStream::Err, &format!(" {text}\x1b[0m\n"));
    }

    /// Returns whether the job is running and the deadline of its current stage has not passed.
    pub(super) fn is_running(&mut self) -> bool {
        self.host.state() == JobState::Running
            && self.limits.deadline.is_none_or(|deadline| Instant::now() < deadline)
    }

    /// Runs a command in the working directory, with `extra` environment variables.
    pub(super) fn command(
        &mut self,
        argv: &[String],
        extra: &BTreeMap<String, String>,
    ) -> Result<(), CommandError> {
        self.execute(argv, extra, None)
    }

    /// Runs a command, and returns the first 64 KiB of its stdout and stderr, or `None` if it
    /// fails.
    fn capture(&mut self, argv: &[String], extra: &BTreeMap<String, String>) -> Option<String> {
        let mut file = self.create_unnamed_file().ok()?;
        self.execute(argv, extra, Some(&file)).ok()?;
        file.rewind().ok()?;
        let mut output = Vec::new();
        file.take(MAX_CAPTURED_BYTES).read_to_end(&mut output).ok()?;
        Some(String::from_utf8_lossy(&output).into_owned())
    }

    fn execute(
        &mut self,
        argv: &[String],
        extra: &BTreeMap<String, String>,
        output: Option<&File>,
    ) -> Result<(), CommandError> {
        let env = self.environment(extra);
        let command = StepCommand { argv, work_dir: &self.work_dir, env: &env, output };
        ignore_benign(self.host.run(&command, &self.limits))
    }

    /// Creates a temporary file and removes its name, so that other processes cannot open it.
    fn create_unnamed_file(&self) -> Result<File, PathError> {
        let path = self.host.scratch().join(format!("output-{:016x}", random_u64()));
        let file = create_private(&path)?;
        std::fs::remove_file(&path).with_path("remove", &path)?;
        Ok(file)
    }

    /// Waits before another attempt, for a random time of at least 5 s. The maximum grows by half
    /// with each attempt, up to 300 s.
    pub(super) fn pause(&mut self, attempt: i64) {
        let [shortest, longest] = PAUSES;
        let growth = 1.5_f64.powi(i32::try_from(attempt.clamp(2, 30) - 2).unwrap_or_default());
        let top = shortest.mul_f64(growth).min(longest);
        // Jobs that failed together must not retry together.
        let spread = u32::try_from(random_u64() % 1000).unwrap_or_default();
        let time = shortest + (top - shortest) * spread / 1000;
        self.notice(&format!("Retrying in {}", go::duration(time)));
        self.host.pause(time, &self.limits);
    }

    /// Returns the program to run git: `git/bin/git` in the directory of this program if it exists,
    /// or else `git`, which is looked up in PATH.
    fn git_program(&self) -> String {
        self.path_beside("git/bin/git")
            .map_or("git".to_owned(), |path| path.to_string_lossy().into_owned())
    }

    fn path_beside(&self, name: &str) -> Option<PathBuf> {
        let path = self.host.executable()?.parent()?.join(name);
        path.exists().then_some(path)
    }

    pub(super) fn git<S: AsRef<str>>(
        &mut self,
        extra: &BTreeMap<String, String>,
        arguments: &[S],
    ) -> Result<(), CommandError> {
        let argv = self.git_argv(arguments);
        self.command(&argv, &self.tool_env(extra))
    }

    /// Runs git, and returns its stdout and stderr, or `None` if it fails.
    pub(super) fn git_output<S: AsRef<str>>(
        &mut self,
        extra: &BTreeMap<String, String>,
        arguments: &[S],
    ) -> Option<String> {
        let argv = self.git_argv(arguments);
        self.capture(&argv, &self.tool_env(extra))
    }

    fn git_argv<S: AsRef<str>>(&self, arguments: &[S]) -> Vec<String> {
        let arguments = arguments.iter().map(|argument| argument.as_ref().to_owned());
        [self.git_program()].into_iter().chain(arguments).collect()
    }

    /// Returns `extra` with the environment of git and GitLab's helper program: CA certificates and
    /// git from the directory of this program, and directories for temporary files.
    pub(super) fn tool_env(&self, extra: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let mut env = extra.clone();
        let mut default = |name: &str, value: String| {
            env.entry(name.to_owned()).or_insert(value);
        };
        if let Some(certificates) = self.path_beside("ca-certs.pem") {
            let certificates = certificates.to_string_lossy().into_owned();
            // libcurl, which git uses, ignores SSL_CERT_FILE.
            default("SSL_CERT_FILE", certificates.clone());
            default("GIT_SSL_CAINFO", certificates);
        }
        let temp_dir = self.temp_dir.to_string_lossy().into_owned();
        let staging = Some(self.config.archiver_staging_dir.clone());
        default(
            "ARCHIVER_STAGING_DIR",
            staging.filter(|dir| !dir.is_empty()).unwrap_or(temp_dir.clone()),
        );
        default("TMPDIR", temp_dir);
        if let Some(directory) = self.path_beside("git/bin/git").as_deref().and_then(Path::parent) {
            let path = env.get("PATH").map_or_else(|| self.variable("PATH"), String::as_str);
            let path = format!("{}:{path}", directory.display());
            env.insert("PATH".to_owned(), path);
        }
        env
    }
}

/// Creates a directory and its missing parents.
pub fn make_directories(path: &Path) -> Result<(), PathError> {
    std::fs::create_dir_all(path).with_path("create the directory", path)
}

/// Returns a configured number of attempts, limited to 1 to 100.
pub fn attempts(asked: i64) -> i64 {
    /// Upper limit, higher than the number of attempts that GitLab Runner uses.
    const MAX: i64 = 100;
    asked.clamp(1, MAX)
}
