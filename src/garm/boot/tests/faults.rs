//! Boots that go wrong.

use std::collections::{BTreeMap, VecDeque};
use std::net::TcpListener;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::played::*;
use crate::garm::boot::sequence::boot_patiently;
use crate::garm::boot::*;
use crate::garm::http::fake::{Fake, Reply};
use crate::garm::http::{Http, HttpError, HttpOptions, Retry};
use crate::sys::error::chain;

#[test]
fn trouble_that_goes_away_does_no_harm() {
    for faults in [vec![500, 0, 503, 0], vec![200, 200, 500, 500, 502, 504], vec![0]] {
        let count = faults.iter().filter(|fault| **fault != 200).count();
        let mut garm = Garm::jit();
        let mut faults = VecDeque::from(faults);
        let server = Fake::serve(move |request| {
            // 200 here is: as it should be.
            match faults.pop_front() {
                None | Some(200) => {}
                Some(fault) => garm.faults.push_back(fault),
            }
            garm.answer(request)
        });
        let mut guest = FakeGuest::new(|_, _| 0);
        up(&server, &spec(&server, Some(runner())), &mut guest).unwrap();
        assert!(server.seen().len() >= 6 + count);
    }
}

#[test]
fn a_server_that_comes_up_late_is_waited_for() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let (send, receive) = mpsc::channel();
    let starting = thread::spawn(move || {
        let mut garm = Garm::jit();
        let server = Fake::serve_at(address, move |request| garm.answer(request));
        send.send(()).unwrap();
        server
    });
    let http = Http::new(&HttpOptions::default()).unwrap();
    let stand_in = Fake::serve(|_| Reply::cut());
    let mut spec = spec(&stand_in, Some(runner()));
    spec.callback_url = format!("http://{address}/c");
    spec.metadata_url = format!("http://{address}/m");
    let mut guest = FakeGuest::new(|_, _| 0);
    let retry = Retry { attempts: 1000, pause: Duration::from_millis(10) };
    boot_patiently(&spec, &mut guest, &http, retry).unwrap();
    receive.recv().unwrap();
    // It may have ended before GARM was told that it listens.
    assert!(starting.join().unwrap().seen().len() >= 6);
}

#[test]
fn an_answer_to_idle_that_is_lost_is_not_missed() {
    let mut garm = Garm::jit();
    let mut was_lost = false;
    let server = Fake::serve(move |request| {
        let reply = garm.answer(request);
        if garm.status == "idle" && !was_lost {
            was_lost = true;
            return Reply::cut();
        }
        reply
    });
    let mut guest = FakeGuest::new(|_, _| 0);
    guest.stays_for = 2;
    up(&server, &spec(&server, Some(runner())), &mut guest).unwrap();
    let idle = requests(&server).iter().filter(|line| line.ends_with("idle")).count();
    assert_eq!(idle, 2, "the second is refused, as the token is dead");
}

#[test]
fn refusals_end_it_at_once() {
    for (path, before) in [
        ("/c/status", 1),
        ("/m/credentials/runner", 3),
        ("/m/credentials/credentials_rsaparams", 5),
    ] {
        let mut garm = Garm::jit();
        garm.refused.insert(path, 401);
        let server = garm.serve();
        let error =
            up(&server, &spec(&server, Some(runner())), &mut FakeGuest::new(|_, _| 0)).unwrap_err();
        assert!(
            matches!(&error, BootError::Http(HttpError::Status { status: 401, .. })),
            "{error:?}"
        );
        assert_eq!(server.seen().len(), before + 1, "{:?}", requests(&server));
        assert!(told(&server).ends_with(": 401: Refused: no"), "{}", told(&server));
    }
    // This one is for people.
    let mut garm = Garm::jit();
    garm.refused.insert("/c/system-info/", 404);
    let server = garm.serve();
    let mut guest = FakeGuest::new(|_, _| 0);
    up(&server, &spec(&server, Some(runner())), &mut guest).unwrap();
    assert!(guest.notes.last().unwrap().contains("system information"));
}

#[test]
fn trouble_that_stays_is_told_and_has_an_end() {
    let mut garm = Garm::jit();
    garm.refused.insert("/m/credentials/credentials", 500);
    let server = garm.serve();
    let error =
        up(&server, &spec(&server, Some(runner())), &mut FakeGuest::new(|_, _| 0)).unwrap_err();
    let tries = requests(&server);
    let tries = tries.iter().filter(|line| line.ends_with("credentials/credentials")).count();
    assert_eq!(tries, 5);
    assert_eq!(told(&server), chain(&error));
}

#[test]
fn a_file_of_the_runner_that_says_nothing_is_told() {
    for (content, expected) in [
        (None, "not found"),
        (Some("<html>"), "not a JSON object"),
        (Some("{\"id\":1}"), "AgentId is missing or not a number greater than zero"),
    ] {
        let server = Garm::default().serve();
        let mut guest = FakeGuest::new(move |command, files| {
            if let Some(content) = content.filter(|_| command.args[0].ends_with("config.sh")) {
                let own = Node::File(content.into(), 0o600, RUNNER);
                files.insert("/opt/runner/.runner".into(), own);
            }
            0
        });
        let runner = RunnerSpec { jit: false, ..runner() };
        let error = up(&server, &spec(&server, Some(runner)), &mut guest).unwrap_err();
        assert!(matches!(error, BootError::RunnerFile { .. }), "{error:?}");
        let start = format!("cannot read the runner's id from /opt/runner/.runner: {expected}");
        assert!(told(&server).starts_with(&start), "{}", told(&server));
    }
}

#[test]
fn time_that_is_over_ends_it() {
    let server = Garm::jit().serve();
    let mut spec = spec(&server, Some(runner()));
    spec.timeout = Duration::ZERO;
    let error = up(&server, &spec, &mut FakeGuest::new(|_, _| panic!("too late"))).unwrap_err();
    assert!(matches!(error, BootError::TimedOut { .. }), "{error:?}");
    assert_eq!(told(&server), "timed out: the runner did not start within 0 s");
    assert_eq!(server.seen().len(), 1);
}

#[test]
fn a_runner_that_cannot_register_is_tried_six_times() {
    let server = Garm::default().serve();
    let mut guest = FakeGuest::new(|command, _| i32::from(command.args[0].ends_with("config.sh")));
    let error =
        up(&server, &spec(&server, Some(RunnerSpec { jit: false, ..runner() })), &mut guest);
    let registered = guest.lines().iter().filter(|line| line.contains("--ephemeral")).count();
    assert_eq!(registered, 6);
    assert!(matches!(error, Err(BootError::Registration { code: 1, tries: 6 })), "{error:?}");
    assert_eq!(told(&server), "cannot register the runner: code 1 6 times, see the instance's log");
}

#[test]
fn a_script_that_fails_is_named_and_gone() {
    let server = Garm::jit().serve();
    let mut guest = FakeGuest::new(|command, _| i32::from(command.args[0].contains("pre")) * 7);
    let mut spec = spec(&server, Some(runner()));
    spec.pre_install = BTreeMap::from([("a\nb".to_owned(), b"#!/bin/sh\n".to_vec())]);
    let error = up(&server, &spec, &mut guest).unwrap_err();
    assert!(matches!(error, BootError::Script { code: 7, .. }), "{error:?}");
    let message = "the pre-install script \"a\\nb\" ended with code 7, see the instance's log";
    assert_eq!(told(&server), message);
    assert_eq!(guest.node("/run/garm/pre-install-0"), None);
    assert_eq!(guest.commands.len(), 1);
}
