//! A full disk: the error names the directory and what to do, nothing is left behind, and the next job runs
//! once there is room.

use oci_hooks_testsupport::github_runner::{GithubRunner, merge};
use oci_hooks_testsupport::installation::HookInstallation;
use serde_json::json;

use crate::runner::setup::{runner, shell_step, with_each_runtime};

/// A volume filled from a directory of the image that is larger than the free space.
const FILLED: &str = "-v full:/bin";

/// A call that fails, and returns its error message.
type FailingCall<'a> = &'a dyn Fn(&GithubRunner<'_>) -> String;

#[test]
fn volume_that_cannot_be_filled_is_named_and_leaves_nothing() {
    with_each_runtime("", |installation| {
        let store = installation.store().display().to_string();
        let host = installation.host();
        host.shell(&format!("mkdir -p {store}; mount -t tmpfs -o mode=700 tmpfs {store}"));
        let mut runner = runner(installation, "runner-1");
        job(&mut runner, "");
        let before = files(installation);
        let prepare = |runner: &GithubRunner<'_>| {
            let job = merge(runner.job_container("node:22"), json!({"createOptions": FILLED}));
            runner.start("prepare_job", json!({"container": job, "services": []})).wait().failure()
        };
        let step = |runner: &GithubRunner<'_>| {
            let step = merge(shell_step("true"), json!({"createOptions": FILLED}));
            runner.start_container_step(step).wait().failure()
        };
        let calls: [(&str, FailingCall<'_>); 2] =
            [("prepare_job", &prepare), ("run_container_step", &step)];
        for (name, call) in calls {
            // Room for the first records, and little more.
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

fn job(runner: &mut GithubRunner<'_>, options: &str) {
    let container = merge(runner.job_container("node:22"), json!({"createOptions": options}));
    runner.prepare(container, &[]);
    runner.run("cat /bin/busybox >/dev/null").success();
    let step = merge(shell_step("true"), json!({"createOptions": options}));
    runner.container_step(step).0.success();
    runner.cleanup();
}

/// Returns the files in the store and the run directory, except locks.
fn files(installation: &HookInstallation<'_>) -> String {
    installation.host().shell(&format!(
        "find {} {} ! -name '*.lock' ! -path '*/volumes*' -o -path '*/volumes/*/*' ! -name '*.lock' | sort",
        installation.store().display(),
        installation.run_directory().display(),
    ))
}
