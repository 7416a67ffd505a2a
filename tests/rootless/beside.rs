//! Jobs beside each other: of two users, of one user, with one that is killed among them.

use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::setup::{UsersRunner, Who, redis, shell_step, with_each};
use crate::support::by_user::ByUser;
use crate::support::hub::{Name, Registry};
use crate::support::leftovers::{Installed as _, Snapshot};
use crate::support::runtime::Runtime;
use crate::support::world::{Ids, World};

const RUNNERS: usize = 8;
const KILLED: usize = 3;

#[test]
fn eight_jobs_at_once_do_not_notice_that_one_is_killed() {
    with_each(&Who::ROOTLESS, "", |installation| {
        let before = Snapshot::take(installation);
        thread::scope(|scope| {
            for number in 0..RUNNERS {
                scope.spawn(move || match number {
                    KILLED => killed(installation),
                    _ => job(&mut installation.runner(&format!("runner-{number}")), number),
                });
            }
        });
        before.check_live(installation, "jobs at once");
        let jobs = installation.run_directory().join("jobs");
        let left =
            installation.host().shell(&format!("ls -A {} 2>/dev/null || true", jobs.display()));
        assert!(left.lines().all(|name| name.ends_with(".lock")), "{left}");
    });
}

/// Names are per user: a runner of one is not that of another, however it is called.
#[test]
fn two_users_have_runners_of_one_name() {
    for runtime in Runtime::ALL {
        let world = World::new();
        let _hub = Registry::start(world.host(), Name::Hub, None);
        let users = [Ids::Ranges, Ids::Ranges, Ids::None].map(|ids| world.user(ids));
        let installations = [0, 1, 2].map(|at| ByUser::new(&world, Some(&users[at]), runtime, ""));
        let before = Snapshot::take(&installations[0]);
        let mut runners =
            installations.each_ref().map(|installation| installation.runner("runner-1"));
        for (number, runner) in runners.iter_mut().enumerate() {
            runner.prepare(runner.job_container("node:22"), &[redis()]);
            runner.run(&format!("echo {number} >/number; echo {number} >number")).success();
        }
        for (number, runner) in runners.iter_mut().enumerate() {
            let seen = runner.run("cat /number number").success().stdout();
            assert_eq!(seen, format!("{number}\n{number}\n"));
        }
        // Nobody ends another's, not even with everything that prune may take.
        runners[0].cleanup();
        installations[0].admin(&["prune", "--all"]).success();
        for (number, runner) in runners.iter_mut().enumerate().skip(1) {
            let seen =
                runner.run("cat /number; printf 'PING\\r\\nQUIT\\r\\n' | nc -w 5 redis 6379");
            assert_eq!(seen.success().stdout(), format!("{number}\n+PONG\r\n"));
            runner.cleanup();
        }
        before.check_live(&installations[0], "jobs of three users");
    }
}

/// Root may have jobs on the same machine.
#[test]
fn root_and_a_user_do_not_see_each_others_jobs() {
    let world = World::new();
    let _hub = Registry::start(world.host(), Name::Hub, None);
    let user = world.user(Ids::Ranges);
    let installations = [None, Some(&user)].map(|who| ByUser::new(&world, who, Runtime::Runc, ""));
    let mut runners = installations.each_ref().map(|installation| installation.runner("runner-1"));
    for runner in &mut runners {
        runner.prepare(runner.job_container("node:22"), &[redis()]);
    }
    let records = |installation: &ByUser<'_>| {
        let answer = installation.admin(&["ps", "--format", "json"]).success();
        answer.matches("redis").count()
    };
    for installation in &installations {
        assert_ne!(records(installation), 0);
    }
    runners[0].cleanup();
    installations[0].admin(&["prune"]).success();
    job_goes_on(&mut runners[1], 1);
    runners[1].cleanup();
    assert_eq!(records(&installations[1]), 0);
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
    let ping = format!("echo {number}; printf 'PING\\r\\nQUIT\\r\\n' | nc -w 5 redis 6379");
    assert_eq!(runner.run(&ping).success().stdout(), format!("{number}\n+PONG\r\n"));
}

fn killed(installation: &ByUser<'_>) {
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
    runner.cleanup();
}
