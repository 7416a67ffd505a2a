//! Commands that are stopped at any moment, as by a debugger or a frozen cgroup: others go on, or are told which process
//! holds them up. Once it is continued, a command ends as it should, and nothing is left.
//!
//! A program that a command needs and that runs beside it, such as the holder of an ordinary user's job, is stopped as
//! well. A job cannot do that: a container is in a process namespace of its own, below that of the holder, and sees no
//! process outside of it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use std::{fmt, fs};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::by_user::ByUser;
use super::call::{Call, Ended};
use super::github_runner::{Hook, Runner, built_step, redis, shell_step};
use super::installation::Installation;
use super::kills::{Moments, Whom, cgroups, variable};
use super::leftovers::{Installed, Snapshot, cgroups_left};
use super::program::Finished;

/// The variable that says how often each command is stopped, on each runtime and for each user. Without it, some
/// commands, which chance chooses, are stopped once.
const COUNT: &str = "OCI_HOOKS_STOPS";

/// In what time others have to succeed or to be told who holds them up: several locks may be waited for in turn.
const IN_TIME: Duration = Duration::from_secs(100);

/// A command that is stopped again and again: its name, and what starts it after whatever has to be there for it. The
/// number is another one each time.
pub(crate) type Command<'a, T> = (&'static str, &'a dyn Fn(&mut T, u32) -> Call);

/// What goes on while a command is stopped, and comes after.
pub(crate) trait Others {
    /// Has others do all that they do, while a command of this name is stopped.
    fn go_on(&mut self, stopped: &str);

    /// Ends what the command began, and what others could not. Nothing may be left then.
    fn finish(&mut self);
}

/// Who is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Call(Whom),
    /// Processes of this name, which go on beside the command.
    Helper(&'static str),
}

/// Stops of commands on a host.
pub(crate) struct Sweep<'i, I> {
    installation: &'i I,
    helpers: &'static [&'static str],
    moments: Moments,
    stops: u32,
}

/// Returns all of these if stops are asked for, and one that chance chooses otherwise.
pub(crate) fn some<T>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    match variable::<u32>(COUNT) {
        Some(_) => all.into_iter().collect(),
        None => Moments::new().random.choose_multiple(all, 1),
    }
}

impl<'i, I: Installed> Sweep<'i, I> {
    /// Begins one on a host whose commands need processes of these names beside them.
    #[expect(
        clippy::print_stderr,
        reason = "what chance began with is of use before anything fails"
    )]
    pub(crate) fn new(installation: &'i I, helpers: &'static [&'static str]) -> Self {
        let moments = Moments::new();
        eprintln!("{moments}");
        Self { installation, helpers, moments, stops: 0 }
    }

    /// Stops commands, and has others go on meanwhile: `usual` of them, once each, if no more is asked for.
    pub(crate) fn stop<T: Others>(
        &mut self,
        state: &mut T,
        commands: &[Command<'_, T>],
        usual: usize,
    ) {
        // What is made once is there afterwards.
        state.go_on("");
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

    fn stop_once<T: Others>(
        &mut self,
        state: &mut T,
        (name, start): Command<'_, T>,
        (took, round, count): (Duration, u32, u32),
    ) {
        let before = Snapshot::take(self.installation);
        let after = self.moments.next(took, round, count);
        let mut call = start(state, self.stops);
        self.stops += 1;
        call.pass(after);
        let target = self.target();
        let what = format!("{name}, {target:?} after {after:?} of {took:?}; {self}");
        self.signal(&mut call, target, Signal::STOP);
        state.go_on(name);
        self.signal(&mut call, target, Signal::CONT);
        let known = cgroups(self.installation);
        let ended = call.wait();
        let log = ended.log();
        assert!(!log.contains("panicked at"), "{what}: {log}");
        // A command whose helper stood still may give up, as if that did not work.
        let has_failed = matches!(target, Target::Call(_)) && !ended.status.success();
        assert!(!has_failed, "{what}: {}: {log}", ended.status);
        state.finish();
        let faults = self.faults(&before, &known);
        assert!(faults.is_empty(), "{what}: {log}\n{}", faults.join("\n"));
    }

    /// Chooses who is stopped: mostly the command, and sometimes a helper that is there.
    fn target(&mut self) -> Target {
        let is_helper = !self.helpers.is_empty() && self.moments.random.u8(..3) == 0;
        match self.moments.random.choice(self.helpers) {
            Some(name) if is_helper && !self.installation.host().named(name).is_empty() => {
                Target::Helper(name)
            }
            _ => Target::Call(self.moments.whom()),
        }
    }

    fn signal(&self, call: &mut Call, target: Target, signal: Signal) {
        match target {
            Target::Call(whom) => call.signal_to(whom, signal),
            Target::Helper(name) => {
                let host = self.installation.host();
                let name_of_signal = if signal == Signal::STOP { "STOP" } else { "CONT" };
                host.signal(&host.named(name), name_of_signal);
            }
        }
    }

    /// Returns what is left, but for what the store keeps for the next.
    fn faults(&self, before: &Snapshot, known: &BTreeSet<String>) -> Vec<String> {
        let (mut faults, _) = before.faults(self.installation);
        let store = self.installation.store().display().to_string();
        faults.retain(|fault| !fault.contains(&store));
        faults.extend(cgroups_left(known.difference(&cgroups(self.installation))));
        faults
    }
}

impl<I> fmt::Display for Sweep<'_, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stop {}; {}", self.stops, self.moments)
    }
}

/// A hook that has jobs stopped.
pub(crate) trait Administered: Hook + Installed {
    /// Runs a command of the administrator's.
    fn admin(&self, words: &[&str]) -> Finished;

    /// Starts one.
    fn start_admin(&self, words: &[&str]) -> Call;
}

impl Administered for Installation<'_> {
    fn admin(&self, words: &[&str]) -> Finished {
        Installation::admin(self, words)
    }

    fn start_admin(&self, words: &[&str]) -> Call {
        Installation::start_admin(self, words)
    }
}

impl Administered for ByUser<'_> {
    fn admin(&self, words: &[&str]) -> Finished {
        ByUser::admin(self, words)
    }

    fn start_admin(&self, words: &[&str]) -> Call {
        ByUser::start_admin(self, words)
    }
}

/// What an image is pulled for while nothing else needs it.
const PULLED: &str = "alpine:3.20";

/// Two runners on a host: the commands of one are stopped, and the other goes on.
pub(crate) struct Runners<'a, H: Hook> {
    pub(crate) hook: &'a H,
    pub(crate) victim: Runner<'a, H>,
    pub(crate) other: Runner<'a, H>,
    /// During which commands `prune` is called. No worker runs between calls of a test: to `prune`, a job that waits
    /// for its steps is abandoned.
    pub(crate) pruned: &'static [&'static str],
}

impl<'a, H: Administered> Runners<'a, H> {
    /// Stops all that a runner and its administrator call.
    pub(crate) fn stop(mut self, helpers: &'static [&'static str], usual: usize) {
        let hook = self.hook;
        hook.admin(&["pull", PULLED]).success();
        let prepare =
            |victim: &mut Runner<'a, H>| drop(victim.call("prepare_job", job(victim)).success());
        let commands: [Command<'_, Self>; 7] = [
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
        Sweep::new(hook, helpers).stop(&mut self, &commands, usual);
    }
}

impl<H: Administered> Others for Runners<'_, H> {
    fn go_on(&mut self, stopped: &str) {
        let Self { hook, other, pruned, .. } = self;
        if is_done(&other.call("prepare_job", job(other))) {
            is_done(&other.run("true"));
            if stopped == "build" {
                is_done(&build(other, fastrand::u32(..)).wait());
            }
        }
        is_done(&other.call("cleanup_job", json!({})));
        if stopped == "pull" {
            look(|| hook.admin(&["pull", PULLED]));
        }
        look(|| hook.admin(&["ps"]));
        if pruned.contains(&stopped) {
            look(|| hook.admin(&["prune"]));
        }
    }

    fn finish(&mut self) {
        self.victim.cleanup();
        self.other.cleanup();
    }
}

fn job<H: Hook>(runner: &Runner<'_, H>) -> Value {
    json!({"container": runner.job_container("node:22"), "services": [redis()]})
}

/// Starts to build what has not been built before.
fn build<H: Hook>(runner: &Runner<'_, H>, number: u32) -> Call {
    let path = runner.workspace().join("Dockerfile");
    let text = format!("FROM {PULLED}\nRUN echo {} {number} >/number\n", runner.name);
    fs::write(&path, text).expect("the runner has a workspace");
    runner.start_container_step(built_step(&path))
}

/// Returns whether a call succeeded; one that failed was held up.
#[track_caller]
pub(crate) fn is_done(ended: &Ended) -> bool {
    check(ended.status.success(), &ended.log(), ended.took);
    ended.status.success()
}

/// Has a command run that others use to look around, or to clean up.
#[track_caller]
pub(crate) fn look(run: impl FnOnce() -> Finished) {
    let start = Instant::now();
    let finished = run();
    check(finished.status.success(), &finished.stderr, start.elapsed());
}

#[track_caller]
#[expect(clippy::print_stderr, reason = "how often that is so is a result of a sweep")]
fn check(is_success: bool, said: &str, took: Duration) {
    assert!(took < IN_TIME, "{took:?}: {said}");
    // In the holder of an ordinary user's job no other processes are seen.
    let is_named = said.contains("is stopped") || said.contains("(`lslocks` names it)");
    let is_held_up = said.contains("has held it for") && is_named;
    assert!(is_success || is_held_up, "{said}");
    if !is_success {
        eprintln!("held up for {took:?}: {}", said.trim_end().lines().last().unwrap_or_default());
    }
}
