//! Concurrent runners of root on one machine.

use std::thread;

use oci_hooks_testsupport::leftovers::LeftoverSnapshot;
use oci_hooks_testsupport::threads::repeat_during;

use crate::runner::setup::{runner, shell_step, with_each_runtime};

#[test]
fn constant_pruning_does_not_affect_running_steps() {
    with_each_runtime("", |installation| {
        let before = LeftoverSnapshot::take(installation);
        let job = |number: usize| {
            let mut runner = runner(installation, &format!("runner-{number}"));
            // Containers without a worker would be considered abandoned.
            runner.run_through_worker();
            for _ in 0..6 {
                let (ended, _) = runner.container_step(shell_step("echo undisturbed"));
                assert!(ended.success().stdout().ends_with("undisturbed\n"));
            }
        };
        let prune = || drop(installation.admin(&["prune"]).success());
        repeat_during(prune, || {
            thread::scope(|scope| {
                for number in 0..3 {
                    scope.spawn(move || job(number));
                }
            });
        });
        before.check_live(installation, "a job");
    });
}
