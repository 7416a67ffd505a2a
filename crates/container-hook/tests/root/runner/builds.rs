//! Dockerfile actions of root: contexts, users, limits and syntax.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use oci_hooks_testsupport::github_runner::{GithubRunner, built_step};
use oci_hooks_testsupport::installation::HookInstallation;
use oci_hooks_testsupport::leftovers::LeftoverSnapshot;
use oci_hooks_testsupport::program;

use crate::runner::setup::{HostCanary, runner, with_each_runtime, write};

#[track_caller]
pub(crate) fn check_no_build_leftovers(installation: &HookInstallation<'_>) {
    let left = fs::read_dir(installation.store().join("buildah")).into_iter().flatten().flatten();
    assert_eq!(left.map(|entry| entry.file_name()).collect::<Vec<_>>(), Vec::<OsString>::new());
}

#[test]
fn unusable_files_of_a_context_are_rejected_by_name() {
    with_each_runtime("", |installation| {
        let host = installation.host();
        let canary = HostCanary::new(host);
        let mut runner = runner(installation, "runner-1");
        let outside = host.path().join("outside");
        write(outside.join("Dockerfile"), "FROM alpine:3.20\n");
        for (name, make, expected) in [
            ("fifo", "mkfifo src/pipe", "fifo/src/pipe is a FIFO or a device"),
            ("device", "mknod src/zero c 1 5", "device/src/zero is a FIFO or a device"),
            (
                "endless",
                "rm Dockerfile; mknod Dockerfile c 1 5",
                "Dockerfile is not a regular file",
            ),
            ("link", "ln -sf /etc/shadow Dockerfile", "Dockerfile is not a regular file"),
            (
                "deep",
                "mkdir -p $(yes d/ | head -n 300 | tr -d '\\n')",
                "directories deep, the limit",
            ),
            ("large", "truncate -s 1T src/file", "the limit for a Dockerfile action"),
        ] {
            let dir = runner.workspace().join(name);
            write(dir.join("Dockerfile"), "FROM alpine:3.20\n");
            host.shell(&format!("cd {}; mkdir src; {make}", dir.display()));
            let said = runner.container_step(built_step(&dir.join("Dockerfile"))).0.failure();
            assert!(said.contains(expected), "{name}: {said}");
            check_no_build_leftovers(installation);
        }
        // Links that a job can replace are not followed.
        symlink(&outside, runner.workspace().join("swapped")).unwrap();
        let dockerfile = runner.workspace().join("swapped/Dockerfile");
        runner.container_step(built_step(&dockerfile)).0.failure();
        canary.check("builds");
    });
}

#[test]
fn build_sees_a_snapshot_of_its_directory_with_its_repository() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        let action = runner.work().join("_actions/octo/docker-action/v1");
        write(
            action.join("Dockerfile"),
            "FROM alpine:3.20\nCOPY . /action\nRUN ! touch /build/context/x 2>/dev/null\n\
             ENTRYPOINT [\"sh\", \"-c\", \"cd /action; cat .git/HEAD; ./run; readlink link\"]\n",
        );
        write(action.join(".git/HEAD"), "one\n");
        write(action.join("run"), "#!/bin/sh\necho $(stat -c '%a %u:%g' run)\n");
        symlink("/etc/shadow", action.join("link")).unwrap();
        installation.host().shell(&format!("chmod 750 {}/run", action.display()));
        let step = built_step(&action.join("Dockerfile"));
        let ended = runner.container_step(step.clone()).0.success();
        assert!(ended.stdout().ends_with("one\n750 0:0\n/etc/shadow\n"), "{}", ended.log());
        check_no_build_leftovers(installation);
        write(action.join(".git/HEAD"), "two\n");
        let ended = runner.container_step(step).0.success();
        assert!(ended.stdout().ends_with("two\n750 0:0\n/etc/shadow\n"), "{}", ended.log());
    });
}

#[test]
fn cancelled_build_ends_in_time_and_leaves_nothing() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        let dockerfile = runner.workspace().join("Dockerfile");
        let built = |runner: &mut GithubRunner<'_>, script: &str| {
            write(&dockerfile, &format!("FROM alpine:3.20\nRUN {script}\n"));
            runner.start_container_step(built_step(&dockerfile))
        };
        built(&mut runner, "echo first").wait().success();
        runner.cleanup();
        let before = LeftoverSnapshot::take(installation);
        for script in [
            "echo started; sleep 1000",
            "echo started; sleep 1000 & sleep 1000",
            "trap '' INT TERM; echo started; while :; do sleep 1; done",
            "(trap '' INT TERM HUP; setsid sleep 1000 >/dev/null 2>&1 &); echo started; sleep 1000",
        ] {
            let mut call = built(&mut runner, script);
            call.wait_for_line("started");
            let (ended, signals) = call.cancel();
            assert!(!ended.status.success() && signals < 3, "{signals} signals: {}", ended.log());
            runner.cleanup();
            check_no_build_leftovers(installation);
            before.check_live(installation, script);
        }
        built(&mut runner, "echo the next").wait().success();
        runner.cleanup();
    });
}

#[test]
fn background_processes_of_a_build_end_with_it() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        let dockerfile = runner.workspace().join("Dockerfile");
        write(
            &dockerfile,
            "FROM alpine:3.20\nRUN setsid sleep 1000 >/dev/null 2>&1 </dev/null &\n",
        );
        let before = LeftoverSnapshot::take(installation);
        runner.container_step(built_step(&dockerfile)).0.success();
        runner.cleanup();
        before.check_live(installation, "a build");
    });
}

/// Job containers use the host's user namespace here, builds still do not.
#[test]
fn build_has_its_own_users_whatever_containers_have() {
    with_each_runtime("[security]\nuser-namespace = \"host\"\n", |installation| {
        let mut runner = runner(installation, "runner-1");
        let dockerfile = runner.workspace().join("Dockerfile");
        write(
            &dockerfile,
            "FROM alpine:3.20\nRUN read -r inside outside count </proc/self/uid_map && test $outside != 0\n\
             ENTRYPOINT [\"sh\", \"-c\", \"read -r inside outside count </proc/self/uid_map; echo $outside\"]\n",
        );
        let ended = runner.container_step(built_step(&dockerfile)).0.success();
        assert!(ended.stdout().ends_with("\n0\n"), "{}", ended.log());
    });
}

#[test]
fn limits_reached_by_a_build_are_in_the_step_log() {
    // With cgroup v1 the events of a removed cgroup are lost.
    let is_remembered = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    with_each_runtime("[limits]\nmemory = \"256MiB\"\n", |installation| {
        let mut runner = runner(installation, "runner-1");
        let dockerfile = runner.workspace().join("Dockerfile");
        write(&dockerfile, "FROM alpine:3.20\nRUN x=12345678; while :; do x=$x$x; done\n");
        let said = runner.container_step(built_step(&dockerfile)).0.failure();
        let line = format!("::warning::the build of {} ran out of memory: ", dockerfile.display());
        assert_eq!(said.contains(&line), is_remembered, "{said}");
    });
}

#[test]
fn syntax_missing_in_buildah_is_named() {
    with_each_runtime("", |installation| {
        let version = program::run(Command::new("buildah").arg("--version")).success();
        let minor: u32 = version.split('.').nth(1).unwrap().parse().unwrap();
        let mut runner = runner(installation, "runner-1");
        let dockerfile = runner.workspace().join("Dockerfile");
        write(
            &dockerfile,
            "FROM alpine:3.20\nRUN <<EOF\necho one >/made\nEOF\nENTRYPOINT [\"cat\", \"/made\"]\n",
        );
        let ended = runner.container_step(built_step(&dockerfile)).0;
        if minor >= 33 {
            assert!(ended.success().stdout().ends_with("one\n"));
            return;
        }
        let said = ended.failure();
        let expected = "Line 2 of the Dockerfile begins a here-document";
        assert!(said.contains(expected) && said.contains("1.33.0 or newer"), "{said}");
    });
}
