//! A disk that is full: what is full and what to do is said, nothing is left, and once there is room the
//! next job runs.

use serde_json::json;

use crate::setup::{runner, shell_step, with_each_runtime};
use crate::support::github_runner::{Runner, merge};
use crate::support::installation::Installation;

/// A place of the image with more in it than there is room.
const FILLED: &str = "-v full:/bin";

/// A call that fails, and what it says.
type Fails<'a> = &'a dyn Fn(&Runner<'_>) -> String;

#[test]
fn a_volume_that_cannot_be_filled_is_named_and_leaves_nothing() {
    with_each_runtime("", |installation| {
        let store = installation.store().display().to_string();
        let host = installation.host();
        host.shell(&format!("mkdir -p {store}; mount -t tmpfs -o mode=700 tmpfs {store}"));
        let mut runner = runner(installation, "runner-1");
        job(&mut runner, "");
        let before = files(installation);
        let prepare = |runner: &Runner<'_>| {
            let job = merge(runner.job_container("node:22"), json!({"createOptions": FILLED}));
            runner.start("prepare_job", json!({"container": job, "services": []})).wait().failure()
        };
        let step = |runner: &Runner<'_>| {
            let step = merge(shell_step("true"), json!({"createOptions": FILLED}));
            runner.start_container_step(step).wait().failure()
        };
        let calls: [(&str, Fails<'_>); 2] =
            [("prepare_job", &prepare), ("run_container_step", &step)];
        for (name, call) in calls {
            // Pages of the records that come first, and not much more.
            host.shell(&format!(
                "mount -o remount,size=$(($(du -sk {store} | cut -f 1) + 200))k {store}"
            ));
            let said = call(&runner);
            assert!(said.contains(&format!("{store}/volumes/")), "{name}: {said}");
            assert!(said.contains("No space left on device"), "{name}: {said}");
            assert!(said.contains("container-hook prune"), "{name}: {said}");
            assert_eq!(files(installation), before, "{name}, before cleanup_job: {said}");
            runner.cleanup();
            assert_eq!(files(installation), before, "{name}");
            host.shell(&format!("mount -o remount,size=1g {store}"));
            job(&mut runner, FILLED);
            host.shell(&format!("rm -r {store}/volumes/*"));
            assert_eq!(host.shell(&format!("ls -A {store}/volumes")), "");
        }
    });
}

/// Runs a job whose container has the options.
fn job(runner: &mut Runner<'_>, options: &str) {
    let container = merge(runner.job_container("node:22"), json!({"createOptions": options}));
    runner.prepare(container, &[]);
    runner.run("cat /bin/busybox >/dev/null").success();
    let step = merge(shell_step("true"), json!({"createOptions": options}));
    runner.container_step(step).0.success();
    runner.cleanup();
}

/// Returns what there is below the store and the run directory but for locks.
fn files(installation: &Installation<'_>) -> String {
    installation.host().shell(&format!(
        "find {} {} ! -name '*.lock' ! -path '*/volumes*' -o -path '*/volumes/*/*' ! -name '*.lock' | sort",
        installation.store().display(),
        installation.run_directory().display(),
    ))
}
