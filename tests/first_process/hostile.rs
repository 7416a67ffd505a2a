//! Hosts that do not speak the protocol: their connections end, and no other.

use std::io::Write as _;
use std::net::Shutdown;
use std::os::fd::OwnedFd;

use oci_hooks::sys::init::frames::{Answer, FailureKind, Request, Step};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::connection::{script, step};
use crate::first::First;

fn descriptors(count: usize) -> Vec<OwnedFd> {
    (0..count).map(|_| pipe_with(PipeFlags::CLOEXEC).unwrap().0).collect()
}

fn frame(step: Step) -> Vec<u8> {
    Request::Step(Box::new(step)).encode().unwrap()
}

/// Sends bytes with descriptors; returns why there was no step.
fn rejected(first: &First, bytes: &[u8], count: usize) -> String {
    let mut connection = first.connect();
    if count == 0 {
        connection.socket.write_all(bytes).unwrap();
    } else {
        connection.send_with(bytes, &descriptors(count));
    }
    let Some(Answer::Failed(failure)) = connection.answer() else { panic!("no failure") };
    assert_eq!(failure.kind, FailureKind::Request);
    assert_eq!(connection.answer(), None);
    String::from_utf8(failure.path).unwrap()
}

fn works(first: &First) {
    assert_eq!(first.connect().run(step(&["true"])).answer, Answer::Exited(0));
}

#[test]
fn what_is_no_request_is_rejected_with_a_reason() {
    let first = First::start();
    let good = frame(step(&["true"]));
    let version = [&good[..5], &[9, 0], &good[7..]].concat();
    for (bytes, count, reason) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), 0, "bytes: expected at most 16777216"),
        (vec![0x81, 0xff, 0xff, 0xff, 0xff], 0, "frame of 4294967295 bytes"),
        (vec![0x11, 0, 0, 0, 0], 0, "unknown kind of frame 0x11"),
        (Request::Kill.encode().unwrap(), 0, "expected a step"),
        (version, 5, "unknown version 9: expected 1 to 1"),
        (good.clone(), 0, "expected 5 descriptors, got 0"),
        (good.clone(), 4, "expected 5 descriptors, got 4"),
        (good.clone(), 6, "expected 5 descriptors, got 6"),
        (good, 20, "too many descriptors"),
    ] {
        let text = rejected(&first, &bytes, count);
        assert!(text.contains(reason), "{reason}: {text}");
        works(&first);
    }
    first.until_idle();
}

#[test]
fn silent_and_slow_hosts_keep_nobody_waiting() {
    let first = First::start();
    let silent: Vec<_> = (0..20).map(|_| first.connect_only()).collect();
    let mut half = first.connect();
    half.socket.write_all(&frame(script("echo"))[..7]).unwrap();
    works(&first);
    drop(silent);
    half.socket.shutdown(Shutdown::Write).unwrap();
    assert_eq!(half.answer(), None);
    first.until_idle();
}

#[test]
fn nonsense_after_the_step_is_its_end() {
    let first = First::start();
    for nonsense in [vec![0x82, 0xff, 0, 0, 0], vec![7; 5], frame(step(&["true"]))] {
        let mut connection = first.connect();
        let _pipes = connection.start(script("sleep 1000 & sleep 1000"));
        connection.socket.write_all(&nonsense).unwrap();
        assert_eq!(connection.answer(), None);
        // Though we have the write ends of its pipes.
        first.until_idle();
    }
}

#[test]
fn descriptors_that_come_later_are_closed() {
    let first = First::start();
    let mut connection = first.connect();
    let _pipes = connection.start(script("sleep 1000"));
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    connection.send_with(&Request::Signal(18).encode().unwrap(), &[write]);
    // At the end of the pipe, once nobody has its other end.
    assert_eq!(rustix::io::read(&read, &mut [0]), Ok(0));
}

#[test]
fn random_bytes_start_nothing_and_end_nothing() {
    let first = First::start();
    let mut random = fastrand::Rng::with_seed(15);
    let good = frame(Step { env: vec![(b"A".to_vec(), b"b".to_vec())], ..script("exit 3") });
    for _ in 0..200 {
        let mut bytes = good.clone();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..bytes.len());
            bytes[at] = random.u8(..);
        }
        let mut connection = first.connect();
        connection.send_with(&bytes, &descriptors(5));
        connection.socket.shutdown(Shutdown::Write).unwrap();
        while connection.answer().is_some() {}
    }
    works(&first);
    first.until_idle();
}
