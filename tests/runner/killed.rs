//! Row 31: the hook is killed at any phase of any command, and `cleanup_job` finishes what it began.

use std::time::Duration;

use serde_json::{Value, json};

use crate::builds::nothing_of_builds;
use crate::setup::{redis, runner, shell_step, with_each_runtime, write};
use crate::support::call::Call;
use crate::support::github_runner::{Runner, built_step, merge};
use crate::support::host::Host;
use crate::support::hub::{Name, Registry};
use crate::support::installation::Installation;
use crate::support::kills::{Play, Victim};
use crate::support::leftovers::Snapshot;
use crate::support::program;
use crate::support::runtime::Runtime;

/// How often each command is killed on each runtime if nobody asks for more.
const KILLS: u32 = 5;

#[test]
fn whatever_is_killed_leaves_nothing_after_cleanup() {
    with_each_runtime("", |installation| {
        let mut bystander = runner(installation, "bystander");
        bystander.prepare(bystander.job_container("node:22"), &[redis()]);
        let mut victim = runner(installation, "victim");
        // Once whole: images are there then, and how long each takes is known.
        let took = Took::measure(&mut victim);
        let mut play = Play::new(installation, KILLS);
        let commands: [(&str, Duration, Start<'_>); 5] = [
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
            play.kill(&mut victim, &Victim { name, took, start, finish: &cleanup });
        }
        play.end();
        let pong = bystander.run("printf 'PING\\r\\nQUIT\\r\\n' | nc -w 5 redis 6379");
        assert_eq!(pong.success().stdout(), "+PONG\r\n");
        bystander.cleanup();
    });
}

/// A play that finds nothing whatever is left would be worth nothing. Processes and links, for which it
/// waits, are left in `machine`.
#[test]
fn whatever_a_killed_command_leaves_is_found() {
    let host = Host::new();
    let _hub = Registry::start(&host, Name::Hub, None);
    let installation = Installation::new(&host, Runtime::Crun, "");
    let mut victim = runner(&installation, "victim");
    let took = Took::measure(&mut victim).cleanup;
    let run = installation.run_directory().display().to_string();
    let work = victim.work().display().to_string();
    for (left, fault) in [
        (format!("touch {run}/leases/left"), "leases/left"),
        ("touch /tmp/left".to_owned(), "/tmp/left"),
        ("touch /var/tmp/left".to_owned(), "/var/tmp/left"),
        ("touch /run/left".to_owned(), "/run/left"),
        (format!("mkdir -p {work}/_tool; chown 7 {work}/_tool"), "_tool 7:0"),
        (
            "touch /run/netns; unshare --net=/run/netns true".to_owned(),
            "a network namespace is left: net:[",
        ),
        ("nft add table inet left".to_owned(), "a rule is left: \"table inet left"),
    ] {
        let mut play = Play::new(&installation, 1);
        let start = |victim: &mut Runner<'_>, _| victim.start("cleanup_job", json!({}));
        let finish = |victim: &mut Runner<'_>| {
            cleanup(victim);
            victim.host().shell(&left);
        };
        let command = Victim { name: "cleanup_job", took, start: &start, finish: &finish };
        play.kill(&mut victim, &command);
        let faults = play.found().join("\n");
        assert!(faults.contains(fault), "{left}: {faults}");
    }
}

/// `prune` is for machines whose runner is gone too: no `cleanup_job` will come.
#[test]
fn prune_removes_what_a_runner_that_is_gone_left() {
    with_each_runtime("", |installation| {
        // As beside Docker: jobs have rules there too.
        installation.host().shell("iptables -P FORWARD DROP; ip6tables -P FORWARD DROP");
        Took::measure(&mut runner(installation, "victim"));
        let before = Snapshot::take(installation);
        let mut victim = runner(installation, "gone");
        victim.through_worker();
        let args = json!({"container": victim.job_container("node:22"), "services": [redis()]});
        // The worker is killed; the hook goes on with its own work.
        victim.start("prepare_job", args).kill_after(Duration::from_millis(60));
        installation.wait_for_hooks();
        installation.admin(&["prune"]).success();
        before.check(installation, "prune");
    });
}

/// A runtime dies a moment after the hook that called it.
#[test]
fn what_a_dying_runtime_made_last_goes_with_the_next_call() {
    with_each_runtime("", |installation| {
        let mut victim = runner(installation, "victim");
        prepare(&mut victim);
        victim.cleanup();
        let before = Snapshot::take(installation);
        let half = installation.run_directory().join("runtime/0123456789abcdef");
        for is_admin in [false, true] {
            let path = half.display();
            installation.host().shell(&format!("mkdir {path}; mkfifo {path}/exec.fifo"));
            if is_admin {
                installation.admin(&["prune"]).success();
            } else {
                victim.cleanup();
            }
            before.check(installation, "a half-made container of the runtime");
        }
    });
}

/// What a runtime starts in turn does not die with the caller. Here it is about to make the container when
/// everybody else is dead.
#[test]
fn who_makes_a_container_is_killed_with_its_job() {
    let host = Host::new();
    let _hub = Registry::start(&host, Name::Hub, None);
    let installation = Installation::new(&host, Runtime::Crun, "");
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
    let before = Snapshot::take(&installation);
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

/// The runner has no cleanup for a job whose only containers are those of steps.
#[test]
fn the_next_step_removes_what_a_killed_one_left() {
    with_each_runtime("", |installation| {
        let mut victim = runner(installation, "victim");
        victim.container_step(shell_step("true")).0.success();
        let before = Snapshot::take(installation);
        for _ in 0..KILLS {
            let mut call = victim.start_container_step(shell_step("echo up; exec sleep 1000"));
            call.wait_for_line("up");
            call.kill_after(Duration::ZERO);
            victim.container_step(shell_step("true")).0.success();
            before.check(installation, "a step after one that was killed");
        }
    });
}

/// Nor is there one for builds.
#[test]
fn the_next_build_removes_what_a_killed_one_left() {
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
        let left = installation.store().join("buildah/0/storage/layout-0");
        write(left.join("blob"), "");
        build("echo the next").wait().success();
        assert!(!left.exists());
        nothing_of_builds(installation, 0);
    });
}

/// Each build is of another Dockerfile, so that none has been made before.
#[test]
fn a_killed_build_leaves_nothing_after_cleanup() {
    with_each_runtime("", |installation| {
        let mut victim = runner(installation, "victim");
        let build = |victim: &mut Runner<'_>, number| {
            let path = victim.workspace().join("Dockerfile");
            write(&path, &format!("FROM alpine:3.20\nRUN echo {number} >/number\n"));
            victim.start_container_step(built_step(&path))
        };
        build(&mut victim, u32::MAX).wait().success();
        let took = build(&mut victim, u32::MAX - 1).wait().success().took;
        // What is kept for the next builds is as that of one that nobody killed.
        let finish = |victim: &mut Runner<'_>| {
            victim.cleanup();
            nothing_of_builds(installation, 0);
            installation.admin(&["prune", "--all"]).success();
        };
        finish(&mut victim);
        let mut play = Play::new(installation, KILLS);
        play.kill(&mut victim, &Victim { name: "build", took, start: &build, finish: &finish });
        play.end();
    });
}

fn prepare(runner: &mut Runner<'_>) {
    runner.prepare(runner.job_container("node:22"), &[]);
}

/// Returns a job container that has a volume which is filled anew each time.
fn filling(runner: &Runner<'_>) -> Value {
    merge(runner.job_container("node:22"), json!({"createOptions": "-v fresh:/bin"}))
}

fn cleanup(victim: &mut Runner<'_>) {
    victim.cleanup();
    // What a job leaves in it is for the next.
    let store = victim.host().path().join("lib").display().to_string();
    victim.host().shell(&format!("cd {store}/volumes; rm -rf */fresh */.fresh.users"));
}

type Start<'a> = &'a dyn Fn(&mut Runner<'_>, u32) -> Call;

struct Took {
    prepare: Duration,
    script: Duration,
    container: Duration,
    cleanup: Duration,
}

impl Took {
    fn measure(runner: &mut Runner<'_>) -> Self {
        let job = |runner: &mut Runner<'_>| {
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
