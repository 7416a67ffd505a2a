//! Nested containers in root's job containers: signals, and the host's user namespace.

use oci_hooks_testsupport::github_runner::{GithubRunner, merge, shell_step};
use rustix::process::Signal;
use serde_json::json;

use crate::runner::setup::{runner, with_each_runtime};

/// Policy that permits mounting `/usr` with buildah, podman and their dependencies.
const MACHINE: &str = "[policy]\nbind-mounts = [\"/usr\"]\n";

/// Starts a job whose container has the programs of this machine.
fn prepare(runner: &mut GithubRunner<'_>) {
    let container = runner.job_container("test/machine:1");
    runner.prepare(merge(container, json!({"createOptions": "-v /usr:/usr:ro"})), &[]);
}

/// Prints `told` at the first signal. At the second, prints whether a nested container still runs, whose
/// first process handles no signal.
const REPORT_NESTED: &str = "
    unshare --user --map-root-user --pid --fork sleep 1000 & outer=$!
    until nested=$(cat /proc/$outer/task/$outer/children) && [ $nested ]; do :; done
    report() { [ $told ] || { told=yes; echo told; return; }; kill -0 $nested && echo nested lives; exit 5; }
    trap report INT
    echo started
    while :; do wait; done";

#[test]
fn nested_containers_of_a_step_that_handles_signals_are_its_own_business() {
    with_each_runtime(&format!("{MACHINE}nesting = true\n"), |installation| {
        let mut runner = runner(installation, "runner-1");
        prepare(&mut runner);
        let machine = json!({"image": "test/machine:1", "createOptions": "-v /usr:/usr:ro"});
        let mut call = runner.start_container_step(merge(shell_step(REPORT_NESTED), machine));
        for line in ["started", "told"] {
            call.wait_for_line(line).signal(Signal::INT);
        }
        let ended = call.wait().code(5);
        assert_eq!(ended.stdout(), "started\ntold\nnested lives\n", "{}", ended.log());
        runner.cleanup();
    });
}

#[test]
fn nesting_grants_host_root_nothing_more() {
    let settings = format!("{MACHINE}nesting = true\n[security]\nuser-namespace = \"host\"\n");
    with_each_runtime(&settings, |installation| {
        let mut runner = runner(installation, "runner-1");
        let container = runner.job_container("test/machine:1");
        let container = merge(container, json!({"createOptions": "-v /usr:/usr:ro"}));
        let args = json!({"container": container, "services": []});
        let ended = runner.call("prepare_job", args).success();
        runner.keep_state(&ended);
        assert!(ended.log().contains("`nesting` under [policy]"), "{}", ended.log());
        runner.run("unshare -U true 2>/dev/null && exit 9; test -c /proc/keys || exit 8").success();
        runner.cleanup();
    });
}
