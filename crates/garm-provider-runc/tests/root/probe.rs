//! `garm-provider-runc doctor --probe`, as root and rootless.

use std::fs;
use std::process::Command;

use oci_hooks_testsupport::call::RunningCall;
use oci_hooks_testsupport::leftovers::{InstalledProgram as _, LeftoverSnapshot};
use oci_hooks_testsupport::program::wait_until;
use oci_hooks_testsupport::runtime::TestRuntime;
use oci_hooks_testsupport::world::UserIds;
use rustix::process::Signal;
use serde_json::Value;

use crate::setup::{GarmFixture, with_each_runtime, with_runtime, with_user};

const FLAVORS: &str = "[flavors.default]\n[flavors.nesting]\nnesting = true\n";

/// Runs a probe, and returns its report.
#[track_caller]
fn run(world: &GarmFixture<'_>, code: i32) -> Value {
    let ran = world.installation.admin(&["doctor", "--probe", "--format", "json"]);
    let said = format!("{}{}", ran.stdout, ran.stderr);
    assert_eq!(ran.status.code(), Some(code), "{said}");
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// Returns the trials whose names begin with `start`.
fn trials<'a>(report: &'a Value, start: &str) -> Vec<&'a Value> {
    let all = report["trials"].as_array().unwrap().iter();
    let found: Vec<_> =
        all.filter(|trial| trial["name"].as_str().unwrap().starts_with(start)).collect();
    assert!(!found.is_empty(), "no trial of {start:?} in {report:#}");
    found
}

#[track_caller]
fn check_out_of_reach(world: &GarmFixture<'_>) {
    // The first instance of a host creates the shared files.
    run(world, 0);
    let before = LeftoverSnapshot::take(&world.installation);
    let report = run(world, 0);
    for trial in trials(&report, "its own") {
        for from in ["host", "flavor default", "flavor nesting"] {
            assert_eq!(trial["outcomes"][from], "reached", "{report:#}");
        }
    }
    for start in [
        "metadata: tcp 169.254.169.254:80",
        "host: tcp 127.0.0.1:",
        "host: udp 127.0.0.1:",
        "host: gateway ",
        "host: abstract ",
        "host: socket /tmp/",
        "host: read /tmp/",
        "host: process ",
        "other job: tcp ",
        "other job: abstract ",
        "other job: process ",
        "kernel: write /proc/sys/kernel/core_pattern",
        "kernel: write /proc/sysrq-trigger",
    ] {
        for trial in trials(&report, start) {
            assert_eq!(trial["status"], "ok", "{trial} in {report:#}");
            for from in ["flavor default", "flavor nesting"] {
                let outcome = trial["outcomes"][from].as_str().unwrap();
                assert!(!["reached", "not tried"].contains(&outcome), "{trial}");
            }
        }
    }
    before.check(&world.installation, "a probe");
    let controllers = world.installation.run_directory().join("garm");
    assert_eq!(fs::read_dir(controllers).unwrap().count(), 0, "no controller is left");
    let logs = fs::read_dir(world.installation.log_directory()).unwrap();
    let logs: Vec<_> = logs.map(|log| log.unwrap().file_name()).collect();
    assert!(logs.is_empty(), "{logs:?}");
    let listed = world.installation.admin(&["instances", "--format", "json"]).success();
    assert_eq!(listed, "[]\n");
}

#[test]
fn host_targets_are_unreachable_from_instances_of_root() {
    with_each_runtime(FLAVORS, |world| {
        check_out_of_reach(world);
        let report = run(world, 0);
        let trial = trials(&report, "limits: ")[0];
        for (from, outcome) in [("host", "reached"), ("flavor default", "denied")] {
            assert_eq!(trial["outcomes"][from], outcome, "{trial}");
        }
    });
}

#[test]
fn host_targets_are_unreachable_from_instances_of_users() {
    for (runtime, ids) in [(TestRuntime::Runc, UserIds::Ranges), (TestRuntime::Crun, UserIds::None)]
    {
        with_user(runtime, ids, FLAVORS, |world, _| check_out_of_reach(world));
    }
}

/// The settings make root of an instance root on the host, with all privileges.
#[test]
fn reached_target_of_a_flavor_fails_the_probe() {
    let settings = "[security]\nuser-namespace = \"host\"\n\
                    [flavors.default]\n[flavors.privileged]\nprivileged = true\n";
    with_runtime(TestRuntime::Crun, settings, |world| {
        let report = run(world, 1);
        let trial = trials(&report, "kernel: write /proc/sys/kernel/core_pattern")[0];
        assert_eq!(trial["status"], "fail", "{report:#}");
        assert_eq!(trial["outcomes"]["flavor privileged"], "reached", "{trial}");
        assert_eq!(trial["outcomes"]["flavor default"], "denied", "{trial}");
        for trial in trials(&report, "host: tcp 127.0.0.1:") {
            assert_eq!(trial["status"], "ok", "{trial}");
        }
        let trial = trials(&report, "limits: ")[0];
        assert_eq!(trial["allowed"], "`user-namespace` under [security]", "{trial}");
        assert_eq!(trial["outcomes"]["flavor default"], "reached", "{trial}");
    });
}

#[test]
fn probe_without_flavors_has_one_instance_and_leaves_nothing_if_interrupted() {
    with_runtime(TestRuntime::Runc, "", |world| {
        let report = run(world, 0);
        assert_eq!(trials(&report, "its own")[0]["outcomes"]["instance"], "reached", "{report}");
        let before = LeftoverSnapshot::take(&world.installation);
        let mut command = Command::new(world.installation.program());
        command.arg("--config").arg(world.installation.settings()).args(["doctor", "--probe"]);
        let mut call = RunningCall::start(world.host(), command, Vec::new(), None);
        wait_until("another instance is there to be reached", || {
            world.host().processes().iter().any(|it| it.line.contains(" other-"))
        });
        call.signal(Signal::INT);
        call.wait().code(130);
        before.check(&world.installation, "a probe that was told to end");
    });
}
