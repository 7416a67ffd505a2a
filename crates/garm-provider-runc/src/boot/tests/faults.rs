//! Boots with faults.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use oci_hooks_files::error::chain;
use oci_hooks_testsupport::http::{bound_socket, listen};

use super::fakes::*;
use crate::boot::*;
use crate::http::fake::{FakeServer, no_reply};
use crate::http::{HttpClient, HttpError, HttpOptions, HttpRetry};

#[test]
fn temporary_errors_do_no_harm() {
    for faults in [vec![500, 0, 503, 0], vec![200, 200, 500, 500, 502, 504], vec![0]] {
        let count = faults.iter().filter(|fault| **fault != 200).count();
        let mut garm = FakeGarm::jit();
        let mut faults = VecDeque::from(faults);
        let server = FakeServer::serve(move |request| {
            // 200 stands for no fault.
            match faults.pop_front() {
                None | Some(200) => {}
                Some(fault) => garm.faults.push_back(fault),
            }
            garm.answer(request)
        });
        let mut guest = FakeGuest::new(|_, _| 0);
        boot_and_run(&server, &spec(&server, Some(runner())), &mut guest).unwrap();
        assert!(server.seen_requests().len() >= 6 + count);
    }
}

#[test]
fn late_server_is_waited_for() {
    let listener = bound_socket("127.0.0.1:0".parse().unwrap());
    let address = listener.local_addr().unwrap();
    let (send, receive) = mpsc::channel();
    let starting = thread::spawn(move || {
        let mut garm = FakeGarm::jit();
        listen(&listener);
        let server = FakeServer::serve_on(listener, move |request| garm.answer(request));
        send.send(()).unwrap();
        server
    });
    let http = HttpClient::new(&HttpOptions::default()).unwrap();
    let stand_in = FakeServer::serve(|_| no_reply());
    let mut spec = spec(&stand_in, Some(runner()));
    spec.callback_url = format!("http://{address}/c");
    spec.metadata_url = format!("http://{address}/m");
    let mut guest = FakeGuest::new(|_, _| 0);
    let retry = HttpRetry { attempts: 60_000, pause: Duration::from_millis(10) };
    boot(&spec, &mut guest, &http, retry).unwrap();
    receive.recv().unwrap();
    // The runner may have exited before GARM received `idle`.
    assert!(starting.join().unwrap().seen_requests().len() >= 6);
}

#[test]
fn lost_answer_to_idle_is_harmless() {
    let mut garm = FakeGarm::jit();
    let mut was_lost = false;
    let server = FakeServer::serve(move |request| {
        let reply = garm.answer(request);
        if garm.status == "idle" && !was_lost {
            was_lost = true;
            return no_reply();
        }
        reply
    });
    let mut guest = FakeGuest::new(|_, _| 0);
    guest.stays_for = 2;
    boot_and_run(&server, &spec(&server, Some(runner())), &mut guest).unwrap();
    let idle = requests(&server).iter().filter(|line| line.ends_with("idle")).count();
    assert_eq!(idle, 2, "the second is refused, as the token is dead");
}

#[test]
fn rejections_end_the_boot_at_once() {
    for (path, before) in [
        ("/c/status", 1),
        ("/m/credentials/runner", 3),
        ("/m/credentials/credentials_rsaparams", 5),
    ] {
        let mut garm = FakeGarm::jit();
        garm.refused.insert(path, 401);
        let server = garm.serve();
        let error =
            boot_and_run(&server, &spec(&server, Some(runner())), &mut FakeGuest::new(|_, _| 0))
                .unwrap_err();
        assert!(
            matches!(&error, BootError::Http(HttpError::Status { status: 401, .. })),
            "{error:?}"
        );
        assert_eq!(server.seen_requests().len(), before + 1, "{:?}", requests(&server));
        assert!(
            failure_message(&server).ends_with(": 401: Refused: no"),
            "{}",
            failure_message(&server)
        );
    }
    // System information is only displayed, so its rejection is ignored.
    let mut garm = FakeGarm::jit();
    garm.refused.insert("/c/system-info/", 404);
    let server = garm.serve();
    let mut guest = FakeGuest::new(|_, _| 0);
    boot_and_run(&server, &spec(&server, Some(runner())), &mut guest).unwrap();
    assert!(guest.notes.last().unwrap().contains("system information"));
}

#[test]
fn permanent_errors_are_reported_after_a_limit() {
    let mut garm = FakeGarm::jit();
    garm.refused.insert("/m/credentials/credentials", 500);
    let server = garm.serve();
    let error =
        boot_and_run(&server, &spec(&server, Some(runner())), &mut FakeGuest::new(|_, _| 0))
            .unwrap_err();
    let tries = requests(&server);
    let tries = tries.iter().filter(|line| line.ends_with("credentials/credentials")).count();
    assert_eq!(tries, 5);
    assert_eq!(failure_message(&server), chain(&error));
}

#[test]
fn incomplete_runner_file_is_reported() {
    for (content, expected) in [
        (None, "not found"),
        (Some("<html>"), "not a JSON object"),
        (Some("{\"id\":1}"), "AgentId is missing or not a number greater than zero"),
    ] {
        let server = FakeGarm::default().serve();
        let mut guest = FakeGuest::new(move |command, files| {
            if let Some(content) = content.filter(|_| command.args[0].ends_with("config.sh")) {
                let own = GuestFile::File(content.into(), 0o600, RUNNER);
                files.insert("/opt/runner/.runner".into(), own);
            }
            0
        });
        let runner = RunnerSpec { jit: false, ..runner() };
        let error = boot_and_run(&server, &spec(&server, Some(runner)), &mut guest).unwrap_err();
        assert!(matches!(error, BootError::RunnerFile { .. }), "{error:?}");
        let start = format!("cannot read the runner's id from /opt/runner/.runner: {expected}");
        assert!(failure_message(&server).starts_with(&start), "{}", failure_message(&server));
    }
}

#[test]
fn exceeded_deadline_ends_the_boot() {
    let server = FakeGarm::jit().serve();
    let mut spec = spec(&server, Some(runner()));
    spec.timeout = Duration::ZERO;
    let error =
        boot_and_run(&server, &spec, &mut FakeGuest::new(|_, _| panic!("too late"))).unwrap_err();
    assert!(matches!(error, BootError::TimedOut { .. }), "{error:?}");
    assert_eq!(
        failure_message(&server),
        "timed out: the runner did not start within 0 s, the `timeout` under [boot]"
    );
    assert_eq!(server.seen_requests().len(), 1);
}

#[test]
fn registration_is_tried_six_times() {
    let server = FakeGarm::default().serve();
    let mut guest = FakeGuest::new(|command, _| i32::from(command.args[0].ends_with("config.sh")));
    let error = boot_and_run(
        &server,
        &spec(&server, Some(RunnerSpec { jit: false, ..runner() })),
        &mut guest,
    );
    let registered = guest.lines().iter().filter(|line| line.contains("--ephemeral")).count();
    assert_eq!(registered, 6);
    assert!(matches!(error, Err(BootError::Registration { code: 1, tries: 6 })), "{error:?}");
    assert_eq!(
        failure_message(&server),
        "cannot register the runner: 6 attempts failed, exit code 1, see `garm-provider-runc logs NAME`"
    );
}

#[test]
fn failing_script_is_named_and_removed() {
    let server = FakeGarm::jit().serve();
    let mut guest = FakeGuest::new(|command, _| i32::from(command.args[0].contains("pre")) * 7);
    let mut spec = spec(&server, Some(runner()));
    spec.pre_install = BTreeMap::from([("a\nb".to_owned(), b"#!/bin/sh\n".to_vec())]);
    let error = boot_and_run(&server, &spec, &mut guest).unwrap_err();
    assert!(matches!(error, BootError::Script { code: 7, .. }), "{error:?}");
    let message =
        "the pre-install script \"a\\nb\" ended with code 7, see `garm-provider-runc logs NAME`";
    assert_eq!(failure_message(&server), message);
    assert_eq!(guest.node("/run/garm/pre-install-0"), None);
    assert_eq!(guest.commands.len(), 1);
}
