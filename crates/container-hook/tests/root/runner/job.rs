//! Jobs of root only; `rootless::jobs` has the jobs of all users.

use std::io::ErrorKind;
use std::net::TcpListener;

use oci_hooks_testsupport::github_runner::{container, merge};
use oci_hooks_testsupport::leftovers::LeftoverSnapshot;
use oci_hooks_testsupport::program;
use serde_json::{Value, json};

use crate::runner::setup::{runner, shell_step, with_both_runtimes, with_each_runtime};

#[test]
fn missing_overlay_is_reported() {
    with_each_runtime("", |installation| {
        let (host, disk) = (installation.host(), installation.store().join("containers"));
        // An overlay cannot be the upper layer of another overlay.
        host.shell(&format!(
            "mkdir -p {0} /run/over/u /run/over/w; mount -t overlay overlay \
             -o lowerdir=/run/over,upperdir=/run/over/u,workdir=/run/over/w {0}",
            disk.display()
        ));
        let mut runner = runner(installation, "runner-1");
        let (ended, _) = runner.container_step(shell_step("echo it runs"));
        let log = ended.success().log();
        let warning = "::warning::container step: overlayfs unavailable (";
        assert!(log.contains(warning) && log.contains("it runs\n"), "{log}");
    });
}

#[test]
fn image_without_a_shell_can_be_a_job_container() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        let response = runner.prepare(runner.job_container("test/scratch:1"), &[]);
        assert_eq!(response["isAlpine"], false);
        let args = runner.script_args("/echo", &["still".into(), "there".into()], &[], "x");
        assert_eq!(runner.call("run_script_step", args).success().stdout(), "still there\n");
        runner.cleanup();
    });
}

#[test]
fn user_workdir_and_volumes_of_an_image_are_used() {
    with_both_runtimes("", |installation| {
        let mut runner = runner(installation, "runner-1");
        let step = shell_step("id; cat /data/kept; touch /data/new; pwd");
        let step = merge(step, json!({"image": "test/user:1", "workingDirectory": null}));
        let log = runner.container_step(step).0.success().stdout();
        assert!(
            log.contains("uid=1001(app) gid=1001(app) groups=1001(app),1234(extra)\n"),
            "{log}"
        );
        assert!(log.contains("from the image\n") && log.contains("/srv/made\n"), "{log}");
    });
}

#[test]
fn unhealthy_service_fails_the_job_with_its_log() {
    with_both_runtimes("", |installation| {
        let before = LeftoverSnapshot::take(installation);
        let mut runner = runner(installation, "runner-1");
        for (image, said) in [
            ("test/unhealthy:1", &["the probe says no", "nginx: started", "unhealthy"][..]),
            ("test/exits:1", &["oh no", "3"]),
        ] {
            // Several checks, so that the program has started before the last check.
            let health = "--health-interval 1s --health-retries 3 --health-timeout 10m";
            let health = json!({"createOptions": health});
            let service = match image {
                "test/exits:1" => {
                    merge(container(image), json!({"createOptions": "--health-cmd false"}))
                }
                _ => merge(container(image), health),
            };
            let args = json!({"container": runner.job_container("node:22"), "services": [service]});
            let log = runner.call("prepare_job", args).failure();
            for text in said {
                assert!(log.contains(text), "{text} is not in\n{log}");
            }
            runner.cleanup();
        }
        for image in ["test/healthy:1", "test/healthy:exec"] {
            let patient = json!({"createOptions": "--health-timeout 10m"});
            runner.prepare(Value::Null, &[merge(container(image), patient)]);
            runner.cleanup();
        }
        before.check_live(installation, "a job");
    });
}

#[test]
fn step_that_ignores_signals_ends_with_the_job() {
    with_each_runtime("", |installation| {
        let before = LeftoverSnapshot::take(installation);
        let mut runner = runner(installation, "runner-1");
        runner.prepare(runner.job_container("node:22"), &[]);
        let mut call =
            runner.start_run("trap '' INT TERM\necho started\nwhile :; do sleep 0.1 & wait; done");
        call.wait_for_line("started");
        let (ended, signals) = call.cancel();
        assert!(!ended.status.success() && signals < 3, "{signals} signals: {}", ended.log());
        runner.cleanup();
        before.check_live(installation, "a job");
    });
}

/// The firewall rules of a job are removed with the job, but not before its processes are dead.
#[test]
fn packets_sent_at_the_end_of_a_job_do_not_reach_the_host() {
    const FLOOD: &str = "gateway=$(ip route | sed -n 's/^default via \\([^ ]*\\).*/\\1/p')\n\
        for sender in 1 2 3 4; do\n\
        (while :; do nc $gateway PORT; done) </dev/null >/dev/null 2>&1 &\n\
        done";
    for (settings, is_fenced) in [("", true), ("[network]\nhost-access = true\n", false)] {
        with_each_runtime(settings, |installation| {
            let bind = || TcpListener::bind("0.0.0.0:0");
            let socket = installation.host().enter(bind).expect("the host has ports");
            socket.set_nonblocking(true).expect("it is a socket");
            let port = socket.local_addr().expect("it is bound").port();
            let flood = FLOOD.replace("PORT", &port.to_string());
            let mut runner = runner(installation, "runner-1");
            for _ in 0..if is_fenced { 10 } else { 1 } {
                runner.prepare(runner.job_container("alpine:3.20"), &[]);
                runner.run(&flood).success();
                if !is_fenced {
                    program::wait_until("the host hears it", || socket.accept().is_ok());
                }
                runner.cleanup();
                let heard = socket.accept().map(drop).map_err(|error| error.kind());
                assert!(!is_fenced || heard == Err(ErrorKind::WouldBlock), "{heard:?}");
            }
        });
    }
}
