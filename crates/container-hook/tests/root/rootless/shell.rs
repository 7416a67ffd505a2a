//! `container-hook shell`.

use oci_hooks_testsupport::by_user::UserInstallation;
use oci_hooks_testsupport::github_runner::{container, merge};
use oci_hooks_testsupport::leftovers::InstalledProgram as _;
use oci_hooks_testsupport::runtime::TestRuntime;
use oci_hooks_testsupport::world::UserIds;
use serde_json::json;

use crate::rootless::setup::{UserKind, redis, with_each};

#[test]
fn a_shell_runs_in_the_container_or_a_service_of_a_job() {
    with_each(&UserKind::ROOT_AND_RANGES, "", |installation| {
        let log = installation.admin(&["shell", "--", "true"]).failure();
        assert!(log.contains("no such job or service is running"), "{log}");
        let mut runner = installation.runner("runner-1");
        let mut job = runner.job_container("node:22");
        job = merge(job, json!({"createOptions": "--name build -e FROM_JOB=yes"}));
        let nginx =
            merge(container("nginx:alpine"), json!({"createOptions": "--network-alias web"}));
        runner.prepare(job, &[redis(), nginx]);
        let script = "echo $FROM_JOB in $(pwd); echo err >&2; cat; exit 7";
        let run = |words: &[&str]| installation.admin(&[&["shell"], words].concat());
        for job in [&["--"][..], &["build", "--"], &["web", "--"]] {
            let ended = run(&[job, &["sh", "-c", script]].concat());
            assert_eq!(ended.status.code(), Some(7), "{job:?}: {}", ended.stderr);
            assert_eq!((&*ended.stdout, &*ended.stderr), ("yes in /__w/repo/repo\n", "err\n"));
        }
        let hosts = run(&["--service", "web", "--", "cat", "/etc/hosts"]).success();
        assert!(hosts.contains(" web nginx"), "{hosts}");
        let log = run(&["other", "--", "true"]).failure();
        assert!(log.contains("no such job or service is running"), "{log}");
        runner.cleanup();
    });
}

#[test]
fn the_terminal_of_a_shell_follows_the_size_of_its_users() {
    with_each(&UserKind::ROOT_AND_RANGES, "", |installation| {
        let mut runner = installation.runner("runner-1");
        runner.prepare(runner.job_container("node:22"), &[]);
        let started = runner.workspace().join("started");
        let step = "tty; stty size; touch started; until [ \"$(stty size)\" = '44 55' ]; do :; done; echo resized; \
                    exit 3";
        let program = installation.program();
        let script = format!(
            "stty rows 33 cols 77\n\
             (until [ -e {} ]; do :; done; stty rows 44 cols 55 </dev/tty) &\n\
             {} shell -- sh -c '{}'; echo ended with $?; stty -a | grep -o -w -e -icanon -e icanon",
            started.display(),
            program.display(),
            step.replace('\'', "'\\''")
        );
        // script(1) sends a NUL at the end of its own input, which the terminal may echo.
        let seen = installation.in_terminal(&script).success().replace("^@", "");
        let lines: Vec<_> = seen.lines().map(str::trim_end).collect();
        assert!(lines[0].contains("/dev/pts/"), "{seen}");
        assert_eq!(lines[1..], ["33 77", "resized", "ended with 3", "icanon"], "{seen}");
        runner.cleanup();
    });
}

#[test]
fn a_program_in_a_service_reads_a_pipe_and_does_not_get_the_terminal() {
    with_each(&UserKind::ROOT_AND_RANGES, "", |installation| {
        let mut runner = installation.runner("runner-1");
        runner.prepare(runner.job_container("node:22"), &[redis()]);
        let program = installation.program();
        let script =
            "cat; for stream in 0 1 2; do test -t $stream && echo a terminal; done; exit 3";
        let script = format!(
            "echo input | {} shell --service redis -- sh -c '{script}'; echo ended with $?",
            program.display()
        );
        let seen = installation.in_terminal(&script).success().replace("^@", "");
        let lines: Vec<_> = seen.lines().map(str::trim_end).collect();
        assert_eq!(lines, ["input", "ended with 3"], "{seen}");
        runner.cleanup();
    });
}

#[test]
fn one_of_two_jobs_must_be_named() {
    with_each(&UserKind::ROOT_AND_RANGES, "", |installation| {
        let names = ["one", "two"];
        let mut runners = names.map(|name| {
            let mut runner = installation.runner(name);
            let named = json!({"createOptions": format!("--name {name} -e JOB={name}")});
            runner.prepare(merge(runner.job_container("node:22"), named), &[redis()]);
            runner
        });
        for words in [&["shell", "--", "true"][..], &["shell", "--service", "redis", "--", "true"]]
        {
            let log = installation.admin(words).failure();
            assert!(log.contains("several containers match"), "{log}");
            assert!(log.contains("`container-hook ps`") && log.contains("by its id"), "{log}");
        }
        for name in names {
            let words = ["shell", name, "--", "sh", "-c", "echo $JOB"];
            assert_eq!(installation.admin(&words).success(), format!("{name}\n"));
        }
        for runner in &mut runners {
            runner.cleanup();
        }
    });
}

#[test]
fn other_users_cannot_open_a_shell_in_a_job() {
    with_each(&UserKind::ROOT_AND_RANGES, "", |installation| {
        let mut runner = installation.runner("runner-1");
        let named = json!({"createOptions": "--name build"});
        runner.prepare(merge(runner.job_container("node:22"), named), &[redis()]);
        let user = installation.world.user(UserIds::Ranges);
        let other = UserInstallation::new(installation.world, Some(&user), TestRuntime::Crun, "");
        let shell = ["shell", "build", "--", "echo", "reached"];
        let log = other.admin(&shell).failure();
        assert!(log.contains("no such job or service is running"), "{log}");
        // The settings are the user's own, and can name any directory.
        let run = installation.run_directory();
        other.write_settings(&format!("[store]\nrun = {run:?}\n"));
        for words in
            [&shell[..], &["shell", "build", "--service", "redis", "--", "echo", "reached"]]
        {
            let ended = other.admin(words);
            assert!(!ended.status.success() && ended.stdout.is_empty(), "{}", ended.stderr);
            assert!(ended.stderr.contains("Permission denied"), "{}", ended.stderr);
        }
        installation.admin(&shell).success();
        runner.cleanup();
    });
}
