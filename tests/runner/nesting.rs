//! Containers in a job's container, where the policy allows them.

use serde_json::json;

use crate::setup::{runner, with_each_runtime};
use crate::support::github_runner::{Runner, merge};

/// The policy with buildah, podman and all that they need from this machine.
const MACHINE: &str = "[policy]\nbind-mounts = [\"/usr\"]\n";

/// Starts a job whose container has the programs of this machine.
fn prepare(runner: &mut Runner<'_>) {
    let container = runner.job_container("test/machine:1");
    runner.prepare(merge(container, json!({"createOptions": "-v /usr:/usr:ro"})), &[]);
}

/// Builds an image and runs a container of it.
const BUILD_AND_RUN: &str = "
    mkdir /tmp/context; cd /tmp/context; cp /usr/bin/busybox .
    printf 'FROM scratch\nCOPY busybox /bin/sh\nRUN echo built >/made; exec -a chown sh 33:33 /made\n' >Dockerfile
    buildah bud --quiet --isolation chroot --tag inner . >&2
    podman run --rm inner sh -c 'read -r made </made; echo \"$made, run as $(exec -a id sh -u)\"'
    podman run --rm --network none --pid private --uts private --ipc private inner sh -c 'echo $$'";

#[test]
fn programs_in_a_step_build_and_run_containers_where_the_policy_allows_it() {
    with_each_runtime(&format!("{MACHINE}nesting = true\n"), |installation| {
        let mut runner = runner(installation, "runner-1");
        prepare(&mut runner);
        let seen = runner.run(BUILD_AND_RUN).success().stdout();
        assert_eq!(seen, "built, run as 0\n1\n");
        // What nobody on the host may do stays so.
        for denied in [
            "echo core >/proc/sys/kernel/core_pattern",
            "echo b >/proc/sysrq-trigger",
            "cat /proc/kcore",
            "mknod /tmp/disk b 8 0",
            "unshare -r sh -c 'echo core >/proc/sys/kernel/core_pattern'",
            "unshare -rm mknod /tmp/disk b 8 0",
        ] {
            runner.run(&format!("({denied}) >/dev/null 2>&1 && exit 9; true")).success();
        }
        runner.cleanup();
    });
}

#[test]
fn without_leave_no_program_in_a_step_makes_user_namespaces() {
    with_each_runtime(MACHINE, |installation| {
        let mut runner = runner(installation, "runner-1");
        prepare(&mut runner);
        runner.run("unshare -U true 2>/dev/null && exit 9; true").success();
        let setting = "`nesting = true` under [policy] in ";
        let ended = runner.run("exec buildah bud . 2>&1");
        assert!(ended.status.code() != Some(0) && ended.log().contains(setting), "{}", ended.log());
        let ended = runner.run("exit 3");
        assert!(
            ended.status.code() == Some(3) && !ended.log().contains(setting),
            "{}",
            ended.log()
        );
        runner.cleanup();
    });
}

#[test]
fn root_of_the_machine_gets_no_more_by_it() {
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
