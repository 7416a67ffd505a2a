//! What the tests begin with.

use serde_json::Value;

use crate::support::garm::answer::{Answer, Status};
use crate::support::garm::installation::Installation;
use crate::support::garm::instances::{Instance, RunnerStatus};
use crate::support::garm::provider::Provider;
use crate::support::garm::record::Record;
use crate::support::garm::server::Garm;
use crate::support::host::Host;
use crate::support::runtime::Runtime;
use crate::support::world::{self, Ids};

/// A job that goes on until its instance is gone.
pub(crate) const ENDLESS: &str = "echo working; exec sleep 1000";

/// A host with the provider, and GARM.
pub(crate) struct World<'h> {
    pub(crate) installation: Installation<'h>,
    pub(crate) garm: Garm,
}

/// Calls a test with a fresh host for each runtime.
pub(crate) fn with_each_runtime(further: &str, test: impl Fn(&World<'_>)) {
    for runtime in Runtime::ALL {
        with_runtime(runtime, further, &test);
    }
}

/// Calls a test with a fresh host for one runtime.
pub(crate) fn with_runtime(runtime: Runtime, further: &str, test: impl Fn(&World<'_>)) {
    let host = Host::new();
    let installation = Installation::new(&host, runtime, further);
    test(&World { garm: Garm::start(&host), installation });
}

/// Calls a test with a fresh host for each runtime, on which GARM is run by a user with subordinate ids and
/// then by one without.
pub(crate) fn with_each_user(further: &str, test: impl Fn(&World<'_>, &Ordinary<'_>)) {
    for (runtime, ids) in RUNTIMES_AND_IDS {
        with_user(runtime, ids, further, &test);
    }
}

/// Each runtime for each user.
pub(crate) const RUNTIMES_AND_IDS: [(Runtime, Ids); 4] = [
    (Runtime::Runc, Ids::Ranges),
    (Runtime::Runc, Ids::None),
    (Runtime::Crun, Ids::Ranges),
    (Runtime::Crun, Ids::None),
];

/// Calls a test with a fresh host for one runtime, on which GARM is run by a user.
pub(crate) fn with_user(
    runtime: Runtime,
    ids: Ids,
    further: &str,
    test: impl Fn(&World<'_>, &Ordinary<'_>),
) {
    let world = world::World::new();
    let user = world.user(ids);
    let installation = Installation::of_user(&world, &user, runtime, further);
    let _which = Which(runtime, ids);
    let ordinary = Ordinary { world: &world, ids };
    test(&World { garm: Garm::start(world.host()), installation }, &ordinary);
}

/// What a test knows of the user who runs GARM.
pub(crate) struct Ordinary<'w> {
    pub(crate) world: &'w world::World,
    pub(crate) ids: Ids,
}

/// Says with whom a test fails.
struct Which(Runtime, Ids);

impl Drop for Which {
    #[expect(clippy::print_stderr, reason = "it stands beside the panic")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("this was {} for a user with the ids {:?}", self.0, self.1);
        }
    }
}

impl World<'_> {
    pub(crate) fn host(&self) -> &Host {
        self.installation.host()
    }

    /// Returns GARM's calls as most of them are.
    pub(crate) fn provider(&self) -> Provider<'_> {
        Provider::new(&self.installation)
    }

    /// Creates an instance whose runner has a job, and returns it.
    #[track_caller]
    pub(crate) fn create(&self, name: &str, job: &str, fields: Value) -> Answer {
        let answer = self.provider().create(&self.garm.bootstrap(name, job, fields));
        // A short job may be over by the time of the answer; a runner that had none is an error.
        let has_worked = [Status::Running, Status::Stopped].contains(&answer.status);
        assert!(has_worked, "{answer:?}");
        answer
    }

    /// Creates an instance whose boot fails, which it may have done by the time of the answer.
    #[track_caller]
    pub(crate) fn create_for_failure(&self, name: &str, job: &str, fields: Value) {
        self.provider().create(&self.garm.bootstrap(name, job, fields));
    }

    /// Creates an instance and waits until its runner is idle.
    #[track_caller]
    pub(crate) fn bring_up(&self, name: &str, job: &str, fields: Value) -> Instance {
        self.create(name, job, fields);
        let instance = self.garm.wait_until(name, |instance| !instance.is_young());
        let log = || self.installation.log(name).text;
        assert_eq!(instance.status, RunnerStatus::Idle, "{:#?}\n{}", instance.messages, log());
        instance
    }

    /// Creates an instance, waits until its job has ended, and returns what the runner wrote down.
    #[track_caller]
    pub(crate) fn run(&self, name: &str, job: &str, fields: Value) -> Record {
        self.bring_up(name, job, fields);
        self.provider().wait_for(name, Status::Stopped);
        self.installation.log(name)
    }

    /// Runs one instance through its whole life: what is made once for all is there then.
    #[track_caller]
    pub(crate) fn warm_up(&self) {
        self.run("warm-up", "true", serde_json::json!({}));
        self.provider().delete("warm-up");
    }

    /// Waits until GARM is told that an instance failed, and returns what it said.
    #[track_caller]
    pub(crate) fn boot_fails(&self, name: &str) -> String {
        let instance = self.garm.wait_for(name, RunnerStatus::Failed);
        instance.said("failed").join("\n")
    }
}
