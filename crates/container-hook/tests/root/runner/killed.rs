//! The hook is killed at any phase of any command, and `cleanup_job` finishes its work.

use std::fs;
use std::process::Command;
use std::time::Duration;

use oci_hooks_testsupport::call::RunningCall;
use oci_hooks_testsupport::github_runner::{GithubRunner, built_step, merge};
use oci_hooks_testsupport::host::TestHost;
use oci_hooks_testsupport::hub::{HostRegistry, RegistryName};
use oci_hooks_testsupport::installation::HookInstallation;
use oci_hooks_testsupport::kills::{KillSeries, KillVictim};
use oci_hooks_testsupport::leftovers::{LeftoverSnapshot, containers};
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::TestRuntime;
use serde_json::{Value, json};

use crate::runner::builds::check_no_build_leftovers;
use crate::runner::setup::{
    redis, runner, shell_step, with_both_runtimes, with_each_runtime, write,
};

/// Default number of kills of each command on each runtime.
const KILLS: u32 = 5;

#[test]
fn killed_commands_leave_nothing_after_cleanup() {
    with_each_runtime("", |installation| {
        let mut bystander = runner(installation, "bystander");
        bystander.prepare(bystander.job_container("node:22"), &[redis()]);
        let mut victim = runner(installation, "victim");
        // A complete job first: it pulls the images and measures the duration of each command.
        let took = CommandDurations::measure(&mut victim);
        let mut play = KillSeries::new(installation, KILLS);
        let commands: [(&str, Duration, KillStart<'_>); 5] = [
            ("prepare_job", took.prepare, &|victim, _| {
                let args = json!({"container": filling(victim), "services": [redis()]});
                victim.start("prepare_job", args)
            }),
            ("prepare_job of services", took.prepare, &|victim, _| {
                victim.start("prepare_job", json!({"container": null, "services": [redis()]}))
            }),
            ("run_script_step", took.script, &|victim, _| {
                prepare(victim);
                victim.start_run("sleep 1000")
            }),
            ("run_container_step", took.container, &|victim, _| {
                prepare(victim);
                victim.start_container_step(shell_step("exec sleep 1000"))
            }),
            ("cleanup_job", took.cleanup, &|victim, _| {
                prepare(victim);
                victim.start("cleanup_job", json!({}))
            }),
        ];
        for (name, took, start) in commands {
            play.kill(&mut victim, &KillVictim { name, took, start, finish: &cleanup });
        }
        play.end();
        let pong = bystander.run("printf 'PING\\r\\nQUIT\\r\\n' | nc -w 60 redis 6379");
        assert_eq!(pong.success().stdout(), "+PONG\r\n");
        bystander.cleanup();
    });
}

/// Missing links and processes are tested, because a snapshot waits for the end of additional ones.
#[test]
fn leftovers_of_a_killed_command_are_detected() {
    let host = TestHost::new();
    let installation = HookInstallation::new(&host, TestRuntime::Crun, "");
    host.shell("ip link add left type bridge");
    let mut process = host.spawn(Command::new("sleep").arg("1000"));
    let before = LeftoverSnapshot::take(&installation);
    host.shell("ip link del left");
    process.kill().unwrap();
    process.wait().unwrap();
    let found = before.faults(&installation).0.join("\n");
    for fault in ["a link is missing: \"left:", "a process is missing: \"sleep 1000"] {
        assert!(found.contains(fault), "{found}");
    }

    let mut victim = runner(&installation, "victim");
    let run = installation.run_directory().display().to_string();
    let work = victim.work().display().to_string();
    let leftovers = [
        (format!("mkdir -p {run}/leases; touch {run}/leases/left"), "leases/left"),
        ("touch /tmp/left".to_owned(), "/tmp/left"),
        ("touch /var/tmp/left".to_owned(), "/var/tmp/left"),
        ("touch /run/left".to_owned(), "/run/left"),
        (format!("mkdir -p {work}/_tool; chown 7 {work}/_tool"), "_tool 7:0"),
        (
            "[ -e /run/netns ] || { touch /run/netns; unshare --net=/run/netns true; }".to_owned(),
            "a network namespace is left: net:[",
        ),
        ("nft add table inet left".to_owned(), "a rule is left: \"table inet left"),
    ];
    let start = |victim: &mut GithubRunner<'_>, _| victim.start("cleanup_job", json!({}));
    let finish = |victim: &mut GithubRunner<'_>| {
        victim.cleanup();
        for (left, _) in &leftovers {
            victim.host().shell(left);
        }
    };
    let took = Duration::from_millis(100);
    let command = KillVictim { name: "cleanup_job", took, start: &start, finish: &finish };
    let mut play = KillSeries::new(&installation, 1);
    play.kill(&mut victim, &command);
    let faults = play.into_leftovers().join("\n");
    for (left, fault) in &leftovers {
        assert!(faults.contains(fault), "{left}: {faults}");
    }
}

/// `prune` also handles machines whose runner is gone, where no `cleanup_job` follows.
#[test]
fn prune_removes_leftovers_of_a_vanished_runner() {
    with_both_runtimes("", |installation| {
        // As on a machine with Docker, where jobs need additional firewall rules.
        installation.host().shell("iptables -P FORWARD DROP; ip6tables -P FORWARD DROP");
        CommandDurations::measure(&mut runner(installation, "victim"));
        let before = LeftoverSnapshot::take(installation);
        let mut victim = runner(installation, "gone");
        victim.run_through_worker();
        let args = json!({"container": victim.job_container("node:22"), "services": [redis()]});
        let call = victim.start("prepare_job", args);
        program::wait_until("a container is recorded", || !containers(installation).is_empty());
        // Only the worker is killed; the hook continues.
        call.kill_after(Duration::ZERO);
        installation.wait_for_hooks();
        installation.admin(&["prune"]).success();
        before.check(installation, "prune");
    });
}

/// A runtime dies a moment after the hook that called it.
#[test]
fn half_created_container_is_removed_by_the_next_call() {
    with_both_runtimes("", |installation| {
        let mut victim = runner(installation, "victim");
        prepare(&mut victim);
        victim.cleanup();
        let before = LeftoverSnapshot::take(installation);
        let half = installation.run_directory().join("runtime/0123456789abcdef");
        for is_admin in [false, true] {
            let path = half.display();
            installation.host().shell(&format!(
                "mkdir {path}; mkfifo {path}/exec.fifo; touch {path}_sandbox.lock"
            ));
            if is_admin {
                installation.admin(&["prune"]).success();
            } else {
                victim.cleanup();
            }
            before.check(installation, "a half-made container of the runtime");
        }
    });
}

/// Grandchildren of the hook do not die with it. Here such a process is about to create the container when
/// all others are dead.
#[test]
fn container_creation_is_killed_with_its_job() {
    let host = TestHost::new();
    let _hub = HostRegistry::start(&host, RegistryName::Hub, None);
    let installation = HookInstallation::new(&host, TestRuntime::Crun, "");
    let mut victim = runner(&installation, "victim");
    prepare(&mut victim);
    victim.cleanup();
    let late = host.path().join("late-crun");
    let [waits, go] = ["waits", "go"].map(|name| host.path().join(name));
    host.shell(&format!("mkfifo {}", go.display()));
    program::write_program(
        &late,
        &format!(
            "#!/bin/sh\ncase \" $* \" in *\" run \"*) ;; *) exec {crun} \"$@\" ;; esac\n\
             setsid sh -c 'touch {waits}; read -r line <{go}; \
             mkdir -p \"$2/late\"; mkfifo \"$2/late/exec.fifo\"' crun \"$@\" &\nwait\n",
            crun = installation.runtime().display(),
            waits = waits.display(),
            go = go.display(),
        ),
    );
    let settings = host.path().join("container-hook.toml").display().to_string();
    let (crun, late) = (installation.runtime().display().to_string(), late.display().to_string());
    host.shell(&format!("sed -i 's|{crun}|{late}|' {settings}"));
    let before = LeftoverSnapshot::take(&installation);
    for is_admin in [false, true] {
        let args = json!({"container": victim.job_container("node:22"), "services": []});
        let call = victim.start("prepare_job", args);
        program::wait_until("the runtime is about to make the container", || waits.exists());
        call.kill_after(Duration::ZERO);
        if is_admin {
            installation.wait_for_hooks();
            installation.admin(&["prune"]).success();
        } else {
            victim.cleanup();
        }
        let makers = || host.processes().into_iter().filter(|p| p.line.contains("exec.fifo"));
        assert_eq!(makers().count(), 0, "{:?}", makers().collect::<Vec<_>>());
        before.check(&installation, "a runtime that makes a container late");
        host.shell(&format!("rm {}", waits.display()));
    }
}

/// The runner calls no cleanup for a job that only has container steps.
#[test]
fn next_step_removes_leftovers_of_a_killed_step() {
    with_both_runtimes("", |installation| {
        let mut victim = runner(installation, "victim");
        victim.container_step(shell_step("true")).0.success();
        let before = LeftoverSnapshot::take(installation);
        for _ in 0..KILLS {
            let mut call = victim.start_container_step(shell_step("echo up; exec sleep 1000"));
            call.wait_for_line("up");
            call.kill_after(Duration::ZERO);
            victim.container_step(shell_step("true")).0.success();
            before.check(installation, "a step after one that was killed");
        }
    });
}

/// The runner calls no cleanup for builds either.
#[test]
fn next_build_removes_leftovers_of_a_killed_build() {
    with_each_runtime("", |installation| {
        let victim = runner(installation, "victim");
        let path = victim.workspace().join("Dockerfile");
        let build = |script: &str| {
            write(&path, &format!("FROM alpine:3.20\nRUN {script}\n"));
            victim.start_container_step(built_step(&path))
        };
        let mut call = build("echo started; exec sleep 1000");
        call.wait_for_line("started");
        call.kill_after(Duration::ZERO);
        assert_eq!(fs::read_dir(installation.store().join("buildah")).unwrap().count(), 1);
        build("echo the next").wait().success();
        check_no_build_leftovers(installation);
    });
}

/// The Dockerfile differs in each build, so that no build is cached.
#[test]
fn killed_build_leaves_nothing_after_cleanup() {
    with_each_runtime("", |installation| {
        let mut victim = runner(installation, "victim");
        let build = |victim: &mut GithubRunner<'_>, number| {
            let path = victim.workspace().join("Dockerfile");
            write(&path, &format!("FROM alpine:3.20\nRUN echo {number} >/number\n"));
            victim.start_container_step(built_step(&path))
        };
        build(&mut victim, u32::MAX).wait().success();
        let took = build(&mut victim, u32::MAX - 1).wait().success().took;
        let finish = |victim: &mut GithubRunner<'_>| {
            victim.cleanup();
            check_no_build_leftovers(installation);
            installation.admin(&["prune", "--all"]).success();
        };
        finish(&mut victim);
        let mut play = KillSeries::new(installation, KILLS);
        play.kill(&mut victim, &KillVictim { name: "build", took, start: &build, finish: &finish });
        play.end();
    });
}

fn prepare(runner: &mut GithubRunner<'_>) {
    runner.prepare(runner.job_container("node:22"), &[]);
}

/// Returns a job container with a volume that is filled anew each time.
fn filling(runner: &GithubRunner<'_>) -> Value {
    merge(runner.job_container("node:22"), json!({"createOptions": "-v fresh:/bin"}))
}

fn cleanup(victim: &mut GithubRunner<'_>) {
    victim.cleanup();
    // Named volumes are kept for the next job.
    let store = victim.host().path().join("lib").display().to_string();
    victim.host().shell(&format!("cd {store}/volumes; rm -rf */fresh */.fresh.users"));
}

type KillStart<'a> = &'a dyn Fn(&mut GithubRunner<'_>, u32) -> RunningCall;

struct CommandDurations {
    prepare: Duration,
    script: Duration,
    container: Duration,
    cleanup: Duration,
}

impl CommandDurations {
    fn measure(runner: &mut GithubRunner<'_>) -> Self {
        let job = |runner: &mut GithubRunner<'_>| {
            let args = json!({"container": filling(runner), "services": [redis()]});
            let prepare = runner.call("prepare_job", args).success().took;
            let script = runner.run("true").success().took;
            let container = runner.container_step(shell_step("true")).0.success().took;
            let took = runner.cleanup().took;
            cleanup(runner);
            Self { prepare, script, container, cleanup: took }
        };
        job(runner);
        job(runner)
    }
}
