//! `container-hook doctor --probe`: two jobs like those of `try`. One tries to reach the other and this host,
//! from its container and from a build.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use container_hook::JobRootFs;
use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_engine::container::StepSignals as _;
use oci_hooks_engine_cli::probe::{BUILD, IsolationProbe, PROGRAM, TargetOwner};
use oci_hooks_files::fs::{PathContext as _, make_private};
use oci_hooks_files::spawn;
use oci_hooks_init::trials::{ProbeAttempt, ProbeMessage};
use serde_json::{Value, json};

use super::calls::RunnerCalls;
use super::job_log::JobLog;
use super::play::{TryJobError, become_worker};
use super::request;
use super::runner::SimulatedRunner;
use crate::error::HookCommandError;
use crate::job_backend::JobBackend;
use crate::settings::HookFileSettings;
use crate::signals::PendingSignals;

/// Setting that permits jobs to reach the addresses of this host.
const HOST_ACCESS: &str = "`host-access = true` under [network]";

/// Setting that selects the user namespace of containers.
const HOST_USERS: &str = "`user-namespace` under [security]";

/// Directory of a step's program and task, below the runner's directory.
const TEMPORARY: &str = "_work/_temp";
/// Path of [`TEMPORARY`] in the job container.
const INSIDE: &str = "/__w/_temp";
/// Name of the task's file.
const TASK: &str = "task";

/// Directory of the action that is built.
const ACTION: &str = "_work/_actions/probe";

/// Dockerfile of a build that runs the probe; the built image is not used.
const DOCKERFILE: &str = "FROM scratch\n\
    RUN --mount=type=bind,source=probe,target=/probe --mount=type=bind,source=task,target=/task \
    [\"/probe\", \"/task\"]\n";

/// Timeout for the other job to print what it serves.
const PATIENCE: Duration = Duration::from_secs(30);
/// Interval at which the log of the other job is read.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Runs the jobs, and prints what they reach.
pub fn probe(
    settings: &HookFileSettings,
    context: &mut CliContext,
) -> Result<CliExit, HookCommandError> {
    let own = become_worker()?;
    let mut signals = PendingSignals::new().map_err(TryJobError::Signals)?;
    let runner = SimulatedRunner::new(settings, own, "")?;
    let other = SimulatedRunner::new(settings, own, "-other")?;
    let config = context.config.clone();
    let log = JobLog::new_collecting(context);
    let system = JobRootFs::Host;
    let calls = RunnerCalls { config, signals: &mut signals, signal: None, system, log };
    let mut jobs = ProbeJobs { runner: &runner, other: &other, calls, serving: None };
    let played = jobs.run_jobs(settings);
    let signal = jobs.calls.signal;
    // The directories of the runners are removed even after an error.
    let removed = [&other, &runner].map(|runner| runner.remove());
    let probe = played?;
    removed.into_iter().collect::<Result<(), _>>()?;
    if let Some(signal) = signal {
        return Ok(CliExit::Code(u8::try_from(128 + signal).unwrap_or(1)));
    }
    Ok(probe.report(context)?)
}

/// The two jobs of a probe.
struct ProbeJobs<'a> {
    /// Runner of the job that tries to reach the other job.
    runner: &'a SimulatedRunner,
    /// Runner of the other job, which serves what the first tries to reach.
    other: &'a SimulatedRunner,
    calls: RunnerCalls<'a>,
    /// Call that runs the step of the other job.
    serving: Option<Child>,
}

impl ProbeJobs<'_> {
    /// Runs both jobs to their ends.
    fn run_jobs(&mut self, settings: &HookFileSettings) -> Result<IsolationProbe, TryJobError> {
        let mut probe = IsolationProbe::new(&self.runner.directory.join(TEMPORARY))?;
        let is_root = JobBackend::of(settings).is_ok_and(|backend| backend == JobBackend::Root);
        let has_host_users = is_root && !settings.security.user_namespace.is_private();
        if is_root {
            probe.add_limits(has_host_users.then_some(HOST_USERS));
        }
        let tried = self.try_all(settings, &mut probe);
        for runner in [self.runner, self.other] {
            let cleaned = self.calls.request(runner, "cleanup_job", &json!({}), &Value::Null)?;
            if !cleaned.status.success() {
                probe.problem(format!("cannot clean up a job of the probe: {}", cleaned.reason()));
            }
        }
        if let Some(serving) = &mut self.serving {
            // The cleanup has ended its step.
            let _ = serving.kill();
            let _ = serving.wait();
        }
        tried?;
        if has_host_users {
            let text = "containers have no user namespace on this host: the probe runs as the user nobody, and root in a \
                        container reaches more";
            probe.note(text.to_owned());
        }
        Ok(probe)
    }

    /// Tries to reach the other job and this host, from a container and from a build.
    fn try_all(
        &mut self,
        settings: &HookFileSettings,
        probe: &mut IsolationProbe,
    ) -> Result<(), TryJobError> {
        let serving = self.start_other(probe)?;
        if self.calls.signal.is_some() {
            return Ok(());
        }
        // The first job has created the directories.
        let directories = [&settings.store.root, &settings.store.run].map(PathBuf::as_path);
        let allowed = settings.network.host_access.then_some(HOST_ACCESS);
        probe.serve_on_host(&directories, allowed)?;
        // The same files, by their paths on this host.
        let work = self.other.work().join("repo/repo");
        let path_on_host = |path: &Path| Some(work.join(path.strip_prefix(WORK).ok()?));
        let on_host = serving.iter().filter_map(|attempt| match attempt {
            ProbeAttempt::Read(path) => path_on_host(path).map(ProbeAttempt::Read),
            ProbeAttempt::Socket(path) => path_on_host(path).map(ProbeAttempt::Socket),
            _ => None,
        });
        let on_host: Vec<_> = on_host.collect();
        probe.add(TargetOwner::Other, [serving, on_host].concat(), None);
        probe.try_on_host()?;
        let task = probe.attempt().to_string();
        let Some(state) = self.prepare(self.runner, probe)? else { return Ok(()) };
        self.runner.write(&format!("{TEMPORARY}/{TASK}"), task.as_bytes())?;
        let [program, file] = [PROGRAM, TASK].map(|name| format!("{INSIDE}/{name}"));
        let step = request::step_of(self.runner, &program, &[&file]);
        let called = self.calls.request(self.runner, "run_script_step", &step, &state)?;
        probe.column("container", called.lines.iter().map(String::as_str), called.reason());
        if self.calls.signal.is_some() {
            return Ok(());
        }
        let action = self.runner.directory.join(ACTION);
        make_private(&action)?;
        let source = self.runner.directory.join(TEMPORARY);
        for name in [PROGRAM, TASK] {
            fs::copy(source.join(name), action.join(name)).with_path("copy", &source.join(name))?;
        }
        let dockerfile =
            self.runner.write(&format!("{ACTION}/Dockerfile"), DOCKERFILE.as_bytes())?;
        let step = request::build(&dockerfile);
        let called = self.calls.request(self.runner, "run_container_step", &step, &state)?;
        probe.column(BUILD, called.lines.iter().map(String::as_str), called.reason());
        Ok(probe.finish()?)
    }

    /// Starts the other job, and returns the attempts to reach what it serves.
    fn start_other(
        &mut self,
        probe: &mut IsolationProbe,
    ) -> Result<Vec<ProbeAttempt>, TryJobError> {
        let Some(state) = self.prepare(self.other, probe)? else { return Ok(Vec::new()) };
        let temporary = self.other.directory.join(TEMPORARY);
        let own = self.runner.directory.join(TEMPORARY).join(PROGRAM);
        fs::copy(&own, temporary.join(PROGRAM)).with_path("copy", &own)?;
        let task = probe.serve(TargetOwner::Other, vec!["/tmp".into(), WORK.into()]);
        self.other.write(&format!("{TEMPORARY}/{TASK}"), task.to_string().as_bytes())?;
        let [program, file] = [PROGRAM, TASK].map(|name| format!("{INSIDE}/{name}"));
        let step = request::step_of(self.other, &program, &[&file]);
        let (mut command, request) =
            self.calls.prepare_call(self.other, "run_script_step", &step, &state)?;
        let request = self.other.write("request", request.as_bytes())?;
        let said = self.other.write("log", b"")?;
        let open = |path: &Path, is_log: bool| {
            File::options().read(!is_log).append(is_log).open(path).with_path("open", path)
        };
        command.stdin(open(&request, false)?).stdout(open(&said, true)?).stderr(open(&said, true)?);
        command.process_group(0);
        spawn::die_with_us(&mut command);
        let program = PathBuf::from(command.get_program());
        self.serving = Some(command.spawn().with_path("execute", &program)?);
        self.listen(probe, &said)
    }

    /// Waits for the other job to print what it serves, such as addresses and files. Returns the attempts to reach
    /// them; empty if it never prints them.
    fn listen(
        &mut self,
        probe: &mut IsolationProbe,
        log: &Path,
    ) -> Result<Vec<ProbeAttempt>, TryJobError> {
        let begin = Instant::now();
        while self.calls.signal.is_none() {
            let text = fs::read_to_string(log).with_path("read", log)?;
            let said: Vec<_> = text.lines().filter_map(|line| probe.parse_line(line)).collect();
            if said.last() == Some(&ProbeMessage::End) {
                let serving = said.into_iter().filter_map(|said| match said {
                    ProbeMessage::Serves(attempt) => Some(attempt),
                    _ => None,
                });
                return Ok(serving.collect());
            }
            let has_ended =
                self.serving.as_mut().is_none_or(|step| !matches!(step.try_wait(), Ok(None)));
            if has_ended || begin.elapsed() > PATIENCE {
                let last = text.lines().last().unwrap_or("no output");
                probe.problem(format!("cannot test what a job reaches of another job: {last}"));
                break;
            }
            thread::sleep(POLL_INTERVAL);
            self.calls.signal = self.calls.signals.take().first().copied();
        }
        Ok(Vec::new())
    }

    /// Prepares a job. Returns its state, if it started.
    fn prepare(
        &mut self,
        runner: &SimulatedRunner,
        probe: &mut IsolationProbe,
    ) -> Result<Option<Value>, TryJobError> {
        let (called, state) = self.calls.prepare_job(runner, None, &[])?;
        if self.calls.signal.is_some() {
            return Ok(None);
        }
        if !called.status.success() {
            let reason = called.reason();
            probe.problem(format!("a job did not start (see `container-hook doctor`): {reason}"));
            return Ok(None);
        }
        Ok(Some(state))
    }
}

/// Workspace of a job in its container.
const WORK: &str = "/__w/repo/repo";
