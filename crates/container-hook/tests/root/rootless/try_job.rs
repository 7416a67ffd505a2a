//! `container-hook try`: a job without GitHub, for root and for ordinary users.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use oci_hooks_testsupport::by_user::UserInstallation;
use oci_hooks_testsupport::call::{EndedCall, RunningCall};
use oci_hooks_testsupport::github_runner::InstalledHook as _;
use oci_hooks_testsupport::leftovers::{InstalledProgram as _, LeftoverSnapshot};
use oci_hooks_testsupport::program::wait_until;
use rustix::process::Signal;
use serde_json::Value;

use crate::rootless::setup::{UserKind, with_each};

/// A command that prints `it runs` and does not exit. The quotes keep that text out of the logged command
/// line.
const WAITS: [&str; 6] = ["--", "sh", "-c", "echo it \"runs\"; exec sleep 1000", "sh", "x"];

/// Starts the program as its user does, without waiting for it.
fn start(installation: &UserInstallation<'_>, words: &[&str]) -> RunningCall {
    let mut command = Command::new(installation.program());
    command.arg("try").args(words);
    match installation.user {
        Some(user) => drop(user.switch_user(&mut command)),
        None => drop(command.envs(installation.variables(""))),
    }
    RunningCall::start(installation.host(), command, Vec::new(), None)
}

/// Runs a job to its end.
#[track_caller]
fn run(installation: &UserInstallation<'_>, words: &[&str]) -> EndedCall {
    start(installation, words).wait()
}

/// Returns the directories of the fake runners.
fn runners(installation: &UserInstallation<'_>) -> Vec<PathBuf> {
    let store = installation.user.map_or_else(|| installation.store(), |user| user.data());
    let entries = fs::read_dir(store).into_iter().flatten().flatten();
    let is_of_try =
        |path: &PathBuf| path.file_name().unwrap().as_encoded_bytes().starts_with(b"try-");
    entries.map(|entry| entry.path()).filter(is_of_try).collect()
}

/// Checks that the host is as before, except for files left by a user's first job.
#[track_caller]
fn check_nothing_left(
    before: &LeftoverSnapshot,
    installation: &UserInstallation<'_>,
    context: &str,
) {
    before.check_live(installation, context);
    assert_eq!(runners(installation), <[PathBuf; 0]>::default(), "{context}");
    let listed = installation.admin(&["ps", "--format", "json"]).success();
    assert_eq!(listed, "[]\n", "{context}");
}

#[test]
fn job_without_an_image_runs_and_leaves_nothing() {
    with_each(&UserKind::ALL, "", |installation| {
        let before = LeftoverSnapshot::take(installation);
        let ended = run(installation, &[]).success();
        let log = ended.stdout();
        for shown in [
            "\nRun id\nuid=0(root) ",
            "\nThis container works.\n",
            "\nthe job left nothing behind\n",
        ] {
            assert!(log.contains(shown), "no {shown:?} in {log}");
        }
        let times = log.lines().filter(|line| line.ends_with(" s"));
        let names = times.map(|line| line.split(' ').next().unwrap()).collect::<Vec<_>>();
        assert_eq!(names, ["prepare", "step", "cleanup"]);
        check_nothing_left(&before, installation, "a job");
        assert_eq!(fs::read_dir(installation.store().join("layers")).unwrap().count(), 0);
    });
}

#[test]
fn job_sees_only_programs_of_the_host_that_everyone_can_read() {
    with_each(&UserKind::ALL, "", |installation| {
        check_view_of_host(installation, "0");
    });
    // As on kernels where containers have no user namespace.
    with_each(&[UserKind::Root], "[security]\nuser-namespace = \"host\"\n", |installation| {
        check_view_of_host(installation, "65534");
    });
}

#[track_caller]
fn check_view_of_host(installation: &UserInstallation<'_>, uid: &str) {
    let home = installation.host().path().display();
    installation.host().shell(&format!(
        "cd {home}; mkdir -p usr work
         mount -t overlay -o lowerdir=/usr,upperdir={home}/usr,workdir={home}/work overlay /usr
         cd /usr/local/lib; echo open >open; echo secret >secret; chmod 640 secret
         mkdir closed below; echo secret >closed/file; chmod 700 closed; mount -t tmpfs tmpfs below; echo below >below/x"
    ));
    let script = "id -u
        cat /usr/local/lib/open
        cd /usr/local/lib; cat secret closed/file below/x || :
        touch /usr/local/lib/mine /bin/mine || :
        cat /etc/shadow || :
        for dir in /home /root /var /srv /opt /mnt /boot /media; do ls -A $dir || :; done
        awk 'BEGIN { print \"alternatives\" }'
        test -s /etc/ssl/certs/ca-certificates.crt && echo certificates
        cat /proc/mounts | grep -c ' /usr'
        touch /__w/repo/repo/mine && echo workspace";
    let ended = run(installation, &["--format", "json", "--", "sh", "-c", script]).success();
    let log = ended.stderr();
    let lines: Vec<_> = log.lines().map(str::trim).collect();
    let shown = |line: &str| lines.contains(&line);
    for line in [uid, "open", "alternatives", "certificates", "workspace", "tmp"] {
        assert!(shown(line), "{line:?} is not in {log}");
    }
    for line in ["secret", "root:*:", "oci-hooks"] {
        assert!(!shown(line), "{line:?} is in {log}");
    }
    // Without root the kernel permits binding a directory only together with its submounts.
    assert_eq!(shown("below"), installation.is_rootless(), "{log}");
    assert!(log.contains("/usr/local/lib/mine': Read-only file system"), "{log}");
    for file in ["secret", "closed/file"] {
        assert!(log.contains(&format!("cat: {file}: Permission denied")), "{log}");
    }
    let report: Value = serde_json::from_str(&ended.stdout()).unwrap();
    assert_eq!(report["left"], serde_json::json!([]), "{report}");
    for key in ["prepare_seconds", "step_seconds", "cleanup_seconds"] {
        assert!(report[key].as_f64().is_some_and(|seconds| seconds > 0.0), "{report}");
    }
}

#[test]
fn image_and_services_are_pulled_and_the_exit_code_is_passed_on() {
    with_each(&UserKind::ROOT_AND_RANGES, "", |installation| {
        let before = LeftoverSnapshot::take(installation);
        let services = ["--service", "redis:7", "--service", "redis:7=cache", "alpine:3.20", "--"];
        // Without a health check the job does not wait for a service.
        let script = "for name in redis cache; do \
                      until printf 'PING\\r\\nQUIT\\r\\n' | nc $name 6379; do sleep 0.05; done; done; exit 7";
        let ended = run(installation, &[&services[..], &["sh", "-c", script]].concat()).code(7);
        let log = ended.log();
        assert_eq!(log.matches("+PONG").count(), 2, "{log}");
        assert!(log.contains("Error: Process completed with exit code 7."), "{log}");
        check_nothing_left(&before, installation, "a job with services");
    });
}

#[test]
fn log_of_a_failed_start_ends_with_its_error() {
    with_each(&UserKind::ROOT_AND_RANGES, "", |installation| {
        let before = LeftoverSnapshot::take(installation);
        let log = run(installation, &["localhost/no-such-image"]).code(1).stdout();
        let (_, end) = log.split_once("\nthe job left nothing behind\n").expect("it is cleaned up");
        let lines: Vec<_> = end.lines().collect();
        assert_eq!(lines[0], "to check this machine: container-hook doctor", "{log}");
        assert!(lines.len() == 2 && lines[1].starts_with("Error: job container: "), "{log}");
        check_nothing_left(&before, installation, "a job that did not start");
    });
}

#[test]
fn interrupted_job_is_cancelled_and_cleaned_up() {
    with_each(&UserKind::ROOT_AND_RANGES, "", |installation| {
        let before = LeftoverSnapshot::take(installation);
        for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 130)] {
            let mut call = start(installation, &WAITS);
            call.wait_for_line("it runs").signal(signal);
            let ended = call.wait().code(code);
            assert!(ended.log().contains("The operation was canceled."), "{}", ended.log());
            assert!(ended.log().contains("the job left nothing behind"), "{}", ended.log());
            check_nothing_left(&before, installation, "a cancelled job");
        }
    });
}

#[test]
fn prune_removes_leftovers_of_a_killed_job() {
    with_each(&UserKind::ROOT_AND_RANGES, "", |installation| {
        let before = LeftoverSnapshot::take(installation);
        let mut call = start(installation, &WAITS);
        call.wait_for_line("it runs").signal(Signal::KILL);
        assert_eq!(call.wait().status.code(), None);
        assert_eq!(runners(installation).len(), 1);
        installation.admin(&["prune"]).success();
        check_nothing_left(&before, installation, "a killed job");
        assert_eq!(fs::read_dir(installation.store().join("layers")).unwrap().count(), 0);
    });
}

#[test]
fn kept_job_remains_until_prune() {
    with_each(&[UserKind::Root, UserKind::Single], "", |installation| {
        let before = LeftoverSnapshot::take(installation);
        let log = run(installation, &["--keep", "--", "true"]).success().stdout();
        let kept = runners(installation);
        assert_eq!(kept.len(), 1);
        for shown in ["container-hook ps", "container-hook prune", kept[0].to_str().unwrap()] {
            assert!(log.contains(shown), "no {shown} in {log}");
        }
        let listed = installation.admin(&["ps", "--format", "json"]).success();
        let listed: Value = serde_json::from_str(&listed).unwrap();
        assert!(listed[0]["pid"].is_u64(), "{listed}");
        // Another job leaves the kept job alone.
        run(installation, &["--", "true"]).success();
        assert_eq!(runners(installation), kept);
        installation.admin(&["prune"]).success();
        check_nothing_left(&before, installation, "a job that was kept");
    });
}

#[test]
fn two_jobs_run_concurrently() {
    with_each(&UserKind::ROOT_AND_RANGES, "", |installation| {
        let before = LeftoverSnapshot::take(installation);
        let mut first = start(installation, &WAITS);
        first.wait_for_line("it runs");
        let log = run(installation, &["--", "echo", "beside"]).success().stdout();
        assert!(
            log.contains("\nbeside\n") && log.contains("\nthe job left nothing behind\n"),
            "{log}"
        );
        wait_until("the first job is the only one", || runners(installation).len() == 1);
        first.signal(Signal::INT);
        first.wait().code(130);
        check_nothing_left(&before, installation, "two jobs");
    });
}

#[test]
fn cleanup_runs_after_output_is_closed() {
    with_each(&[UserKind::Root], "", |installation| {
        let before = LeftoverSnapshot::take(installation);
        let program = installation.program().display().to_string();
        let settings =
            installation.variables("").into_iter().find(|(name, _)| name.ends_with("CONFIG"));
        let (name, settings) = settings.expect("root has one");
        let line =
            installation.host().shell(&format!("{name}={settings} {program} try | head -n 1"));
        assert_eq!(line, "Initialize containers\n");
        wait_until("the runner is gone", || runners(installation).is_empty());
        check_nothing_left(&before, installation, "a job whose log nobody read");
    });
}
