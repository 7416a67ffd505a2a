//! Containers in the container of a job whose user is not root, where the policy allows them.

use serde_json::json;

use crate::setup::{UsersRunner, Who, with_each};
use crate::support::github_runner::merge;

/// The policy with buildah, podman and all that they need from this machine.
const MACHINE: &str = "[policy]\nbind-mounts = [\"/usr\"]\n";

/// Starts a job whose container has the programs of this machine.
fn prepare(runner: &mut UsersRunner<'_>) {
    let container = runner.job_container("test/machine:1");
    runner.prepare(merge(container, json!({"createOptions": "-v /usr:/usr:ro"})), &[]);
}

/// Builds an image and runs a container of it.
const BUILD_AND_RUN: &str = "
    mkdir /tmp/context; cd /tmp/context; cp /usr/bin/busybox .
    printf 'FROM scratch\nCOPY busybox /bin/sh\nRUN echo built >/made\n' >Dockerfile
    buildah bud --quiet --isolation chroot --tag inner . >&2
    podman run --rm inner sh -c 'read -r made </made; echo \"$made\"'
    podman run --rm --network none --pid private --uts private --ipc private inner sh -c 'echo $$'";

#[test]
fn programs_in_a_step_build_and_run_containers_where_the_policy_allows_it() {
    with_each(&Who::ROOTLESS, &format!("{MACHINE}nesting = true\n"), |installation| {
        let mut runner = installation.runner("runner-1");
        prepare(&mut runner);
        if installation.has_ids() {
            assert_eq!(runner.run(BUILD_AND_RUN).success().stdout(), "built\n1\n");
        } else {
            // buildah and podman let processes leave groups, which nobody may without subordinate ids.
            let script = "unshare -rm sh -c 'mount -t tmpfs tmpfs /tmp && echo mounted'";
            assert_eq!(runner.run(script).success().stdout(), "mounted\n");
        }
        for denied in [
            "echo core >/proc/sys/kernel/core_pattern",
            "echo b >/proc/sysrq-trigger",
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
    with_each(&Who::ROOTLESS, MACHINE, |installation| {
        let mut runner = installation.runner("runner-1");
        prepare(&mut runner);
        let ended = runner.run("unshare -U true 2>/dev/null");
        assert!(ended.status.code() == Some(1), "{}", ended.log());
        let setting = "`nesting = true` under [policy] in ";
        assert!(ended.log().contains(setting), "{}", ended.log());
        runner.cleanup();
    });
}
