//! Runners that exit without completing a job.

use std::time::Duration;

use oci_hooks_files::error::chain;

use super::fakes::*;
use crate::boot::*;

fn image_runner() -> Option<RunnerSpec> {
    Some(RunnerSpec { is_downloaded: false, ..runner() })
}

#[test]
fn runner_that_exits_before_listening_is_never_idle() {
    for forge in [Forge::Github, Forge::Gitea] {
        let server = FakeGarm::jit().serve();
        let is_gitea = forge == Forge::Gitea;
        let server = if is_gitea { FakeGarm::default().serve() } else { server };
        let mut guest = FakeGuest::new(move |command, files| {
            let own = GuestFile::File(br#"{"id":9}"#.to_vec(), 0o644, RUNNER);
            files.insert("/run/garm/runner/.runner".into(), own);
            // The scripts around GitHub's listener always exit with 0.
            i32::from(command.args.contains(&"daemon".to_owned()))
        });
        guest.says = vec![
            "A session for this runner already exists. ghs_aaaaaaaaaaaaaaaaaaaaaaaa",
            "Runner listener exit with terminated error, stop the service, no retry needed.",
        ];
        let runner = RunnerSpec { forge, jit: !is_gitea, ..image_runner().unwrap() };
        let error =
            boot_and_run(&server, &spec(&server, Some(runner)), &mut guest).map(drop).unwrap_err();
        assert!(matches!(error, BootError::EndedEarly { .. }), "{error:?}");
        assert_eq!(
            failure_message(&server),
            format!(
                "the runner ended with code {} before it listened for jobs; last lines: A session \
                 for this runner already exists. *** | Runner listener exit with terminated error, \
                 stop the service, no retry needed.",
                i32::from(is_gitea)
            )
        );
        assert!(!requests(&server).iter().any(|line| line.ends_with("idle")));
    }
}

#[test]
fn runner_that_does_not_listen_in_time_is_stopped() {
    let server = FakeGarm::jit().serve();
    let mut guest = FakeGuest::new(|_, _| panic!("it does not end by itself"));
    guest.says = vec!["Runner connect error: Retrying until reconnected."];
    let mut spec = spec(&server, image_runner());
    // Longer than the boot: the fake runner times out at once.
    spec.timeout = Duration::from_secs(1000);
    guest.hangs = true;
    let error = boot_and_run(&server, &spec, &mut guest).map(drop).unwrap_err();
    assert!(matches!(error, BootError::NotListening { .. }), "{error:?}");
    let expected = "the runner did not listen for jobs within 1000 s, the `timeout` under [boot]; last \
                    lines: Runner connect error: Retrying until reconnected.";
    assert_eq!(failure_message(&server), expected);
}

#[test]
fn abnormal_exit_is_reported_even_after_idle() {
    for (says, code, expected) in [
        (
            "Runner listener exit with terminated error, stop the service, no retry needed.",
            0,
            Some(
                "the runner ended: Runner listener exit with terminated error, stop the service, no \
                 retry needed.; last lines: ",
            ),
        ),
        ("bye", 137, Some("the runner ended with code 137; last lines: ")),
        ("Runner listener exit with 0 return code, stop the service, no retry needed.", 0, None),
        ("Runner listener exit because of updating, re-launch runner after update", 0, None),
    ] {
        let server = FakeGarm::jit().serve();
        let mut guest = FakeGuest::new(move |_, _| code);
        guest.says = vec!["Listening for Jobs", says];
        let result = boot_and_run(&server, &spec(&server, image_runner()), &mut guest).map(drop);
        let last = requests(&server).pop().unwrap();
        match expected {
            Some(expected) => {
                let error = chain(&result.unwrap_err());
                assert!(error.starts_with(expected), "{error}");
                assert_eq!(last, "POST /c/status failed");
                assert!(failure_message(&server).starts_with(expected));
                let note = guest.notes.last().unwrap();
                assert!(
                    note.starts_with("cannot report the failure to GARM: ") && note.contains("401"),
                    "{note}"
                );
            }
            None => {
                result.unwrap();
                assert_eq!(last, "POST /c/status idle");
            }
        }
    }
}

#[test]
fn garm_may_learn_of_the_job_before_the_runner() {
    let mut garm = FakeGarm::jit();
    let server = crate::http::fake::FakeServer::serve(move |request| {
        if request.body.contains("\"idle\"") {
            // GARM already knows about the job from the forge.
            garm.status = "idle".to_owned();
        }
        garm.answer(request)
    });
    let mut guest = FakeGuest::new(|_, _| 0);
    boot_and_run(&server, &spec(&server, image_runner()), &mut guest).unwrap();
    let note = guest.notes.last().unwrap();
    assert!(note.starts_with("cannot report to GARM that the runner is idle: "), "{note}");
}

#[test]
fn failing_or_silent_garm_script_is_reported() {
    for (code, expected) in [
        (0, "GARM's install script ended without reporting the runner as idle; last lines: "),
        (7, "GARM's install script ended with code 7; last lines: "),
    ] {
        let server = FakeGarm::with_template("true").serve();
        let mut guest = FakeGuest::new(move |_, _| code);
        guest.says = vec!["+ BEARER_TOKEN=eyJINSTANCE.T0KEN", "curl: (7) Failed to connect"];
        let error =
            chain(&boot_and_run(&server, &spec(&server, None), &mut guest).map(drop).unwrap_err());
        assert_eq!(error, format!("{expected}+ BEARER_TOKEN=*** | curl: (7) Failed to connect"));
        assert_eq!(failure_message(&server), error);
        let failed = requests(&server).iter().filter(|line| line.ends_with("failed")).count();
        assert_eq!(failed, 1);
    }
}
