//! The stages of a job: downloads, scripts, uploads, cleanup.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use super::super::super::document::{StepCall, parse_steps};
use super::super::super::log::LogStream;
use super::super::super::{DeclaredType, ExprValue};
use super::super::error::{BuiltinError, CommandError, CommandFailure, JobPartContext as _};
use super::super::host::{BuiltinHost, CancelEffect, CommandLimits, FunctionInputs, JobState};
use super::super::script::{ScriptFile, TraceOptions, find_program, step};
use super::config::{ConcreteConfig, JobScript, secrets};
use super::context::{JobContext, ScriptStatus};

/// Name of the script that runs after the others, even if they failed.
const AFTER_SCRIPT: &str = "after_script";

/// Name of the stage in messages about scripts, unless one of them failed and is named instead.
const SCRIPT_STAGE: &str = "step_script";

/// GitLab's documentation of time limits of scripts.
const LIMITS_PAGE: &str =
    "https://docs.gitlab.com/ci/runners/configure_runners/#set-script-and-after_script-timeouts";

/// Runs `builtin://concrete`: the whole job that the input `config` describes, and the cleanup after it.
pub fn run(inputs: &FunctionInputs, host: &mut dyn BuiltinHost) -> Result<(), BuiltinError> {
    let Some(ExprValue::String(text)) = inputs.get("config") else {
        return Err(BuiltinError::Input { name: "config", expected: DeclaredType::String });
    };
    let config = ConcreteConfig::parse(text)?;
    secrets(&config).iter().for_each(|secret| host.mask(secret));
    let steps = user_steps(&config)?;
    let deadline = deadline_after(config.timeout);
    let mut job = JobContext::new(host, &config);
    job.limits.deadline = deadline;
    let ended = job.run(steps);
    // Cleanup always runs, and expired limits do not apply to it.
    job.limits = CommandLimits { deadline: None, cancellation: CancelEffect::None };
    job.clean_up();
    let removed = job.gitlab_env.remove().map_err(BuiltinError::from);
    if let Err(error) = removed.and_then(|()| job.tear_down_git()) {
        job.print_uncolored(&format!("Cleanup failed: {error}"));
    }
    ended
}

/// Parses the steps of the `run` keyword; returns an empty list for a job with `script`.
fn user_steps(config: &ConcreteConfig) -> Result<Vec<StepCall>, BuiltinError> {
    if config.run_steps.is_empty() {
        return Ok(Vec::new());
    }
    // JSON is YAML.
    let text = serde_json::Value::Array(config.run_steps.clone()).to_string();
    Ok(parse_steps(&text)?)
}

/// Returns the deadline that is `time` from now; `None` means no deadline.
fn deadline_after(time: Option<Duration>) -> Option<Instant> {
    // On overflow, there is no limit.
    Instant::now().checked_add(time?)
}

impl JobContext<'_> {
    fn run(&mut self, steps: Vec<StepCall>) -> Result<(), BuiltinError> {
        self.set_up().with_part("setting up GITLAB_ENV")?;
        self.set_up_git().with_part("setting up job git config")?;
        self.prepare()?;
        if self.host.state() == JobState::Cancelled {
            // No script has run, so there is nothing to do after it.
            return Err(BuiltinError::Cancelled);
        }
        let job_limits = self.limits;
        let scripts = self.scripts(steps, job_limits);
        self.limits = CommandLimits { cancellation: CancelEffect::None, ..job_limits };
        let stored = self.store();
        scripts.and(stored).map_err(|error| BuiltinError::Job(Box::new(error)))
    }

    /// Fetches sources, caches and artifacts. Fails only if the sources cannot be fetched.
    fn prepare(&mut self) -> Result<(), BuiltinError> {
        self.section("get_sources", JobContext::get_sources).with_part("fetching sources")?;
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
                        job.print_uncolored(&format!(
                            "Failed to download artifact {name:?}: {error}"
                        ));
                    }
                }
            });
        }
        Ok(())
    }

    /// Runs the scripts, or the steps of the `run` keyword, and then `after_script`, even after a
    /// failure.
    fn scripts(
        &mut self,
        steps: Vec<StepCall>,
        job_limits: CommandLimits,
    ) -> Result<(), BuiltinError> {
        let config = self.config;
        let is_after = |script: &JobScript| script.name == AFTER_SCRIPT;
        let first_after = config.steps.iter().position(is_after).unwrap_or(config.steps.len());
        let (before, after_scripts) = config.steps.split_at(first_after);

        let script_deadline = deadline_after(config.script_timeout);
        self.limit(job_limits, script_deadline, CancelEffect::Stops);
        let ended = match steps.is_empty() {
            true => self.run_scripts(before),
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
            let deadline = deadline_after(config.after_script_timeout);
            self.limit(job_limits, deadline, CancelEffect::None);
            let scripts = self.section(AFTER_SCRIPT, |job| job.run_after_scripts(after_scripts));
            self.warn_of_limit(job_limits, deadline, AFTER_SCRIPT);
            ended = ended.and(scripts);
        }
        self.set_status(status_of(&ended));
        ended
    }

    /// Runs the scripts up to the first one that fails. The error names the stage of that script.
    fn run_scripts(&mut self, scripts: &[JobScript]) -> Result<(), (String, BuiltinError)> {
        for script in scripts {
            self.load_variables();
            let stage = format!("step_{}", script.name);
            self.section(&stage, |job| job.run_script(script)).map_err(|error| (stage, error))?;
        }
        Ok(())
    }

    /// Runs `after_script`. Fails with the first error, unless `after_script_ignore_errors` is set.
    /// Stops at the end of the job's maximum run time, which is not an error here.
    fn run_after_scripts(&mut self, scripts: &[JobScript]) -> Result<(), BuiltinError> {
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
                self.print_uncolored(&text);
            } else {
                first = first.and(Err(error));
            }
        }
        first
    }

    /// Archives caches, and then uploads artifacts. Continues after an error, and fails with the
    /// first.
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
                        job.print_uncolored(&format!(
                            "Failed to archive cache {:?}: {error}",
                            cache.key
                        ));
                        first = std::mem::replace(&mut first, Ok(())).and(Err(error));
                    }
                }
            });
        }
        // Artifacts can be uploaded only to a server.
        if !config.artifacts_archive.is_empty() && !config.base_url.is_empty() {
            self.section(artifacts, |job| {
                for artifact in &config.artifacts_archive {
                    if let Err(error) = job.upload(artifact) {
                        let name = &artifact.artifact_name;
                        job.print_uncolored(&format!(
                            "Failed to upload artifact {name:?}: {error}"
                        ));
                        first = std::mem::replace(&mut first, Ok(())).and(Err(error));
                    }
                }
            });
        }
        first
    }

    fn limit(&mut self, job: CommandLimits, own: Option<Instant>, cancellation: CancelEffect) {
        let deadline = job.deadline.into_iter().chain(own).min();
        self.limits = CommandLimits { deadline, cancellation };
    }

    /// Returns the result of the scripts. A cancellation of the job or the script timeout replaces
    /// the result `ended`; the end of the job's maximum run time replaces only a success.
    fn classify(
        &mut self,
        ended: Result<(), BuiltinError>,
        job: CommandLimits,
        deadline: Option<Instant>,
        stage: &str,
    ) -> Result<(), BuiltinError> {
        match self.host.state() {
            JobState::Cancelled => {
                self.print_uncolored("Script canceled externally (UI, API)");
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

    /// Returns whether the deadline `own` of a stage has passed, but not that of the whole job, and
    /// if so, prints a message.
    fn warn_of_limit(&mut self, job: CommandLimits, own: Option<Instant>, stage: &str) -> bool {
        let now = Instant::now();
        let is_over = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        // The time limit of the whole job is reported elsewhere.
        let is_own = is_over(own) && !is_over(job.deadline);
        if is_own {
            self.print_uncolored(&format!(
                "{stage} did not end within its time limit and was stopped. To change the limit, see \
                 {LIMITS_PAGE}"
            ));
        }
        is_own
    }

    /// Runs `work`; if `trace_sections` is set, in a log section, which users can collapse.
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
            self.host.print(LogStream::Out, &format!("section_{edge}:{now}:{name}\r\x1b[0K"));
        }
    }
}

fn status_of(ended: &Result<(), BuiltinError>) -> ScriptStatus {
    match ended.as_ref().map_err(BuiltinError::failure) {
        Ok(()) => ScriptStatus::Success,
        Err(CommandFailure::Deadline) => ScriptStatus::TimedOut,
        Err(CommandFailure::Cancelled) => ScriptStatus::Canceled,
        Err(_) => ScriptStatus::Failed,
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

/// Scripts before and after fetching sources, which run with the environment of git.
const CLONE_SCRIPTS: [&str; 2] = ["pre_clone_script", "post_clone_script"];

impl JobContext<'_> {
    /// Runs a script, unless it has no lines or is for another job status.
    pub(super) fn run_script(&mut self, script: &JobScript) -> Result<(), BuiltinError> {
        let name = &script.name;
        if script.script.is_empty() {
            return Ok(());
        }
        if !self.applies(&format!("step {name}"), script.on_success, script.on_failure) {
            return Ok(());
        }
        if matches!(self.config.shell.as_str(), "pwsh" | "powershell") {
            let error = BuiltinError::Shell(self.config.shell.clone());
            return Err(error).with_part(format!("step {name}"));
        }
        let tracing = TraceOptions {
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
        if CLONE_SCRIPTS.contains(&name.as_str()) {
            env = self.tool_env(&env);
        }
        self.command(&argv, &env).with_part(format!("step {name}"))
    }

    fn shell(&self) -> String {
        let find = |name: &&str| find_program(name, &self.work_dir, self.variable("PATH"));
        let found = ["bash", "sh"].iter().chain(&SHELLS).find_map(find);
        found.map_or("/bin/sh".to_owned(), |path| path.to_string_lossy().into_owned())
    }
}
