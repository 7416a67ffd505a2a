//! A runner that is not root: `install --sudo`, by the real sudo.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use serde_json::json;

use crate::setup::{runner, shell_step, with_each_runtime};
use crate::support::github_runner::Runner;
use crate::support::installation::Installation;
use crate::support::leftovers::Snapshot;

/// A user that each system has, and who may do nothing.
const USER: (&str, (u32, u32)) = ("daemon", (1, 1));

fn unprivileged<'a>(installation: &'a Installation<'a>) -> Runner<'a> {
    installation.use_sudo(USER.0, "runner-1");
    let mut runner = runner(installation, "runner-1");
    runner.run_as(USER.1);
    runner
}

#[test]
fn a_runner_that_is_not_root_runs_jobs_by_sudo() {
    with_each_runtime("", |installation| {
        let mut runner = unprivileged(installation);
        let before = Snapshot::take(installation);
        runner.prepare(runner.job_container("node:22"), &[]);
        let ended = runner.run("id -u; echo made >made; echo oops >&2; exit 7").code(7);
        assert_eq!((ended.stdout().as_str(), ended.stderr().as_str()), ("0\n", "oops\n"));
        let made = fs::metadata(runner.workspace().join("made")).unwrap();
        assert_eq!((made.uid(), made.gid()), USER.1);
        let (ended, outputs) =
            runner.container_step(shell_step("cat made; echo by=step >>$GITHUB_OUTPUT"));
        assert!(ended.success().stdout().ends_with("made\n"));
        assert_eq!(outputs["by"], "step");
        runner.cleanup();
        before.check_live(installation, "a job by sudo");
    });
}

#[test]
fn signals_get_past_sudo_and_nothing_outlives_the_near_end() {
    with_each_runtime("", |installation| {
        let mut runner = unprivileged(installation);
        runner.prepare(runner.job_container("node:22"), &[]);
        let before = Snapshot::take(installation);
        let polite = "trap 'echo told; exit 5' INT TERM\necho started\nwhile :; do sleep 0.1; done";
        let mut call = runner.start_run(polite);
        call.wait_for_line("started");
        let (ended, signals) = call.cancel();
        assert_eq!((ended.stdout().as_str(), signals), ("started\ntold\n", 1));
        before.check_live(installation, "a cancelled step");

        let mut call = runner.start_container_step(shell_step("echo started; exec sleep 1000"));
        call.wait_for_line("started");
        call.kill_after(Duration::ZERO);
        before.check_live(installation, "a step whose near end was killed");
        runner.cleanup();
    });
}

#[test]
fn sudo_allows_the_hook_and_nothing_else() {
    with_each_runtime("", |installation| {
        let runner = unprivileged(installation);
        let program = installation.program().display().to_string();
        for line in [
            format!("sudo -n {program} images"),
            format!("sudo -n {program} as-root --config /tmp/x"),
            format!("sudo -n {program}"),
            format!("sudo -n LD_PRELOAD=/tmp/x {program} as-root"),
            "sudo -n true".to_owned(),
        ] {
            let script = format!("setpriv --reuid 1 --regid 1 --clear-groups {line} 2>&1 || true");
            let said = installation.host().shell(&script);
            assert!(
                said.contains("password is required") || said.contains("not allowed"),
                "{line}: {said}"
            );
        }
        let request = json!({"command": "images"}).to_string().into_bytes();
        runner.start_raw(request, None).wait().failure();
    });
}
