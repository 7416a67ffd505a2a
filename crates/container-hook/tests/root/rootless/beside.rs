//! Concurrent jobs: of two users, of one user, and with one that is killed.

use std::thread;
use std::time::Duration;

use oci_hooks_testsupport::by_user::UserInstallation;
use oci_hooks_testsupport::hub::{HostRegistry, RegistryName};
use oci_hooks_testsupport::leftovers::{
    InstalledProgram as _, LeftoverSnapshot, assert_no_cgroups, cgroups_left, containers,
};
use oci_hooks_testsupport::runtime::TestRuntime;
use oci_hooks_testsupport::world::{UserIds, UserWorld};
use serde_json::json;

use crate::rootless::setup::{UserKind, UsersRunner, redis, shell_step, with_each};

const RUNNERS: usize = 8;
const KILLED: usize = 3;

#[test]
fn killing_one_of_eight_jobs_does_not_affect_the_others() {
    with_each(&UserKind::ALL, "", |installation| {
        let before = LeftoverSnapshot::take(installation);
        thread::scope(|scope| {
            for number in 0..RUNNERS {
                scope.spawn(move || match number {
                    KILLED => kill_calls(installation),
                    _ => job(&mut installation.runner(&format!("runner-{number}")), number),
                });
            }
        });
        before.check_live(installation, "jobs at once");
        let jobs = installation.run_directory().join("jobs");
        let left =
            installation.host().shell(&format!("ls -A {} 2>/dev/null || true", jobs.display()));
        assert!(left.lines().all(|name| name.ends_with(".lock")), "{left}");
        // Only root's containers have records here.
        let left = containers(installation);
        assert!(left.is_empty(), "{left:?}");
    });
}

/// Runner names are per user.
#[test]
fn root_and_users_can_have_runners_of_the_same_name() {
    let world = UserWorld::new();
    let _hub = HostRegistry::start(world.host(), RegistryName::Hub, None);
    let users = [UserIds::Ranges, UserIds::Ranges, UserIds::None].map(|ids| world.user(ids));
    let [first, second, third] = users.each_ref().map(Some);
    let installations = [(None, 0), (first, 1), (second, 0), (third, 1)]
        .map(|(user, at)| UserInstallation::new(&world, user, TestRuntime::ALL[at], ""));
    let before = LeftoverSnapshot::take(&installations[0]);
    let mut runners = installations.each_ref().map(|installation| installation.runner("runner-1"));
    for (number, runner) in runners.iter_mut().enumerate() {
        runner.prepare(runner.job_container("node:22"), &[redis()]);
        runner.run(&format!("echo {number} >/number; echo {number} >number")).success();
    }
    for (number, runner) in runners.iter_mut().enumerate() {
        let seen = runner.run("cat /number number").success().stdout();
        assert_eq!(seen, format!("{number}\n{number}\n"));
    }
    let lists_jobs = |installation: &UserInstallation<'_>| {
        installation.admin(&["ps", "--format", "json"]).success().contains("redis")
    };
    // Cleanup and `prune --all` do not affect jobs of other users.
    for (ended, installation) in installations.iter().enumerate() {
        assert!(lists_jobs(installation), "{ended}");
        runners[ended].cleanup();
        assert!(!lists_jobs(installation), "{ended}");
        installation.admin(&["prune", "--all"]).success();
        for (number, runner) in runners.iter_mut().enumerate().skip(ended + 1) {
            let seen = runner.run("cat /number; printf 'PING\\r\\nQUIT\\r\\n' | nc redis 6379");
            assert_eq!(seen.success().stdout(), format!("{number}\n+PONG\r\n"));
        }
    }
    before.check_live(&installations[0], "jobs of root and three users");
}

fn job(runner: &mut UsersRunner<'_>, number: usize) {
    runner.prepare(runner.job_container("node:22"), &[redis()]);
    for _ in 0..4 {
        job_goes_on(runner, number);
    }
    let (ended, _) = runner.container_step(shell_step(&format!("echo action {number}")));
    assert!(ended.success().stdout().ends_with(&format!("action {number}\n")));
    runner.cleanup();
}

#[track_caller]
fn job_goes_on(runner: &mut UsersRunner<'_>, number: usize) {
    let ping = format!("echo {number}; printf 'PING\\r\\nQUIT\\r\\n' | nc redis 6379");
    assert_eq!(runner.run(&ping).success().stdout(), format!("{number}\n+PONG\r\n"));
}

fn kill_calls(installation: &UserInstallation<'_>) {
    let mut runner = installation.runner(&format!("runner-{KILLED}"));
    for delay in [40, 80, 160, 320] {
        let args = json!({"container": runner.job_container("node:22"), "services": [redis()]});
        let call = runner.start("prepare_job", args);
        call.kill_after(Duration::from_millis(delay));
        runner.cleanup();
    }
    runner.prepare(runner.job_container("node:22"), &[redis()]);
    let mut call = runner.start_run("echo started; while :; do :; done");
    call.wait_for_line("started");
    call.kill_after(Duration::ZERO);
    let state = &runner.state;
    let own =
        [&state["container"], &state["services"][0]].map(|id| id.as_str().unwrap().to_owned());
    if !installation.is_rootless() {
        assert!(!cgroups_left(&own).is_empty(), "containers of root have cgroups");
    }
    runner.cleanup();
    assert_no_cgroups(&own);
}
