//! Nested containers in a job's container, if the policy permits them.

use oci_hooks_testsupport::github_runner::merge;
use serde_json::json;

use crate::rootless::setup::{UserKind, UsersRunner, with_each};

/// Policy that permits mounting `/usr` with buildah, podman and their dependencies.
const MACHINE: &str = "[policy]\nbind-mounts = [\"/usr\"]\n";

/// Starts a job whose container has the programs of this machine.
fn prepare(runner: &mut UsersRunner<'_>) {
    let container = runner.job_container("test/machine:1");
    runner.prepare(merge(container, json!({"createOptions": "-v /usr:/usr:ro"})), &[]);
}

/// Builds an image and runs a container from it.
const BUILD_AND_RUN: &str = "
    mkdir /tmp/context; cd /tmp/context; cp /usr/bin/busybox .
    printf 'FROM scratch\nCOPY busybox /bin/sh\nRUN echo built >/made; exec -a chown sh 33:33 /made\n' >Dockerfile
    buildah bud --quiet --isolation chroot --tag inner . >&2
    podman run --rm inner sh -c 'read -r made </made; echo \"$made, run as $(exec -a id sh -u)\"'
    podman run --rm --network none --pid private --uts private --ipc private inner sh -c 'echo $$'";

#[test]
fn nested_containers_run_if_the_policy_allows_nesting() {
    with_each(&UserKind::ALL, &format!("{MACHINE}nesting = true\n"), |installation| {
        let mut runner = installation.runner("runner-1");
        prepare(&mut runner);
        if installation.has_ids() {
            assert_eq!(runner.run(BUILD_AND_RUN).success().stdout(), "built, run as 0\n1\n");
        } else {
            // buildah and podman let processes drop groups, which requires subordinate ids.
            let script = "unshare -rm sh -c 'mount -t tmpfs tmpfs /tmp && echo mounted'";
            assert_eq!(runner.run(script).success().stdout(), "mounted\n");
        }
        // Actions that are denied to all ordinary users of the host stay denied.
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
fn user_namespaces_are_denied_without_nesting() {
    with_each(&UserKind::ALL, MACHINE, |installation| {
        let mut runner = installation.runner("runner-1");
        prepare(&mut runner);
        let setting = "`nesting = true` under [policy] in ";
        for denied in ["unshare -U true 2>/dev/null", "exec buildah bud . 2>&1"] {
            let ended = runner.run(denied);
            let is_denied = ended.status.code() != Some(0) && ended.log().contains(setting);
            assert!(is_denied, "{denied}: {}", ended.log());
        }
        let ended = runner.run("exit 3").code(3);
        assert!(!ended.log().contains(setting), "{}", ended.log());
        runner.cleanup();
    });
}
