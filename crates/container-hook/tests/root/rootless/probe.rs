//! `container-hook doctor --probe`, for root and for ordinary users.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use oci_hooks_host::metadata::METADATA;
use oci_hooks_testsupport::by_user::UserInstallation;
use oci_hooks_testsupport::call::RunningCall;
use oci_hooks_testsupport::github_runner::InstalledHook as _;
use oci_hooks_testsupport::leftovers::{InstalledProgram as _, LeftoverSnapshot};
use oci_hooks_testsupport::program::{self, wait_until};
use oci_hooks_testsupport::runtime::TestRuntime;
use oci_hooks_testsupport::world::OWN;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::rootless::setup::{UserKind, with};

/// Calls a test for each of these users, who alternate between the runtimes: a probe takes long.
fn with_each(who: &[UserKind], further: &str, test: impl Fn(&UserInstallation<'_>)) {
    for (&who, runtime) in who.iter().zip(TestRuntime::ALL.into_iter().cycle()) {
        with(who, runtime, further, &test);
    }
}

fn start(installation: &UserInstallation<'_>) -> RunningCall {
    start_command(installation, Command::new(installation.program()))
}

/// Starts a probe by a command that runs the program.
fn start_command(installation: &UserInstallation<'_>, mut command: Command) -> RunningCall {
    command.args(["doctor", "--probe", "--format", "json"]);
    match installation.user {
        Some(user) => drop(user.switch_user(&mut command)),
        None => drop(command.envs(installation.variables(""))),
    }
    RunningCall::start(installation.host(), command, Vec::new(), None)
}

/// Runs a probe to its end, and returns its report.
#[track_caller]
fn run(installation: &UserInstallation<'_>, code: i32) -> Value {
    report(start(installation), code)
}

#[track_caller]
fn report(call: RunningCall, code: i32) -> Value {
    let ended = call.wait().code(code);
    serde_json::from_str(&ended.stdout()).unwrap_or_else(|error| panic!("{error}: {}", ended.log()))
}

/// Returns the trials whose names start with a prefix.
fn trials<'a>(report: &'a Value, start: &str) -> Vec<&'a Value> {
    let all = report["trials"].as_array().unwrap().iter();
    let found: Vec<_> =
        all.filter(|trial| trial["name"].as_str().unwrap().starts_with(start)).collect();
    assert!(!found.is_empty(), "no trial of {start:?} in {report:#}");
    found
}

/// Returns the directory of the configured store.
fn data(installation: &UserInstallation<'_>) -> PathBuf {
    installation.user.map_or_else(|| installation.store(), |user| user.data())
}

/// Checks that a probe left nothing behind.
#[track_caller]
fn check_nothing_left(
    before: &LeftoverSnapshot,
    installation: &UserInstallation<'_>,
    context: &str,
) {
    before.check_live(installation, context);
    let left = installation.host().shell(&format!(
        "find {} {} /run -name 'oci-hooks-probe-*' -o -name 'try-*'",
        data(installation).display(),
        installation.run_directory().display()
    ));
    assert_eq!(left, "", "{context}");
    let listed = installation.admin(&["ps", "--format", "json"]).success();
    assert_eq!(listed, "[]\n", "{context}");
}

/// Checks that the probe's files and sockets on the host are gone.
#[track_caller]
fn files_are_gone(report: &Value) {
    for start in ["host: read ", "host: socket "] {
        for trial in trials(report, start) {
            let path = &trial["name"].as_str().unwrap()[start.len()..];
            assert!(!Path::new(path).exists(), "{path}");
        }
    }
}

#[test]
fn host_targets_are_unreachable_from_containers_and_builds() {
    with_each(&UserKind::ALL, "", |installation| {
        let metadata: Vec<_> = METADATA.iter().filter(|it| it.address.is_ipv4()).collect();
        for it in &metadata {
            let add = format!("ip -n outside address add {}/32 dev lo", it.address);
            installation.host().shell(&add);
        }
        let serving =
            installation.world.run_outside(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 80)));
        let before = LeftoverSnapshot::take(installation);
        let report = run(installation, 0);
        drop(serving);
        assert_eq!(report["ok"], true, "{report:#}");
        for it in metadata {
            let trial = trials(&report, &format!("metadata: tcp {}:80", it.address))[0];
            assert_eq!(trial["outcomes"]["host"], "reached", "{trial}");
            for from in ["container", "build"] {
                assert_eq!(trial["outcomes"][from], "rejected", "{trial}");
            }
        }
        for trial in trials(&report, "its own") {
            for from in ["host", "container", "build"] {
                assert_eq!(trial["outcomes"][from], "reached", "{report:#}");
            }
        }
        for start in [
            "host: tcp 127.0.0.1:",
            "host: udp 127.0.0.1:",
            "host: loopback through slirp4netns",
            "host: loopback through pasta",
            &format!("host: tcp {OWN}:"),
            &format!("host: udp {OWN}:"),
            "host: gateway ",
            "host: abstract ",
            "host: socket /tmp/",
            "host: read /tmp/",
            "host: process ",
            "other job: tcp ",
            "other job: abstract ",
            "other job: read /__w/repo/repo/",
            &format!("other job: read {}", data(installation).display()),
            "other job: process ",
            "kernel: write /proc/sys/kernel/core_pattern",
            "kernel: read /proc/kcore",
        ] {
            for trial in trials(&report, start) {
                assert_eq!(trial["status"], "ok", "{trial} in {report:#}");
                for from in ["container", "build"] {
                    let outcome = trial["outcomes"][from].as_str().unwrap();
                    assert!(!["reached", "not tried"].contains(&outcome), "{trial}");
                }
            }
        }
        for start in ["host: tcp ", "host: abstract ", "host: read /tmp/", "host: process "] {
            for trial in trials(&report, start) {
                assert_eq!(trial["outcomes"]["host"], "reached", "{trial}");
            }
        }
        if installation.user.is_none() {
            let expected = json!({"host": "reached", "container": "denied", "build": "denied"});
            assert_eq!(trials(&report, "limits: ")[0]["outcomes"], expected);
        }
        check_nothing_left(&before, installation, "a probe");
        files_are_gone(&report);
    });
}

#[test]
fn doctor_reports_what_settings_allow() {
    let settings = "[network]\nhost-access = true\n";
    with_each(&UserKind::ROOT_AND_RANGES, settings, |installation| {
        let report = run(installation, 0);
        for trial in trials(&report, &format!("host: tcp {OWN}:")) {
            assert_eq!(trial["status"], "warn", "{trial}");
            assert_eq!(trial["allowed"], "`host-access = true` under [network]", "{trial}");
            for from in ["container", "build"] {
                assert_eq!(trial["outcomes"][from], "reached", "{report:#}");
            }
        }
        for trial in trials(&report, "host: tcp 127.0.0.1:") {
            assert_eq!(trial["status"], "ok", "{trial}");
        }
    });
}

/// Uses a runtime that mounts the host's `/tmp` into containers.
#[test]
fn reached_target_fails_the_probe() {
    with_each(&[UserKind::Root], "", |installation| {
        let runtime = installation.host().path().join("runtime");
        let script = format!(
            "#!/bin/sh\nfor arg; do test ! -f $arg/config.json || sed -Ei 's|\"mounts\": *\\[|&{}|' \
             $arg/config.json; done\nexec {} \"$@\"\n",
            r#"{"destination":"/tmp","type":"bind","source":"/tmp","options":["rbind","rw"]},"#,
            installation.runtime.display()
        );
        installation.write(&runtime, &script);
        installation.host().shell(&format!("chmod 755 {}", runtime.display()));
        installation.write_settings(&format!(
            "[runtime]\npath = {runtime:?}\n[store]\nroot = {:?}\nrun = {:?}\n",
            installation.store(),
            installation.run_directory()
        ));
        let before = LeftoverSnapshot::take(installation);
        let report = run(installation, 1);
        assert_eq!(report["ok"], false);
        for start in ["host: read /tmp/", "host: socket /tmp/"] {
            let trial = trials(&report, start)[0];
            assert_eq!(trial["status"], "fail", "{report:#}");
            assert_eq!(trial["outcomes"]["container"], "reached", "{trial}");
        }
        check_nothing_left(&before, installation, "a probe that fails");
        files_are_gone(&report);
    });
}

/// Without `CAP_SYS_PTRACE`, root cannot give a job's namespace to another owner.
#[test]
fn shared_limits_of_root_fail_the_probe() {
    with(UserKind::Root, TestRuntime::Crun, "", |installation| {
        let mut command = Command::new(program::find("setpriv"));
        command.arg("--bounding-set=-sys_ptrace").arg(installation.program());
        let report = report(start_command(installation, command), 1);
        let trial = trials(&report, "limits: ")[0];
        assert_eq!(trial["status"], "fail", "{trial}");
        assert_eq!(trial["outcomes"]["container"], "reached", "{trial}");
        assert_eq!(trials(&report, "kernel: write ")[0]["status"], "ok", "{report:#}");
    });
}

#[test]
fn build_that_cannot_be_tried_is_one_remark() {
    let settings = "[build]\nbuildah = \"/no/such/buildah\"\n";
    with_each(&[UserKind::Single], settings, |installation| {
        let report = run(installation, 0);
        for trial in trials(&report, "") {
            assert_eq!(trial["outcomes"]["build"], "not tried", "{trial}");
            let is_tried = trial["outcomes"]["container"] != "not tried";
            assert!(trial["status"] != "ok" || is_tried, "{trial}");
        }
        assert!(trials(&report, "").iter().any(|trial| trial["status"] == "ok"), "{report:#}");
        let notes = report["notes"].to_string();
        assert!(notes.contains("not tried from build: "), "{notes}");
        assert!(notes.contains("a Dockerfile action needs buildah"), "{notes}");
    });
}

#[test]
fn probe_fails_if_its_job_does_not_start() {
    with_each(&[UserKind::Ranges], "", |installation| {
        installation.write_settings("[runtime]\npath = \"/bin/false\"\n");
        let report = run(installation, 1);
        assert_eq!(report["ok"], false);
        let cause = "a job did not start (see `container-hook doctor`): ";
        assert_eq!(report["notes"].to_string().matches(cause).count(), 1, "{report}");
        let shown = installation.admin(&["doctor", "--probe"]).stdout;
        assert!(shown.starts_with(cause) && shown.contains("\n1 error, 0 warnings: "), "{shown}");
    });
}

#[test]
fn interrupted_probe_leaves_nothing() {
    with_each(&UserKind::ROOT_AND_RANGES, "", |installation| {
        let before = LeftoverSnapshot::take(installation);
        let mut call = start(installation);
        wait_until("the other job is there to be reached", || {
            installation.host().processes().iter().any(|it| it.line.contains(" other-"))
        });
        call.signal(Signal::INT);
        call.wait().code(130);
        check_nothing_left(&before, installation, "a probe that was told to end");
    });
}

#[test]
fn human_format_is_a_table() {
    with_each(&[UserKind::Root], "", |installation| {
        let shown = installation.admin(&["doctor", "--probe"]).success();
        for title in ["TRIED", "FROM HOST", "FROM CONTAINER", "FROM BUILD"] {
            assert!(shown.lines().next().unwrap().contains(title), "{shown}");
        }
        assert!(shown.ends_with("nothing was reached that must be out of reach\n"), "{shown}");
    });
}
