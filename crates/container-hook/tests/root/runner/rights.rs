//! Permissions of a step, and options that are denied.

use std::os::unix::net::UnixListener;

use oci_hooks_testsupport::github_runner::{merge, volume};
use oci_hooks_testsupport::leftovers::LeftoverSnapshot;
use serde_json::json;

use crate::runner::setup::{redis, runner, shell_step, with_both_runtimes, with_each_runtime};

#[test]
fn steps_have_few_privileges() {
    with_both_runtimes("", |installation| {
        let outside = installation.host().shell("readlink /proc/self/ns/*");
        let mut runner = runner(installation, "runner-1");
        runner.prepare(runner.job_container("node:22"), &[]);
        let seen =
            runner.run("cat /proc/self/status; for n in /proc/self/ns/*; do readlink $n; done");
        let seen = seen.success().stdout();
        // Docker's 14 default capabilities, without `CAP_MKNOD`.
        for line in [
            // With a user namespace; see `escapes` for the consequences.
            "NoNewPrivs:\t0\n",
            "Seccomp:\t2\n",
            "CapInh:\t0000000000000000\n",
            "CapAmb:\t0000000000000000\n",
            "CapEff:\t00000000a00425fb\n",
            "CapBnd:\t00000000a00425fb\n",
        ] {
            assert!(seen.contains(line), "{line:?} is not in {seen}");
        }
        for kind in ["ipc", "uts", "pid", "mnt", "net", "cgroup"] {
            let namespace = outside.lines().find(|line| line.starts_with(kind)).unwrap();
            assert!(!seen.contains(namespace), "the container is in the host's {kind} namespace");
        }
        let denied = "! echo x >/proc/sysrq-trigger && ! echo x >/proc/sys/kernel/hostname && \
                      ! mkdir /sys/x && ! mount -t tmpfs x /tmp && ! head -c 1 /proc/kcore && \
                      ! unshare -m true && ! chroot /proc/1/root/no && echo denied";
        assert_eq!(runner.run(denied).success().stdout(), "denied\n");
        assert_eq!(runner.run("cat /proc/timer_list /proc/keys | wc -c").stdout(), "0\n");
        let limit = "m=/sys/fs/cgroup; cat $m/pids.max $m/pids/pids.max 2>/dev/null";
        let limit = runner.run(limit).stdout();
        assert!(limit.trim().parse::<u64>().is_ok(), "no limit of processes: {limit:?}");
        runner.cleanup();
    });
}

#[test]
fn dangerous_options_are_denied_by_name() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        for options in [
            "--privileged",
            "--pid=host",
            "--network=host",
            "--uts=host",
            "--cgroupns=host",
            "-v /:/host",
            "--volume=/etc:/etc-of-the-host:ro",
            "--mount type=bind,src=/,dst=/host",
            "--device /dev/kmsg",
            "--device-cgroup-rule 'c *:* rwm'",
            "--security-opt seccomp=unconfined",
            "--security-opt apparmor=other",
            "--security-opt systempaths=unconfined",
            "--cap-add SYS_ADMIN",
            "--cap-add=ALL",
            "--gpus all",
            "--oom-kill-disable",
            "--runtime other",
            "--cgroup-parent /",
            "--volumes-from x",
            "--pid=container:x",
        ] {
            let container =
                merge(runner.job_container("node:22"), json!({"createOptions": options}));
            let args = json!({"container": container, "services": []});
            let ended = runner.call("prepare_job", args);
            assert!(!ended.status.success(), "{options} is allowed\n{}", ended.log());
            let said = ended.failure();
            // The error names a volume as such, whether from `-v`, `--mount` or `volumes:`.
            let name = match options.split([' ', '=']).next().unwrap() {
                "-v" | "--volume" | "--mount" => "volume /",
                name => name,
            };
            assert!(said.contains(name), "{options}: {said}");
        }
        let volumes = json!([volume("/etc", "/etc-of-the-host", true)]);
        let container =
            merge(runner.job_container("node:22"), json!({"userMountVolumes": volumes}));
        let args = json!({"container": container, "services": []});
        assert!(runner.call("prepare_job", args).failure().contains("/etc"));
        runner.cleanup();
    });
}

#[test]
fn docker_socket_is_omitted_with_a_message() {
    with_each_runtime("", |installation| {
        let host = installation.host();
        let _socket = host.enter(|| UnixListener::bind("/run/docker.sock")).unwrap();
        let mut runner = runner(installation, "runner-1");
        let args = json!({"container": runner.job_container("node:22"), "services": []});
        let ended = runner.call("prepare_job", args).success();
        assert!(ended.log().contains("docker.sock"), "{}", ended.log());
        runner.run("test ! -e /var/run/docker.sock && test ! -e /run/docker.sock").success();
        let (ended, _) = runner.container_step(shell_step("test ! -e /var/run/docker.sock"));
        assert!(!ended.success().log().contains("docker.sock"), "it is said once in a job");
        runner.cleanup();
    });
}

#[test]
fn invalid_users_are_errors() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        for tag in ["large", "negative", "unknown", "group"] {
            let step = merge(shell_step("id"), json!({"image": format!("evil/user:{tag}")}));
            let said = runner.container_step(step).0.failure();
            assert!(!said.contains("uid=0"), "{tag}: {said}");
        }
        for user in ["4294967296", "-1", "nobody-here", "0:no-such-group", "0:4294967296"] {
            let options = format!("--user={user}");
            let container =
                merge(runner.job_container("node:22"), json!({"createOptions": options}));
            let args = json!({"container": container, "services": []});
            let said = runner.call("prepare_job", args).failure();
            let word = user.trim_start_matches("0:");
            assert!(said.contains(word), "{user}: {said}");
        }
        runner.cleanup();
    });
}

#[test]
fn denied_requests_leave_nothing() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        runner.prepare(runner.job_container("node:22"), &[]);
        runner.cleanup();
        let step = merge(shell_step("id"), json!({"image": "evil/user:unknown"}));
        runner.container_step(step.clone()).0.failure();
        let before = LeftoverSnapshot::take(installation);
        runner.container_step(step).0.failure();
        let container =
            merge(runner.job_container("node:22"), json!({"createOptions": "--privileged"}));
        let args = json!({"container": container, "services": [redis()]});
        runner.call("prepare_job", args).failure();
        before.check(installation, "what is refused");
    });
}
