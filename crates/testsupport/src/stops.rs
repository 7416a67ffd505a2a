//! Commands stopped (`SIGSTOP`) at random moments, as by a debugger or a frozen cgroup. Other commands must
//! succeed, or report which process blocks them. Once continued, the stopped command must finish normally and
//! leave nothing behind.
//!
//! Helper programs that run beside a command, such as the pause process of a rootless job, are stopped as
//! well. Jobs cannot do that: a container has its own PID namespace below the pause process's, and sees no
//! process outside of it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use std::{fmt, fs};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::by_user::UserInstallation;
use super::call::{EndedCall, RunningCall};
use super::github_runner::{GithubRunner, InstalledHook, built_step, redis, shell_step};
use super::installation::HookInstallation;
use super::kills::{RandomMoments, SignalTarget, cgroups, variable};
use super::leftovers::{InstalledProgram, LeftoverSnapshot, cgroups_not_removed};
use super::program::FinishedCommand;

/// Environment variable with the number of stops of each command, on each runtime and for each user. Without
/// it, some randomly chosen commands are stopped once.
const COUNT: &str = "OCI_HOOKS_STOPS";

/// Time limit for other commands to succeed or to report the blocking process. They may wait for several
/// locks in turn.
const IN_TIME: Duration = Duration::from_secs(100);

/// A command to stop repeatedly: its name, and the function that prepares and starts it. The number differs
/// each time.
pub type StopCommand<'a, T> = (&'static str, &'a dyn Fn(&mut T, u32) -> RunningCall);

/// Activity of other commands during and after a stop.
pub trait BackgroundActivity {
    /// Runs all other commands while the command of this name is stopped.
    fn run_other_commands(&mut self, stopped: &str);

    /// Finishes the work of the command, and of others that failed. Nothing may be left then.
    fn finish(&mut self);
}

/// Target of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopTarget {
    Call(SignalTarget),
    /// Processes of this name, which run beside the command.
    Helper(&'static str),
}

/// A series of stops on a host.
pub struct StopSeries<'i, I> {
    installation: &'i I,
    helpers: &'static [&'static str],
    moments: RandomMoments,
    stops: u32,
}

/// Returns all items if the environment sets the number of stops, otherwise a random one.
pub fn choose_some<T>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    match variable::<u32>(COUNT) {
        Some(_) => all.into_iter().collect(),
        None => RandomMoments::new().random.choose_multiple(all, 1),
    }
}

impl<'i, I: InstalledProgram> StopSeries<'i, I> {
    /// Begins a series on a host whose commands depend on helper processes of these names.
    #[expect(
        clippy::print_stderr,
        reason = "what chance began with is of use before anything fails"
    )]
    pub fn new(installation: &'i I, helpers: &'static [&'static str]) -> Self {
        let moments = RandomMoments::new();
        eprintln!("{moments}");
        Self { installation, helpers, moments, stops: 0 }
    }

    /// Stops each command while others run: `usual` random commands, once each, unless the environment sets
    /// the number.
    pub fn stop<T: BackgroundActivity>(
        &mut self,
        state: &mut T,
        commands: &[StopCommand<'_, T>],
        usual: usize,
    ) {
        // Creates everything that is created only once.
        state.run_other_commands("");
        let (count, amount) = match variable(COUNT) {
            Some(count) => (count, commands.len()),
            None => (1, usual),
        };
        for command in self.moments.random.choose_multiple(commands, amount) {
            let took = (command.1)(state, self.stops).wait().success().took;
            self.stops += 1;
            state.finish();
            for round in 0..count {
                self.stop_once(state, *command, (took, round, count));
            }
        }
    }

    fn stop_once<T: BackgroundActivity>(
        &mut self,
        state: &mut T,
        (name, start): StopCommand<'_, T>,
        (took, round, count): (Duration, u32, u32),
    ) {
        let before = LeftoverSnapshot::take(self.installation);
        let after = self.moments.next(took, round, count);
        let mut call = start(state, self.stops);
        self.stops += 1;
        call.pass(after);
        let target = self.target();
        let what = format!("{name}, {target:?} after {after:?} of {took:?}; {self}");
        // Before it stops, a helper may execute another program, and then has another name.
        let helpers = match target {
            StopTarget::Helper(name) => self.installation.host().find_processes(name),
            StopTarget::Call(_) => Vec::new(),
        };
        self.signal(&mut call, target, &helpers, Signal::STOP);
        state.run_other_commands(name);
        self.signal(&mut call, target, &helpers, Signal::CONT);
        let known = cgroups(self.installation);
        let ended = call.wait();
        let log = ended.log();
        assert!(!log.contains("panicked at"), "{what}: {log}");
        // A command whose helper was stopped may fail, as if the helper did not work.
        let has_failed = matches!(target, StopTarget::Call(_)) && !ended.status.success();
        assert!(!has_failed, "{what}: {}: {log}", ended.status);
        state.finish();
        let faults = self.faults(&before, &known);
        assert!(faults.is_empty(), "{what}: {log}\n{}", faults.join("\n"));
    }

    /// Chooses the target: mostly the command, and sometimes a running helper.
    fn target(&mut self) -> StopTarget {
        let is_helper = !self.helpers.is_empty() && self.moments.random.u8(..3) == 0;
        match self.moments.random.choice(self.helpers) {
            Some(name)
                if is_helper && !self.installation.host().find_processes(name).is_empty() =>
            {
                StopTarget::Helper(name)
            }
            _ => StopTarget::Call(self.moments.choose_target()),
        }
    }

    fn signal(&self, call: &mut RunningCall, target: StopTarget, helpers: &[u32], signal: Signal) {
        match target {
            StopTarget::Call(whom) => call.signal_to(whom, signal),
            StopTarget::Helper(_) => {
                let name_of_signal = if signal == Signal::STOP { "STOP" } else { "CONT" };
                self.installation.host().signal(helpers, name_of_signal);
            }
        }
    }

    /// Returns the leftovers, except those in the store, which is a cache.
    fn faults(&self, before: &LeftoverSnapshot, known: &BTreeSet<String>) -> Vec<String> {
        let (mut faults, _) = before.faults(self.installation);
        let store = self.installation.store().display().to_string();
        faults.retain(|fault| !fault.contains(&store));
        faults.extend(cgroups_not_removed(known.difference(&cgroups(self.installation))));
        faults
    }
}

impl<I> fmt::Display for StopSeries<'_, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stop {}; {}", self.stops, self.moments)
    }
}

/// A hook with an administrator's commands.
pub trait AdminCommands: InstalledHook + InstalledProgram {
    /// Runs an administrator's command.
    fn admin(&self, words: &[&str]) -> FinishedCommand;

    /// Starts an administrator's command.
    fn start_admin(&self, words: &[&str]) -> RunningCall;
}

impl AdminCommands for HookInstallation<'_> {
    fn admin(&self, words: &[&str]) -> FinishedCommand {
        HookInstallation::admin(self, words)
    }

    fn start_admin(&self, words: &[&str]) -> RunningCall {
        HookInstallation::start_admin(self, words)
    }
}

impl AdminCommands for UserInstallation<'_> {
    fn admin(&self, words: &[&str]) -> FinishedCommand {
        UserInstallation::admin(self, words)
    }

    fn start_admin(&self, words: &[&str]) -> RunningCall {
        UserInstallation::start_admin(self, words)
    }
}

/// Image to pull, not used by other parts of the test.
const PULLED: &str = "alpine:3.20";

/// Two runners on a host: commands of one are stopped while the other runs.
pub struct RunnerPair<'a, H: InstalledHook> {
    pub hook: &'a H,
    pub victim: GithubRunner<'a, H>,
    pub other: GithubRunner<'a, H>,
    /// Commands during whose stops `prune` is called. No worker runs between the calls of a test, so `prune`
    /// considers a job that waits for its steps abandoned.
    pub pruned: &'static [&'static str],
}

impl<'a, H: AdminCommands> RunnerPair<'a, H> {
    /// Stops all commands of a runner and its administrator.
    pub fn stop(mut self, helpers: &'static [&'static str], usual: usize) {
        let hook = self.hook;
        hook.admin(&["pull", PULLED]).success();
        let prepare = |victim: &mut GithubRunner<'a, H>| {
            drop(victim.call("prepare_job", job(victim)).success());
        };
        let commands: [StopCommand<'_, Self>; 7] = [
            ("prepare_job", &|it, _| it.victim.start("prepare_job", job(&it.victim))),
            ("run_script_step", &|it, _| {
                prepare(&mut it.victim);
                it.victim.start_run("true")
            }),
            ("run_container_step", &|it, _| {
                prepare(&mut it.victim);
                it.victim.start_container_step(shell_step("true"))
            }),
            ("build", &|it, number| {
                prepare(&mut it.victim);
                build(&it.victim, number)
            }),
            ("cleanup_job", &|it, _| {
                prepare(&mut it.victim);
                it.victim.start("cleanup_job", json!({}))
            }),
            ("pull", &|_, _| {
                hook.admin(&["rmi", PULLED]).success();
                hook.start_admin(&["pull", PULLED])
            }),
            ("prune", &|_, _| hook.start_admin(&["prune"])),
        ];
        StopSeries::new(hook, helpers).stop(&mut self, &commands, usual);
    }
}

impl<H: AdminCommands> BackgroundActivity for RunnerPair<'_, H> {
    fn run_other_commands(&mut self, stopped: &str) {
        let Self { hook, other, pruned, .. } = self;
        if is_done(&other.call("prepare_job", job(other))) {
            is_done(&other.run("true"));
            if stopped == "build" {
                is_done(&build(other, fastrand::u32(..)).wait());
            }
        }
        is_done(&other.call("cleanup_job", json!({})));
        if stopped == "pull" {
            check_command(|| hook.admin(&["pull", PULLED]));
        }
        check_command(|| hook.admin(&["ps"]));
        if pruned.contains(&stopped) {
            check_command(|| hook.admin(&["prune"]));
        }
    }

    fn finish(&mut self) {
        self.victim.cleanup();
        self.other.cleanup();
    }
}

fn job<H: InstalledHook>(runner: &GithubRunner<'_, H>) -> Value {
    json!({"container": runner.job_container("node:22"), "services": [redis()]})
}

/// Starts a build that is not cached.
fn build<H: InstalledHook>(runner: &GithubRunner<'_, H>, number: u32) -> RunningCall {
    let path = runner.workspace().join("Dockerfile");
    let text = format!("FROM {PULLED}\nRUN echo {} {number} >/number\n", runner.name);
    fs::write(&path, text).expect("the runner has a workspace");
    runner.start_container_step(built_step(&path))
}

/// Returns whether a call succeeded; a failed call must have been blocked by a lock.
#[track_caller]
pub fn is_done(ended: &EndedCall) -> bool {
    check(ended.status.success(), &ended.log(), ended.took);
    ended.status.success()
}

/// Runs a command that only inspects or cleans up.
#[track_caller]
pub fn check_command(run: impl FnOnce() -> FinishedCommand) {
    let start = Instant::now();
    let finished = run();
    check(finished.status.success(), &finished.stderr, start.elapsed());
}

#[track_caller]
#[expect(clippy::print_stderr, reason = "how often that is so is a result of a sweep")]
fn check(is_success: bool, said: &str, took: Duration) {
    assert!(took < IN_TIME, "{took:?}: {said}");
    // Inside the pause process's namespace of a rootless job no other processes are visible.
    let is_named = said.contains("is stopped") || said.contains("(`lslocks` names it)");
    let is_held_up = said.contains("has held it for") && is_named;
    assert!(is_success || is_held_up, "{said}");
    if !is_success {
        eprintln!("held up for {took:?}: {}", said.trim_end().lines().last().unwrap_or_default());
    }
}
