//! Programs that are killed at any moment, and a host that is as before once somebody cleaned up.
//!
//! The moments are spread over the time that a command takes, each shifted by chance within its share.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::str::FromStr;
use std::time::Duration;

use fastrand::Rng;

use super::call::Call;
use super::leftovers::{Installed, Snapshot, cgroups_left, cgroups_of, containers};

/// The variables that say how often each command is killed on each runtime, and what chance begins with.
const COUNT: &str = "OCI_HOOKS_KILLS";
const SEED: &str = "OCI_HOOKS_KILLS_SEED";

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whom {
    Program,
    /// With what it started, but for what left its process group.
    Group,
}

/// One kill.
#[derive(Clone, Debug)]
pub(crate) struct Kill {
    pub(crate) after: Duration,
    pub(crate) whom: Whom,
    what: String,
}

impl fmt::Display for Kill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {:?} after {:?}", self.what, self.whom, self.after)
    }
}

/// A command that is killed again and again.
pub(crate) struct Victim<'a, T> {
    pub(crate) name: &'a str,
    /// How long it takes if nobody kills it.
    pub(crate) took: Duration,
    /// Starts it, after whatever has to be there for it; the number is another one each time.
    pub(crate) start: &'a dyn Fn(&mut T, u32) -> Call,
    /// Does what comes next, after which nothing may be left.
    pub(crate) finish: &'a dyn Fn(&mut T),
}

/// Moments that chance decides.
pub(super) struct Moments {
    pub(super) random: Rng,
    seed: u64,
}

impl Moments {
    /// Begins with what the environment says, if it says anything.
    pub(super) fn new() -> Self {
        let seed = variable(SEED).unwrap_or_else(|| RandomState::new().hash_one(0));
        Self { random: Rng::with_seed(seed), seed }
    }

    /// Returns the moment of a round, within its share of the time that a command takes.
    pub(super) fn next(&mut self, took: Duration, round: u32, count: u32) -> Duration {
        took.mul_f64((f64::from(round) + self.random.f64()) / f64::from(count))
    }

    pub(super) fn whom(&mut self) -> Whom {
        if self.random.bool() { Whom::Program } else { Whom::Group }
    }
}

impl fmt::Display for Moments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SEED}={}", self.seed)
    }
}

/// A play of kills on a host.
pub(crate) struct Play<'i, I> {
    installation: &'i I,
    moments: Moments,
    usual: u32,
    kills: u32,
    faults: Vec<String>,
}

impl<'i, I: Installed> Play<'i, I> {
    /// Begins one that kills each command so often, if nobody asks for more. Everything that is made
    /// once has to be there.
    pub(crate) fn new(installation: &'i I, usual: u32) -> Self {
        // What is left in the machine's own might be anybody's.
        installation.host().make_temporary();
        Self { installation, moments: Moments::new(), usual, kills: 0, faults: Vec::new() }
    }

    /// Kills a command at each moment, finishes each time what it began, and looks at what is left.
    pub(crate) fn kill<T>(&mut self, state: &mut T, victim: &Victim<'_, T>) {
        self.kill_by(state, victim, &|call, kill| call.kill(kill));
    }

    /// The same with a function that does the killing, of whatever the command needs to go on.
    pub(crate) fn kill_by<T>(
        &mut self,
        state: &mut T,
        victim: &Victim<'_, T>,
        by: &dyn Fn(Call, &Kill),
    ) {
        let count = variable(COUNT).unwrap_or(self.usual);
        let mut before = Surroundings::take(self.installation);
        for round in 0..count {
            let kill = self.next(victim, round, count);
            by((victim.start)(state, self.kills), &kill);
            let known = cgroups(self.installation);
            (victim.finish)(state);
            let mut faults = before.faults(self.installation);
            faults.extend(cgroups_left(known.difference(&cgroups(self.installation))));
            if !faults.is_empty() {
                self.faults.push(format!("{kill}:\n    {}", faults.join("\n    ")));
                // So that others are not blamed for it.
                before = Surroundings::take(self.installation);
            }
            self.kills += 1;
        }
    }

    /// Returns what was left.
    pub(crate) fn found(self) -> Vec<String> {
        self.faults
    }

    /// Checks that nothing was left.
    #[track_caller]
    #[expect(
        clippy::print_stderr,
        reason = "what chance began with is of use before anything fails"
    )]
    pub(crate) fn end(self) {
        let (kills, moments, count) = (self.kills, self.moments, self.faults.len());
        eprintln!("{count} of {kills} kills left something; {moments}");
        let faults = self.faults.join("\n");
        assert_eq!(count, 0, "of {kills} kills so many left something; {moments}\n{faults}");
    }

    fn next<T>(&mut self, victim: &Victim<'_, T>, round: u32, count: u32) -> Kill {
        Kill {
            after: self.moments.next(victim.took, round, count),
            whom: self.moments.whom(),
            what: format!("{} {round} of {count}, which takes {:?}", victim.name, victim.took),
        }
    }
}

/// Returns the names of the cgroups of what is ours.
pub(super) fn cgroups(installation: &impl Installed) -> BTreeSet<String> {
    let mut names = cgroups_of(installation.host());
    names.extend(containers(installation));
    names.remove("supervisors");
    // That of a step is in one with the container's name; other tests on this machine have such too.
    names.remove("step");
    names
}

/// A host, with what programs may leave elsewhere than where they are meant to.
struct Surroundings {
    snapshot: Snapshot,
    /// Files outside of what is ours, with their owners and modes.
    files: BTreeSet<String>,
    /// Network namespaces that something keeps.
    networks: BTreeSet<String>,
}

impl Surroundings {
    fn take(installation: &impl Installed) -> Self {
        Self::around(Snapshot::take(installation), installation)
    }

    fn around(snapshot: Snapshot, installation: &impl Installed) -> Self {
        let host = installation.host();
        // Without what the snapshot has, and what the tests themselves write as runners.
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

    fn faults(&self, installation: &impl Installed) -> Vec<String> {
        let (mut faults, snapshot) = self.snapshot.faults(installation);
        let now = Self::around(snapshot, installation);
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

/// Returns the number that a variable has, if it is there.
pub(super) fn variable<T: FromStr>(name: &str) -> Option<T> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is a number, not {value:?}")))
}
