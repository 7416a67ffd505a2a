//! A call that is stopped at any moment, as by a debugger or a frozen cgroup: other runners go on, or are told which
//! process holds them up.

use std::process::Command;

use crate::setup::{runner, with_each_runtime, write};
use crate::support::call::Call;
use crate::support::github_runner::{Runner, built_step};
use crate::support::host::Host;
use crate::support::hub::{Name, Registry};
use crate::support::installation::Installation;
use crate::support::program;
use crate::support::runtime::Runtime;
use crate::support::stops::Runners;

/// How many commands are stopped on each runtime if no more is asked for.
const USUAL: usize = 2;

#[test]
fn a_stopped_call_holds_up_no_other_runner_in_silence() {
    with_each_runtime("", |installation| {
        let [victim, other] = ["victim", "other"].map(|name| runner(installation, name));
        let pruned = &["prepare_job", "cleanup_job", "pull", "prune"];
        Runners { hook: installation, victim, other, pruned }.stop(&["buildah"], USUAL);
    });
}

/// A process that waits for a lock says who has it, long before it fails.
#[test]
fn a_call_that_waits_says_which_process_it_waits_for() {
    let host = Host::new();
    let _hub = Registry::start(&host, Name::Hub, None);
    let installation = Installation::new(&host, Runtime::Crun, "");
    let mut runner = runner(&installation, "runner");
    runner.prepare(runner.job_container("node:22"), &[]);
    let lock = installation.run_directory().join("network.lock");
    let mut holding = Command::new(program::find("flock"));
    holding.arg(&lock).args(["sh", "-c", "echo held; exec sleep 4"]);
    let mut holding = Call::start(&host, holding, Vec::new(), None);
    holding.wait_for_line("held");
    let log = runner.cleanup().log();
    let start = format!("::warning::waiting for the lock {}: process ", lock.display());
    let line = log.lines().find(|line| line.starts_with(&start));
    assert!(line.is_some_and(|line| line.contains("/flock ")), "{log}");
}

/// buildah waits without limit for the locks of its store, and what a Dockerfile runs can stop the one that builds it.
#[test]
fn a_build_that_keeps_its_store_locked_keeps_no_other_from_building() {
    const LOCK: &str = "open(F, '+<', $ARGV[0]) or die; $| = 1; \
                        $lock = pack('ssx4qqix4', F_WRLCK); fcntl(F, F_SETLKW, $lock) or die $!; print \"held\\n\"; sleep";
    let host = Host::new();
    let _hub = Registry::start(&host, Name::Hub, None);
    let installation = Installation::new(&host, Runtime::Crun, "");
    let [victim, mut other] = ["victim", "other"].map(|name| runner(&installation, name));
    let build = |runner: &Runner<'_>, script: &str| {
        let path = runner.workspace().join("Dockerfile");
        write(&path, &format!("FROM alpine:3.20\nRUN {script}\n"));
        runner.start_container_step(built_step(&path))
    };
    let mut stopped = build(&victim, "echo started; exec sleep 1000");
    stopped.wait_for_line("started");
    let lock = "lib/buildah/0/storage/store/root/overlay-layers/layers.lock";
    let mut holding = Command::new(program::find("perl"));
    holding.args(["-MFcntl", "-e", LOCK]).arg(host.path().join(lock));
    Call::start(&host, holding, Vec::new(), None).wait_for_line("held");
    build(&other, "true").wait().success();
    other.cleanup();
    stopped.cancel();
}
