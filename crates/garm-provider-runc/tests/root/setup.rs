//! Setup of the tests.

use oci_hooks_testsupport::garm::answer::{AnswerStatus, ProviderInstance};
use oci_hooks_testsupport::garm::installation::ProviderInstallation;
use oci_hooks_testsupport::garm::instances::{KnownInstance, RunnerStatus};
use oci_hooks_testsupport::garm::provider::ProviderCaller;
use oci_hooks_testsupport::garm::record::RunnerLog;
use oci_hooks_testsupport::garm::server::GarmServer;
use oci_hooks_testsupport::host::{HostProcess, TestHost};
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::TestRuntime;
use oci_hooks_testsupport::world::{self, UserIds};
use serde_json::Value;

/// A job that runs until its instance is removed.
pub(crate) const ENDLESS: &str = "echo working; exec sleep 1000";

/// A host with the provider and a fake GARM.
pub(crate) struct GarmFixture<'h> {
    pub(crate) installation: ProviderInstallation<'h>,
    pub(crate) garm: GarmServer,
}

/// Runs a test on a fresh host for each runtime; in the gate for one of them.
pub(crate) fn with_each_runtime(further: &str, test: impl Fn(&GarmFixture<'_>)) {
    for &runtime in TestRuntime::selected(0) {
        with_runtime(runtime, further, &test);
    }
}

/// Runs a test of a runtime's own behaviour on a fresh host for each runtime.
pub(crate) fn with_both_runtimes(further: &str, test: impl Fn(&GarmFixture<'_>)) {
    for runtime in TestRuntime::ALL {
        with_runtime(runtime, further, &test);
    }
}

/// Runs a test on a fresh host for one runtime.
pub(crate) fn with_runtime(runtime: TestRuntime, further: &str, test: impl Fn(&GarmFixture<'_>)) {
    let host = TestHost::new();
    let installation = ProviderInstallation::new(&host, runtime, further);
    test(&GarmFixture { garm: GarmServer::start(&host), installation });
}

/// Runs a test on a fresh host for each runtime, with GARM run by a user with subordinate ids, and by a user without;
/// in the gate, for each user with one runtime.
pub(crate) fn with_each_user(further: &str, test: impl Fn(&GarmFixture<'_>, &RootlessUser<'_>)) {
    for (index, ids) in [UserIds::Ranges, UserIds::None].into_iter().enumerate() {
        for &runtime in TestRuntime::selected(index) {
            with_user(runtime, ids, further, &test);
        }
    }
}

/// Each runtime, with and without ranges of subordinate ids.
pub(crate) const RUNTIMES_AND_IDS: [(TestRuntime, UserIds); 4] = [
    (TestRuntime::Runc, UserIds::Ranges),
    (TestRuntime::Runc, UserIds::None),
    (TestRuntime::Crun, UserIds::Ranges),
    (TestRuntime::Crun, UserIds::None),
];

/// Runs a test on a fresh host for one runtime, with GARM run by a user.
pub(crate) fn with_user(
    runtime: TestRuntime,
    ids: UserIds,
    further: &str,
    test: impl Fn(&GarmFixture<'_>, &RootlessUser<'_>),
) {
    let world = world::UserWorld::new();
    let user = world.user(ids);
    let installation = ProviderInstallation::of_user(&world, &user, runtime, further);
    let _which = FailedVariant(runtime, ids);
    let ordinary = RootlessUser { world: &world, ids };
    test(&GarmFixture { garm: GarmServer::start(world.host()), installation }, &ordinary);
}

/// The user who runs GARM.
pub(crate) struct RootlessUser<'w> {
    pub(crate) world: &'w world::UserWorld,
    pub(crate) ids: UserIds,
}

/// The runtime and user of a test, printed if it fails.
struct FailedVariant(TestRuntime, UserIds);

impl Drop for FailedVariant {
    #[expect(clippy::print_stderr, reason = "it stands beside the panic")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("this was {} for a user with the ids {:?}", self.0, self.1);
        }
    }
}

impl GarmFixture<'_> {
    pub(crate) fn host(&self) -> &TestHost {
        self.installation.host()
    }

    /// Returns GARM's calls with default values.
    pub(crate) fn provider(&self) -> ProviderCaller<'_> {
        ProviderCaller::new(&self.installation)
    }

    /// Creates an instance whose runner has a job, and returns it.
    #[track_caller]
    pub(crate) fn create(&self, name: &str, job: &str, fields: Value) -> ProviderInstance {
        let answer = self.provider().create(&self.garm.bootstrap(name, job, fields));
        // A short job may be over before the answer; a runner that got no job is an error.
        let has_worked = [AnswerStatus::Running, AnswerStatus::Stopped].contains(&answer.status);
        assert!(has_worked, "{answer:?}");
        answer
    }

    /// Creates an instance whose boot fails, possibly before the answer.
    #[track_caller]
    pub(crate) fn create_for_failure(&self, name: &str, job: &str, fields: Value) {
        self.provider().create(&self.garm.bootstrap(name, job, fields));
    }

    /// Creates an instance and waits until its runner is idle.
    #[track_caller]
    pub(crate) fn bring_up(&self, name: &str, job: &str, fields: Value) -> KnownInstance {
        self.create(name, job, fields);
        let instance = self.garm.wait_until(name, |instance| !instance.is_young());
        let log = || self.installation.log(name).text;
        assert_eq!(instance.status, RunnerStatus::Idle, "{:#?}\n{}", instance.messages, log());
        instance
    }

    /// Returns the process of an `ENDLESS` job.
    pub(crate) fn job_process(&self) -> Option<HostProcess> {
        self.host().processes().into_iter().find(|process| process.line == "sleep 1000 ")
    }

    /// Waits until an `ENDLESS` job executes its program, some time after it writes its first line.
    #[track_caller]
    pub(crate) fn wait_for_job(&self) -> HostProcess {
        let mut job = None;
        program::wait_until("the job runs", || {
            job = self.job_process();
            job.is_some()
        });
        job.expect("the wait has ended")
    }

    /// Returns the supervisor of the only instance.
    #[track_caller]
    pub(crate) fn supervisor(&self) -> HostProcess {
        let program = self.installation.program().display().to_string();
        let mut found = self.host().processes();
        found.retain(|process| process.line.starts_with(&program));
        assert_eq!(found.len(), 1, "one for each instance: {found:?}");
        found.remove(0)
    }

    /// Kills the supervisors and the processes of `ENDLESS` jobs, as a power failure does.
    pub(crate) fn kill_processes(&self) {
        let program = self.installation.program().display().to_string();
        let mut killed = self.host().processes();
        killed.retain(|it| it.line.starts_with(&program) || it.line.contains("sleep 1000"));
        let killed: Vec<_> = killed.iter().map(|process| process.pid).collect();
        self.host().signal(&killed, "KILL");
    }

    /// Creates an instance, waits until its job has ended, and returns the runner's record.
    #[track_caller]
    pub(crate) fn run(&self, name: &str, job: &str, fields: Value) -> RunnerLog {
        self.bring_up(name, job, fields);
        self.provider().wait_for(name, AnswerStatus::Stopped);
        self.installation.log(name)
    }

    /// Runs and deletes one instance, so that files shared by all instances exist.
    #[track_caller]
    pub(crate) fn warm_up(&self) {
        self.run("warm-up", "true", serde_json::json!({}));
        self.provider().delete("warm-up");
    }

    /// Waits until an instance reports `failed` to GARM, and returns its messages.
    #[track_caller]
    pub(crate) fn boot_fails(&self, name: &str) -> String {
        let instance = self.garm.wait_for(name, RunnerStatus::Failed);
        instance.messages_with("failed").join("\n")
    }
}
