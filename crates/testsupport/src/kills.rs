//! Programs killed at random moments, and a host without leftovers after the cleanup.
//!
//! The duration of a command is split into equal parts, with one random moment in each.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::str::FromStr;
use std::time::Duration;

use fastrand::Rng;

use super::call::RunningCall;
use super::leftovers::{
    InstalledProgram, LeftoverSnapshot, cgroups_not_removed, cgroups_of, containers,
};

/// Environment variables with the number of kills of each command on each runtime, and with the random seed.
const COUNT: &str = "OCI_HOOKS_KILLS";
const SEED: &str = "OCI_HOOKS_KILLS_SEED";

/// Target of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalTarget {
    Program,
    /// The program with its process group.
    Group,
}

/// One kill.
#[derive(Clone, Debug)]
pub struct PlannedKill {
    pub after: Duration,
    pub whom: SignalTarget,
    what: String,
}

impl fmt::Display for PlannedKill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {:?} after {:?}", self.what, self.whom, self.after)
    }
}

/// A command to kill repeatedly.
pub struct KillVictim<'a, T> {
    pub name: &'a str,
    /// Duration of the command when not killed.
    pub took: Duration,
    /// Starts the command after its preconditions. The number differs in each round.
    pub start: &'a dyn Fn(&mut T, u32) -> RunningCall,
    /// Runs what follows the command, after which nothing may be left.
    pub finish: &'a dyn Fn(&mut T),
}

/// A generator of random moments.
pub struct RandomMoments {
    pub random: Rng,
    seed: u64,
}

impl RandomMoments {
    /// Seeds the generator from the environment if set, else randomly.
    #[expect(clippy::new_without_default, reason = "it is made on the machine")]
    pub fn new() -> Self {
        let seed = variable(SEED).unwrap_or_else(|| RandomState::new().hash_one(0));
        Self { random: Rng::with_seed(seed), seed }
    }

    /// Returns a random moment in the round's part of the command's duration.
    pub fn next(&mut self, took: Duration, round: u32, count: u32) -> Duration {
        took.mul_f64((f64::from(round) + self.random.f64()) / f64::from(count))
    }

    pub fn choose_target(&mut self) -> SignalTarget {
        if self.random.bool() { SignalTarget::Program } else { SignalTarget::Group }
    }
}

impl fmt::Display for RandomMoments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SEED}={}", self.seed)
    }
}

/// A series of kills on a host.
pub struct KillSeries<'i, I> {
    installation: &'i I,
    moments: RandomMoments,
    usual: u32,
    kills: u32,
    faults: Vec<String>,
}

impl<'i, I: InstalledProgram> KillSeries<'i, I> {
    /// Begins a series with `usual` kills of each command, unless the environment sets the number. Everything
    /// that is created only once must exist already.
    pub fn new(installation: &'i I, usual: u32) -> Self {
        // Leftovers in the machine's `/tmp` could be those of other processes.
        installation.host().make_temporary();
        Self { installation, moments: RandomMoments::new(), usual, kills: 0, faults: Vec::new() }
    }

    /// Kills a command at each moment, finishes its work each time, and looks for leftovers.
    pub fn kill<T>(&mut self, state: &mut T, victim: &KillVictim<'_, T>) {
        self.kill_by(state, victim, &|call, kill| call.kill(kill));
    }

    /// Like [`Self::kill`], with a function that kills the command, or a process that the command depends on.
    pub fn kill_by<T>(
        &mut self,
        state: &mut T,
        victim: &KillVictim<'_, T>,
        by: &dyn Fn(RunningCall, &PlannedKill),
    ) {
        let count = number_of_kills(self.usual);
        let mut before = HostSnapshot::take(self.installation);
        for round in 0..count {
            let kill = self.next(victim, round, count);
            by((victim.start)(state, self.kills), &kill);
            let known = cgroups(self.installation);
            (victim.finish)(state);
            let mut faults = before.faults(self.installation);
            faults.extend(cgroups_not_removed(known.difference(&cgroups(self.installation))));
            if !faults.is_empty() {
                self.faults.push(format!("{kill}:\n    {}", faults.join("\n    ")));
                // Later rounds are not to report the same leftovers.
                before = HostSnapshot::take(self.installation);
            }
            self.kills += 1;
        }
    }

    /// Returns the leftovers.
    pub fn into_leftovers(self) -> Vec<String> {
        self.faults
    }

    /// Checks that nothing was left.
    #[track_caller]
    #[expect(
        clippy::print_stderr,
        reason = "what chance began with is of use before anything fails"
    )]
    pub fn end(self) {
        let (kills, moments, count) = (self.kills, self.moments, self.faults.len());
        eprintln!("{count} of {kills} kills left something; {moments}");
        let faults = self.faults.join("\n");
        assert_eq!(count, 0, "of {kills} kills so many left something; {moments}\n{faults}");
    }

    fn next<T>(&mut self, victim: &KillVictim<'_, T>, round: u32, count: u32) -> PlannedKill {
        PlannedKill {
            after: self.moments.next(victim.took, round, count),
            whom: self.moments.choose_target(),
            what: format!("{} {round} of {count}, which takes {:?}", victim.name, victim.took),
        }
    }
}

/// Returns the names of the cgroups of the installation's processes and containers.
pub fn cgroups(installation: &impl InstalledProgram) -> BTreeSet<String> {
    let mut names = cgroups_of(installation.host());
    names.extend(containers(installation));
    names.remove("supervisors");
    // A step's cgroup is below the container's; other tests use the name `step` too.
    names.remove("step");
    names
}

/// A snapshot of a host, with files outside of the installation's directories, and network namespaces.
struct HostSnapshot {
    snapshot: LeftoverSnapshot,
    /// Paths with owners, modes and types.
    files: BTreeSet<String>,
    /// Network namespaces in use or mounted.
    networks: BTreeSet<String>,
}

impl HostSnapshot {
    fn take(installation: &impl InstalledProgram) -> Self {
        Self::from_snapshot(LeftoverSnapshot::take(installation), installation)
    }

    fn from_snapshot(snapshot: LeftoverSnapshot, installation: &impl InstalledProgram) -> Self {
        let host = installation.host();
        // Without the directories that the snapshot covers, and files that the tests write as runners.
        let files = host.shell(&format!(
            "find /run {host} -xdev \\( -path {run} -o -path {store} -o -path {host}/log \
             -o -path '*/_temp/_runner_*' -o -path '*/_temp/*.sh' \\) -prune \
             -o -printf '%p %U:%G %m %y\\n'",
            host = host.path().display(),
            run = installation.run_directory().display(),
            store = installation.store().display(),
        ));
        let networks = host.shell(
            "readlink /proc/[0-9]*/ns/net 2>/dev/null | sort -u; \
             sed -n 's/.* \\(net:\\[[0-9]*\\]\\) .*/\\1/p' /proc/self/mountinfo",
        );
        let lines = |text: &str| text.lines().map(str::to_owned).collect();
        Self { snapshot, files: lines(&files), networks: lines(&networks) }
    }

    fn faults(&self, installation: &impl InstalledProgram) -> Vec<String> {
        let (mut faults, snapshot) = self.snapshot.faults(installation);
        let now = Self::from_snapshot(snapshot, installation);
        let left = |what: &str, now: &BTreeSet<String>, before: &BTreeSet<String>| {
            let left = now.difference(before).map(|one| format!("a {what} is left: {one}"));
            let gone = before.difference(now).map(|one| format!("a {what} is missing: {one}"));
            left.chain(gone).collect::<Vec<_>>()
        };
        faults.extend(left("file elsewhere", &now.files, &self.files));
        faults.extend(left("network namespace", &now.networks, &self.networks));
        faults
    }
}

/// Returns the number of kills of each command: `usual`, unless the environment sets it.
pub fn number_of_kills(usual: u32) -> u32 {
    variable(COUNT).unwrap_or(usual)
}

/// Returns the number in an environment variable, if set.
pub fn variable<T: FromStr>(name: &str) -> Option<T> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is a number, not {value:?}")))
}
