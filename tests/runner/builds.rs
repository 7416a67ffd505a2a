//! Dockerfile actions whose directories are not what they should be.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::setup::{Canary, runner, with_each_runtime, write};
use crate::support::github_runner::{Runner, built_step};
use crate::support::installation::Installation;
use crate::support::leftovers::Snapshot;
use crate::support::program;

/// Checks that nothing is left of what was built from.
#[track_caller]
pub(crate) fn no_context_of(installation: &Installation<'_>, uid: u32) {
    let dir = installation.store().join(format!("buildah/{uid}"));
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["storage"]);
}

/// Checks that nothing is left of killed builds but what buildah keeps for the next ones.
#[track_caller]
pub(crate) fn nothing_of_builds(installation: &Installation<'_>, uid: u32) {
    let own = installation.store().join(format!("buildah/{uid}"));
    let left = installation.host().shell(&format!(
        "cd {} 2>/dev/null || exit 0; find . -mindepth 1 -maxdepth 1 ! -name storage; \
         ! test -e storage || cd storage; \
         find . -mindepth 1 -maxdepth 1 ! -name storage ! -name bases ! -name store ! -name '.store.*'; \
         find . -path '*-containers/*' -type d; find . -name '*incomplete*' -o -path '*/tempdirs/*'",
        own.display()
    ));
    assert_eq!(left, "");
}

#[test]
fn a_context_with_what_no_build_can_use_is_refused_by_name() {
    with_each_runtime("", |installation| {
        let host = installation.host();
        let canary = Canary::new(host);
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
            no_context_of(installation, 0);
        }
        // What a job can replace leads nowhere else.
        symlink(&outside, runner.workspace().join("swapped")).unwrap();
        let dockerfile = runner.workspace().join("swapped/Dockerfile");
        runner.container_step(built_step(&dockerfile)).0.failure();
        canary.check("builds");
    });
}

#[test]
fn a_build_sees_its_directory_as_it_was_and_the_repository_in_it() {
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
        no_context_of(installation, 0);
        write(action.join(".git/HEAD"), "two\n");
        let ended = runner.container_step(step).0.success();
        assert!(ended.stdout().ends_with("two\n750 0:0\n/etc/shadow\n"), "{}", ended.log());
    });
}

#[test]
fn a_cancelled_build_ends_in_time_and_leaves_nothing() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        let dockerfile = runner.workspace().join("Dockerfile");
        let built = |runner: &mut Runner<'_>, script: &str| {
            write(&dockerfile, &format!("FROM alpine:3.20\nRUN {script}\n"));
            runner.start_container_step(built_step(&dockerfile))
        };
        built(&mut runner, "echo first").wait().success();
        runner.cleanup();
        let before = Snapshot::take(installation);
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
            nothing_of_builds(installation, 0);
            before.check_live(installation, script);
        }
        built(&mut runner, "echo the next").wait().success();
        runner.cleanup();
    });
}

#[test]
fn what_a_build_leaves_running_ends_with_it() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        let dockerfile = runner.workspace().join("Dockerfile");
        write(
            &dockerfile,
            "FROM alpine:3.20\nRUN setsid sleep 1000 >/dev/null 2>&1 </dev/null &\n",
        );
        let before = Snapshot::take(installation);
        runner.container_step(built_step(&dockerfile)).0.success();
        runner.cleanup();
        before.check_live(installation, "a build");
    });
}

/// Here root of the containers of jobs is root of the machine, and that of a build is not.
#[test]
fn a_build_has_users_of_its_own_whatever_containers_have() {
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
fn limits_that_a_build_met_are_in_the_log_of_the_step() {
    // In version 1 nothing remembers what happened in a cgroup that is gone.
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
fn syntax_that_buildah_lacks_is_named() {
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
