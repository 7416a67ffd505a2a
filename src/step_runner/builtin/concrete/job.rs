//! The stages of a job: what is fetched, scripts, what is stored, clean-up.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use super::super::super::document::{Step, parse_steps};
use super::super::super::log::Stream;
use super::super::super::{Type, Value};
use super::super::error::{BuiltinError, CommandError, Failure, Within as _};
use super::super::host::{Cancellation, Host, Inputs, JobState, Limits};
use super::super::script::{ScriptFile, Tracing, find_program, step};
use super::config::{Config, Script, secrets};
use super::context::{JobContext, Status};

/// Name of the script that runs after the others, whatever became of them.
const AFTER_SCRIPT: &str = "after_script";

/// Name of the stage of scripts.
const SCRIPT_STAGE: &str = "step_script";

/// Where GitLab documents time limits of scripts.
const LIMITS_PAGE: &str =
    "https://docs.gitlab.com/ci/runners/configure_runners/#set-script-and-after_script-timeouts";

/// Runs the function.
pub fn run(inputs: &Inputs, host: &mut dyn Host) -> Result<(), BuiltinError> {
    let Some(Value::String(text)) = inputs.get("config") else {
        return Err(BuiltinError::Input { name: "config", expected: Type::String });
    };
    let config = Config::parse(text)?;
    secrets(&config).iter().for_each(|secret| host.mask(secret));
    let steps = user_steps(&config)?;
    let deadline = after(config.timeout);
    let mut job = JobContext::new(host, &config);
    job.limits.deadline = deadline;
    let ended = job.run(steps);
    // It runs whatever happened, and is not limited by what is over.
    job.limits = Limits { deadline: None, cancellation: Cancellation::Spares };
    job.clean_up();
    let removed = job.gitlab_env.remove().map_err(BuiltinError::from);
    if let Err(error) = removed.and_then(|()| job.tear_down_git()) {
        job.caution(&format!("Cleanup failed: {error}"));
    }
    ended
}

/// Returns the steps of the `run` keyword.
fn user_steps(config: &Config) -> Result<Vec<Step>, BuiltinError> {
    if config.run_steps.is_empty() {
        return Ok(Vec::new());
    }
    // JSON is YAML.
    let text = serde_json::Value::Array(config.run_steps.clone()).to_string();
    Ok(parse_steps(&text)?)
}

/// Returns when a time from now is over.
fn after(time: Option<Duration>) -> Option<Instant> {
    // One that is not over in the life of the universe is no limit.
    Instant::now().checked_add(time?)
}

impl JobContext<'_> {
    fn run(&mut self, steps: Vec<Step>) -> Result<(), BuiltinError> {
        self.set_up().within("setting up GITLAB_ENV")?;
        self.set_up_git().within("setting up job git config")?;
        self.prepare()?;
        if self.host.state() == JobState::Cancelled {
            // Before there was a script, so there is nothing to do after it.
            return Err(BuiltinError::Cancelled);
        }
        let job_limits = self.limits;
        let scripts = self.scripts(steps, job_limits);
        self.limits = Limits { cancellation: Cancellation::Spares, ..job_limits };
        let stored = self.store();
        scripts.and(stored).map_err(|error| BuiltinError::Job(Box::new(error)))
    }

    /// Gets what the scripts need. Only the sources must be there.
    fn prepare(&mut self) -> Result<(), BuiltinError> {
        self.section("get_sources", JobContext::get_sources).within("fetching sources")?;
        let config = self.config;
        if config.cache_extract.iter().any(|cache| !cache.sources.is_empty()) {
            self.load_variables();
            self.section("restore_cache", |job| {
                let caches = config.cache_extract.iter().filter(|cache| !cache.sources.is_empty());
                caches.for_each(|cache| job.restore(cache));
            });
        }
        if !config.artifact_extract.is_empty() {
            self.load_variables();
            self.section("download_artifacts", |job| {
                for artifact in &config.artifact_extract {
                    if let Err(error) = job.download(artifact) {
                        let name = &artifact.artifact_name;
                        job.caution(&format!("Failed to download artifact {name:?}: {error}"));
                    }
                }
            });
        }
        Ok(())
    }

    /// Runs the scripts, and `after_script`, which runs in any case.
    fn scripts(&mut self, steps: Vec<Step>, job_limits: Limits) -> Result<(), BuiltinError> {
        let config = self.config;
        let is_after = |script: &Script| script.name == AFTER_SCRIPT;
        let first_after = config.steps.iter().position(is_after).unwrap_or(config.steps.len());
        let (before, after_scripts) = config.steps.split_at(first_after);

        let script_deadline = after(config.script_timeout);
        self.limit(job_limits, script_deadline, Cancellation::Ends);
        let ended = match steps.is_empty() {
            true => self.before(before),
            false => {
                self.load_variables();
                let env = self.environment(&BTreeMap::new());
                let limits = self.limits;
                let ended = self.host.steps(steps, &env, &limits);
                ended.map_err(|error| (SCRIPT_STAGE.to_owned(), error.into()))
            }
        };
        let stage =
            ended.as_ref().err().map_or(SCRIPT_STAGE.to_owned(), |(stage, _)| stage.clone());
        let ended = ended.map_err(|(_, error)| error);
        let mut ended = self.classify(ended, job_limits, script_deadline, &stage);
        self.set_status(status_of(&ended));
        if !after_scripts.is_empty() {
            let deadline = after(config.after_script_timeout);
            self.limit(job_limits, deadline, Cancellation::Spares);
            let scripts = self.section(AFTER_SCRIPT, |job| job.after_scripts(after_scripts));
            self.warn_of_limit(job_limits, deadline, AFTER_SCRIPT);
            ended = ended.and(scripts);
        }
        self.set_status(status_of(&ended));
        ended
    }

    /// Runs the scripts up to the first one that fails. Returns its stage and its error.
    fn before(&mut self, scripts: &[Script]) -> Result<(), (String, BuiltinError)> {
        for script in scripts {
            self.load_variables();
            let stage = format!("step_{}", script.name);
            self.section(&stage, |job| job.run_script(script)).map_err(|error| (stage, error))?;
        }
        Ok(())
    }

    /// Runs what comes after the scripts. Fails with the first error, unless errors do not matter.
    fn after_scripts(&mut self, scripts: &[Script]) -> Result<(), BuiltinError> {
        let mut first = Ok(());
        for script in scripts {
            self.load_variables();
            let Err(error) = self.run_script(script) else { continue };
            if self.host.state() == JobState::TimedOut {
                break;
            }
            if self.config.after_script_ignore_errors {
                let text =
                    format!("after_script failed, but job will continue unaffected: {error}");
                self.caution(&text);
            } else {
                first = first.and(Err(error));
            }
        }
        first
    }

    /// Stores caches and artifacts. Fails with the first error, of caches if there is one.
    fn store(&mut self) -> Result<(), BuiltinError> {
        self.load_variables();
        let config = self.config;
        let (caches, artifacts) = match self.is_successful() {
            true => ("archive_cache", "upload_artifacts_on_success"),
            false => ("archive_cache_on_failure", "upload_artifacts_on_failure"),
        };
        let mut first = Ok(());
        if !config.cache_archive.is_empty() {
            self.section(caches, |job| {
                for cache in &config.cache_archive {
                    if let Err(error) = job.archive(cache) {
                        job.caution(&format!("Failed to archive cache {:?}: {error}", cache.key));
                        first = std::mem::replace(&mut first, Ok(())).and(Err(error));
                    }
                }
            });
        }
        // Without a server there is nobody to store them.
        if !config.artifacts_archive.is_empty() && !config.base_url.is_empty() {
            self.section(artifacts, |job| {
                for artifact in &config.artifacts_archive {
                    if let Err(error) = job.upload(artifact) {
                        let name = &artifact.artifact_name;
                        job.caution(&format!("Failed to upload artifact {name:?}: {error}"));
                        first = std::mem::replace(&mut first, Ok(())).and(Err(error));
                    }
                }
            });
        }
        first
    }

    fn limit(&mut self, job: Limits, own: Option<Instant>, cancellation: Cancellation) {
        let deadline = job.deadline.into_iter().chain(own).min();
        self.limits = Limits { deadline, cancellation };
    }

    /// Returns what a script ended by: a cancellation or its time limit have precedence over its own error.
    fn classify(
        &mut self,
        ended: Result<(), BuiltinError>,
        job: Limits,
        deadline: Option<Instant>,
        stage: &str,
    ) -> Result<(), BuiltinError> {
        match self.host.state() {
            JobState::Cancelled => {
                self.caution("Script canceled externally (UI, API)");
                return Err(BuiltinError::Cancelled);
            }
            JobState::Killed => return Err(BuiltinError::Cancelled),
            JobState::TimedOut => return ended.and(Err(CommandError::deadline().into())),
            JobState::Running => {}
        }
        if self.warn_of_limit(job, deadline, stage) {
            return Err(BuiltinError::ScriptTimeout);
        }
        ended
    }

    /// Reports a stage whose own time limit is over. Returns whether it is.
    fn warn_of_limit(&mut self, job: Limits, own: Option<Instant>, stage: &str) -> bool {
        let now = Instant::now();
        let is_over = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        // That of the whole job is reported by who set it.
        let is_own = is_over(own) && !is_over(job.deadline);
        if is_own {
            self.caution(&format!(
                "{stage} did not end within its time limit and was stopped. To change the limit, see \
                 {LIMITS_PAGE}"
            ));
        }
        is_own
    }

    /// Does the work of a section that can be folded in the log.
    fn section<T>(&mut self, name: &str, work: impl FnOnce(&mut Self) -> T) -> T {
        self.mark("start", name);
        let done = work(self);
        self.mark("end", name);
        done
    }

    fn mark(&mut self, edge: &str, name: &str) {
        if self.config.trace_sections {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let now = now.unwrap_or_default().as_secs();
            self.host.print(Stream::Out, &format!("section_{edge}:{now}:{name}\r\x1b[0K"));
        }
    }
}

fn status_of(ended: &Result<(), BuiltinError>) -> Status {
    match ended.as_ref().map_err(BuiltinError::failure) {
        Ok(()) => Status::Success,
        Err(Failure::Deadline) => Status::TimedOut,
        Err(Failure::Cancelled) => Status::Canceled,
        Err(_) => Status::Failed,
    }
}

/// Shells, besides bash and sh in PATH; the first that exists is used.
const SHELLS: [&str; 7] = [
    "/usr/local/bin/bash",
    "/usr/bin/bash",
    "/bin/bash",
    "/usr/local/bin/sh",
    "/usr/bin/sh",
    "/bin/sh",
    "/busybox/sh",
];

/// Scripts around `git`, for which the one beside this program is meant too.
const AROUND_GIT: [&str; 2] = ["pre_clone_script", "post_clone_script"];

impl JobContext<'_> {
    /// Runs a script, unless it has no lines or is for another status of the job.
    pub(super) fn run_script(&mut self, script: &Script) -> Result<(), BuiltinError> {
        let name = &script.name;
        if script.script.is_empty() {
            return Ok(());
        }
        if !self.applies(script.on_success, script.on_failure) {
            self.notice(&format!("Skipping step {name}: not for this status of the job"));
            return Ok(());
        }
        if matches!(self.config.shell.as_str(), "pwsh" | "powershell") {
            return Err(
                BuiltinError::Shell(self.config.shell.clone()).within(format!("step {name}"))
            );
        }
        let tracing = Tracing {
            xtrace: script.debug,
            check: script.bash_exit_code_check,
            sections: script.script_sections,
        };
        let shell = self.shell();
        let text = step(&shell, name, &script.script, tracing, script.use_legacy_bash_eval);
        let file = ScriptFile::new(self.host.scratch(), &text)?;
        let path = file.path().to_string_lossy().into_owned();
        let argv = match self.config.login_shell {
            true => vec![self.config.shell.clone(), "-l".to_owned(), path],
            false => vec![shell, path],
        };
        let mut env = BTreeMap::new();
        if AROUND_GIT.contains(&name.as_str()) {
            env = self.tool_env(&env);
        }
        self.command(&argv, &env).within(format!("step {name}"))
    }

    fn shell(&self) -> String {
        let find = |name: &&str| find_program(name, &self.work_dir, self.variable("PATH"));
        let found = ["bash", "sh"].iter().chain(&SHELLS).find_map(find);
        found.map_or("/bin/sh".to_owned(), |path| path.to_string_lossy().into_owned())
    }
}
