//! A call is stopped at any moment, as by a debugger or a frozen cgroup: other runners continue, or report
//! the blocking process.

use std::process::Command;

use oci_hooks_testsupport::call::RunningCall;
use oci_hooks_testsupport::host::TestHost;
use oci_hooks_testsupport::hub::{HostRegistry, RegistryName};
use oci_hooks_testsupport::installation::HookInstallation;
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::TestRuntime;
use oci_hooks_testsupport::stops::RunnerPair;
use serde_json::json;

use crate::runner::setup::{runner, with_each_runtime};

/// Default number of stopped commands on each runtime.
const USUAL: usize = 2;

#[test]
fn stopped_call_delays_other_runners_with_a_message() {
    with_each_runtime("", |installation| {
        let [victim, other] = ["victim", "other"].map(|name| runner(installation, name));
        let pruned = &["prepare_job", "cleanup_job", "pull", "prune"];
        RunnerPair { hook: installation, victim, other, pruned }.stop(&["buildah"], USUAL);
    });
}

/// A call that waits for a lock reports the process that holds it, long before the timeout.
#[test]
fn waiting_call_names_the_process_it_waits_for() {
    let host = TestHost::new();
    let _hub = HostRegistry::start(&host, RegistryName::Hub, None);
    let installation = HookInstallation::new(&host, TestRuntime::Crun, "");
    let mut runner = runner(&installation, "runner");
    runner.prepare(runner.job_container("node:22"), &[]);
    let lock = installation.run_directory().join("network.lock");
    let release = host.path().join("release").display().to_string();
    host.shell(&format!("mkfifo {release}"));
    let mut holding = Command::new(program::find("flock"));
    holding.arg(&lock).args(["sh", "-c", &format!("echo held; read -r line <{release}")]);
    let mut holding = RunningCall::start(&host, holding, Vec::new(), None);
    holding.wait_for_line("held");
    let start = format!("::warning::waiting for the lock {}: process ", lock.display());
    let mut call = runner.start("cleanup_job", json!({}));
    call.wait_for_line(&start);
    host.shell(&format!("echo >{release}"));
    let log = call.wait().success().log();
    let line = log.lines().find(|line| line.starts_with(&start));
    assert!(line.is_some_and(|line| line.contains("/flock ")), "{log}");
}
