//! `container-hook doctor --probe`: two jobs as `try` plays them. One tries to reach the other, and this host, in its
//! container and in a build.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use oci_hooks::container::StepSignals as _;
use oci_hooks::container_hook::engine::JobSystem;
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::probe::{PROGRAM, Probe, Whose};
use oci_hooks::sys::fs::{PathContext as _, make_private};
use oci_hooks::sys::init::trials::{Attempt, Said};
use oci_hooks::sys::spawn;
use serde_json::{Value, json};

use super::call::WhenToldToEnd;
use super::calls::{self, Calls};
use super::job_log::JobLog;
use super::play::{TryError, become_worker};
use super::request;
use super::runner::Runner;
use crate::error::Error;
use crate::job_backend::JobBackend;
use crate::settings::Settings;
use crate::signals::Pending;

/// The setting that lets jobs reach the addresses of this host.
const HOST_ACCESS: &str = "`host-access = true` under [network]";

/// Where a step has its program and its task, below the runner's directory and in its container.
const TEMPORARY: &str = "_work/_temp";
const INSIDE: &str = "/__w/_temp";
const TASK: &str = "task";

/// Where the files of the action are that is built.
const ACTION: &str = "_work/_actions/probe";

/// Builds nothing. With mounts, and a program that fails, it leaves nothing in the cache of builds.
const DOCKERFILE: &str = "FROM scratch\n\
    RUN --mount=type=bind,source=probe,target=/probe --mount=type=bind,source=task,target=/task \
    [\"/probe\", \"/task\"]\n";

/// How long the other job may take to say how it is reached, and how often that is looked for.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Plays the jobs, and prints what they reach.
pub fn probe(settings: &Settings, context: &mut Context) -> Result<Exit, Error> {
    let own = become_worker()?;
    let mut signals = Pending::new().map_err(TryError::Signals)?;
    let runner = Runner::new(settings, own, "").map_err(TryError::from)?;
    let other = Runner::new(settings, own, "-other").map_err(TryError::from)?;
    let config = context.config.clone();
    let calls = Calls { config, signals: &mut signals, system: JobSystem::Host };
    let log = JobLog::kept(context);
    let mut jobs = Jobs { runner: &runner, other: &other, calls, log, signal: None, serving: None };
    let played = jobs.play(settings);
    let signal = jobs.signal;
    // Whatever went wrong, nothing of the jobs stays.
    let removed = [&other, &runner].map(|runner| runner.remove(settings));
    let probe = played?;
    removed.into_iter().collect::<Result<(), _>>().map_err(TryError::from)?;
    if let Some(signal) = signal {
        return Ok(Exit::Code(u8::try_from(128 + signal).unwrap_or(1)));
    }
    Ok(probe.report(context)?)
}

/// The jobs of a probe.
struct Jobs<'a> {
    runner: &'a Runner,
    /// The runner of the job that is not to be reached.
    other: &'a Runner,
    calls: Calls<'a>,
    log: JobLog<'a>,
    /// What told this program to end.
    signal: Option<i32>,
    /// The step of the other job.
    serving: Option<Child>,
}

/// How a call ended.
struct Called {
    is_done: bool,
    lines: Vec<String>,
}

impl Called {
    /// Returns why there is nothing of a probe in the log.
    fn reason(&self) -> &str {
        let errors = self.lines.iter().rev().filter_map(|line| line.strip_prefix("Error: "));
        errors.chain(self.lines.last().map(String::as_str)).next().unwrap_or("it wrote nothing")
    }

    fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }
}

impl Jobs<'_> {
    /// Plays both jobs to their ends.
    fn play(&mut self, settings: &Settings) -> Result<Probe, TryError> {
        let mut probe = Probe::new(&self.runner.directory.join(TEMPORARY))?;
        let tried = self.try_all(settings, &mut probe);
        for runner in [self.runner, self.other] {
            let nothing = (&json!({}), &Value::Null);
            let cleaned = self.request(runner, "cleanup_job", nothing, WhenToldToEnd::GoOn)?;
            if !cleaned.is_done {
                probe.problem(format!("a job was not cleaned up: {}", cleaned.reason()));
            }
        }
        if let Some(serving) = &mut self.serving {
            // Its job is gone.
            let _ = serving.kill();
            let _ = serving.wait();
        }
        tried?;
        let is_root = JobBackend::of(settings).is_ok_and(|backend| backend == JobBackend::Root);
        if is_root && !settings.security.user_namespace.is_private() {
            let text = "containers have no user namespace on this host: the user of the probe's is nobody, and root \
                        of others reaches more";
            probe.note(text.to_owned());
        }
        Ok(probe)
    }

    fn try_all(&mut self, settings: &Settings, probe: &mut Probe) -> Result<(), TryError> {
        let serving = self.start_other(probe)?;
        if self.signal.is_some() {
            return Ok(());
        }
        // Its directories are there by now.
        let directories = [&settings.store.root, &settings.store.run].map(PathBuf::as_path);
        let allowed = settings.network.host_access.then_some(HOST_ACCESS);
        probe.serve_on_host(&directories, allowed)?;
        // The same directory, as it is seen from this host.
        let work = self.other.work().join("repo/repo");
        let on_host = serving.iter().filter_map(|attempt| match attempt {
            Attempt::Read(path) => Some(Attempt::Read(work.join(path.strip_prefix(WORK).ok()?))),
            Attempt::Socket(path) => {
                Some(Attempt::Socket(work.join(path.strip_prefix(WORK).ok()?)))
            }
            _ => None,
        });
        let on_host: Vec<_> = on_host.collect();
        probe.add(Whose::Other, [serving, on_host].concat(), None);
        probe.try_on_host()?;
        let task = probe.attempt().to_string();
        let Some(state) = self.prepare(self.runner, probe)? else { return Ok(()) };
        self.runner.write(&format!("{TEMPORARY}/{TASK}"), task.as_bytes())?;
        let [program, file] = [PROGRAM, TASK].map(|name| format!("{INSIDE}/{name}"));
        let step = request::step_of(self.runner, &program, &[&file]);
        let called =
            self.request(self.runner, "run_script_step", (&step, &state), WhenToldToEnd::Cancel)?;
        probe.column("container", called.lines(), called.reason());
        if self.signal.is_some() {
            return Ok(());
        }
        let action = self.runner.directory.join(ACTION);
        make_private(&action)?;
        let source = self.runner.directory.join(TEMPORARY);
        for name in [PROGRAM, TASK] {
            fs::copy(source.join(name), action.join(name)).at("copy", &source.join(name))?;
        }
        let dockerfile =
            self.runner.write(&format!("{ACTION}/Dockerfile"), DOCKERFILE.as_bytes())?;
        let step = request::build(&dockerfile);
        let called = self.request(
            self.runner,
            "run_container_step",
            (&step, &state),
            WhenToldToEnd::Cancel,
        )?;
        probe.column("build", called.lines(), called.reason());
        Ok(probe.finish()?)
    }

    /// Starts the job that is not to be reached, and returns by what it would be.
    fn start_other(&mut self, probe: &mut Probe) -> Result<Vec<Attempt>, TryError> {
        let Some(state) = self.prepare(self.other, probe)? else { return Ok(Vec::new()) };
        let temporary = self.other.directory.join(TEMPORARY);
        let own = self.runner.directory.join(TEMPORARY).join(PROGRAM);
        fs::copy(&own, temporary.join(PROGRAM)).at("copy", &own)?;
        let task = probe.serve(Whose::Other, vec!["/tmp".into(), WORK.into()]);
        self.other.write(&format!("{TEMPORARY}/{TASK}"), task.to_string().as_bytes())?;
        let [program, file] = [PROGRAM, TASK].map(|name| format!("{INSIDE}/{name}"));
        let step = request::step_of(self.other, &program, &[&file]);
        let (mut command, request) =
            self.calls.prepared(self.other, "run_script_step", &step, &state)?;
        let request = self.other.write("request", request.as_bytes())?;
        let said = self.other.write("log", b"")?;
        let open = |path: &Path, is_log: bool| {
            File::options().read(!is_log).append(is_log).open(path).at("open", path)
        };
        command.stdin(open(&request, false)?).stdout(open(&said, true)?).stderr(open(&said, true)?);
        command.process_group(0);
        spawn::die_with_us(&mut command);
        let program = PathBuf::from(command.get_program());
        self.serving = Some(command.spawn().at("execute", &program)?);
        self.listen(probe, &said)
    }

    /// Waits until the other job has said by what it is reached.
    fn listen(&mut self, probe: &mut Probe, log: &Path) -> Result<Vec<Attempt>, TryError> {
        let begin = Instant::now();
        while self.signal.is_none() {
            let text = fs::read_to_string(log).at("read", log)?;
            let said: Vec<_> = text.lines().filter_map(|line| probe.said(line)).collect();
            if said.last() == Some(&Said::End) {
                let serving = said.into_iter().filter_map(|said| match said {
                    Said::Serves(attempt) => Some(attempt),
                    _ => None,
                });
                return Ok(serving.collect());
            }
            let has_ended =
                self.serving.as_mut().is_none_or(|step| !matches!(step.try_wait(), Ok(None)));
            if has_ended || begin.elapsed() > PATIENCE {
                let last = text.lines().last().unwrap_or("it wrote nothing");
                probe.problem(format!("nothing of another job was tried: {last}"));
                break;
            }
            thread::sleep(POLL_INTERVAL);
            self.signal = self.calls.signals.take().first().copied();
        }
        Ok(Vec::new())
    }

    /// Prepares a job. Returns its state, if it came up.
    fn prepare(&mut self, runner: &Runner, probe: &mut Probe) -> Result<Option<Value>, TryError> {
        for name in request::files() {
            runner.write(&name, b"")?;
        }
        let args = request::prepare(runner, None, &[]);
        let called =
            self.request(runner, "prepare_job", (&args, &Value::Null), WhenToldToEnd::Cancel)?;
        if self.signal.is_some() {
            return Ok(None);
        }
        if !called.is_done {
            let reason = called.reason();
            probe.problem(format!("a job did not come up, see `container-hook doctor`: {reason}"));
            return Ok(None);
        }
        Ok(Some(calls::answer(runner)?["state"].take()))
    }

    fn request(
        &mut self,
        runner: &Runner,
        command: &str,
        (args, state): (&Value, &Value),
        when: WhenToldToEnd,
    ) -> Result<Called, TryError> {
        let ended = self.calls.request(runner, command, args, state, when, &mut self.log)?;
        self.signal = self.signal.or(ended.signal);
        Ok(Called { is_done: ended.status.success(), lines: self.log.take() })
    }
}

/// Where a job has its workspace.
const WORK: &str = "/__w/repo/repo";
