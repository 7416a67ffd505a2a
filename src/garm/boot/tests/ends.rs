//! Runners that end otherwise than after their job.

use std::time::Duration;

use super::played::*;
use crate::garm::boot::*;
use crate::sys::error::chain;

fn of_image() -> Option<RunnerSpec> {
    Some(RunnerSpec { is_downloaded: false, ..runner() })
}

#[test]
fn a_runner_that_ends_before_it_listens_was_never_idle() {
    for forge in [Forge::Github, Forge::Gitea] {
        let server = Garm::jit().serve();
        let is_gitea = forge == Forge::Gitea;
        let server = if is_gitea { Garm::default().serve() } else { server };
        let mut guest = FakeGuest::new(move |command, files| {
            let own = Node::File(br#"{"id":9}"#.to_vec(), 0o644, RUNNER);
            files.insert("/run/garm/runner/.runner".into(), own);
            // The scripts around GitHub's listener end with 0 in any case.
            i32::from(command.args.contains(&"daemon".to_owned()))
        });
        guest.says = vec![
            "A session for this runner already exists. ghs_aaaaaaaaaaaaaaaaaaaaaaaa",
            "Runner listener exit with terminated error, stop the service, no retry needed.",
        ];
        let runner = RunnerSpec { forge, jit: !is_gitea, ..of_image().unwrap() };
        let error = up(&server, &spec(&server, Some(runner)), &mut guest).map(drop).unwrap_err();
        assert!(matches!(error, BootError::EndedEarly { .. }), "{error:?}");
        assert_eq!(
            told(&server),
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
fn a_runner_that_does_not_listen_in_time_is_ended() {
    let server = Garm::jit().serve();
    let mut guest = FakeGuest::new(|_, _| panic!("it does not end by itself"));
    guest.says = vec!["Runner connect error: Retrying until reconnected."];
    let mut spec = spec(&server, of_image());
    spec.timeout = Duration::from_secs(2);
    guest.hangs = true;
    let error = up(&server, &spec, &mut guest).map(drop).unwrap_err();
    assert!(matches!(error, BootError::NotListening { .. }), "{error:?}");
    let expected = "the runner did not listen for jobs within 2 s; last lines: Runner connect error: \
                    Retrying until reconnected.";
    assert_eq!(told(&server), expected);
}

#[test]
fn an_end_that_is_no_end_of_a_job_is_told_though_garm_takes_no_more_of_an_idle_runner() {
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
        let server = Garm::jit().serve();
        let mut guest = FakeGuest::new(move |_, _| code);
        guest.says = vec!["Listening for Jobs", says];
        let result = up(&server, &spec(&server, of_image()), &mut guest).map(drop);
        let last = requests(&server).pop().unwrap();
        match expected {
            Some(expected) => {
                let error = chain(&result.unwrap_err());
                assert!(error.starts_with(expected), "{error}");
                assert_eq!(last, "POST /c/status failed");
                assert!(told(&server).starts_with(expected));
                let note = guest.notes.last().unwrap();
                assert!(note.starts_with("GARM was not told: ") && note.contains("401"), "{note}");
            }
            None => {
                result.unwrap();
                assert_eq!(last, "POST /c/status idle");
            }
        }
    }
}

#[test]
fn garm_that_knows_of_the_job_before_it_knows_of_the_runner_is_no_trouble() {
    let mut garm = Garm::jit();
    let server = crate::garm::http::fake::Fake::serve(move |request| {
        if request.body.windows(6).any(|text| text == b"\"idle\"") {
            // The forge has told it of the job.
            garm.status = "idle".to_owned();
        }
        garm.answer(request)
    });
    let mut guest = FakeGuest::new(|_, _| 0);
    up(&server, &spec(&server, of_image()), &mut guest).unwrap();
    let note = guest.notes.last().unwrap();
    assert!(note.starts_with("GARM was not told that the runner is idle: "), "{note}");
}

#[test]
fn garms_script_that_fails_or_tells_nothing_is_told() {
    for (code, expected) in [
        (0, "GARM's install script ended without reporting the runner as idle; last lines: "),
        (7, "GARM's install script ended with code 7; last lines: "),
    ] {
        let server = Garm::with_template("true").serve();
        let mut guest = FakeGuest::new(move |_, _| code);
        guest.says = vec!["+ BEARER_TOKEN=eyJINSTANCE.T0KEN", "curl: (7) Failed to connect"];
        let error = chain(&up(&server, &spec(&server, None), &mut guest).map(drop).unwrap_err());
        assert_eq!(error, format!("{expected}+ BEARER_TOKEN=*** | curl: (7) Failed to connect"));
        assert_eq!(told(&server), error);
        let failed = requests(&server).iter().filter(|line| line.ends_with("failed")).count();
        assert_eq!(failed, 1);
    }
}
