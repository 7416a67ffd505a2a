//! Hosts that violate the protocol lose their connection; other connections stay.

use std::io::Write as _;
use std::net::Shutdown;
use std::os::fd::OwnedFd;

use oci_hooks_init::frames::{ContainerStep, FailureKind, StepAnswer, StepRequest};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::connection::{script, step};
use crate::first::FirstProcess;

fn descriptors(count: usize) -> Vec<OwnedFd> {
    (0..count).map(|_| pipe_with(PipeFlags::CLOEXEC).unwrap().0).collect()
}

fn frame(step: ContainerStep) -> Vec<u8> {
    StepRequest::Step(Box::new(step)).encode().unwrap()
}

/// Sends bytes with descriptors; returns the reason of the failure.
fn send_rejected(first: &FirstProcess, bytes: &[u8], count: usize) -> String {
    let mut connection = first.connect();
    if count == 0 {
        connection.socket.write_all(bytes).unwrap();
    } else {
        connection.send_with(bytes, &descriptors(count));
    }
    let Some(StepAnswer::Failed(failure)) = connection.answer() else { panic!("no failure") };
    assert_eq!(failure.kind, FailureKind::Request);
    assert_eq!(connection.answer(), None);
    String::from_utf8(failure.path).unwrap()
}

fn assert_works(first: &FirstProcess) {
    assert_eq!(first.connect().run(step(&["true"])).answer, StepAnswer::Exited(0));
}

#[test]
fn invalid_requests_are_rejected_with_a_reason() {
    let first = FirstProcess::start();
    let good = frame(step(&["true"]));
    let version = [&good[..5], &[9, 0], &good[7..]].concat();
    for (bytes, count, reason) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), 0, "bytes: expected at most 16777216"),
        (vec![0x81, 0xff, 0xff, 0xff, 0xff], 0, "frame of 4294967295 bytes"),
        (vec![0x11, 0, 0, 0, 0], 0, "unknown kind of frame 0x11"),
        (StepRequest::Signal(9).encode().unwrap(), 0, "expected a step"),
        (version, 5, "unknown protocol version 9: expected 1 to 1"),
        (good.clone(), 0, "expected 5 descriptors, got 0"),
        (good.clone(), 4, "expected 5 descriptors, got 4"),
        (good.clone(), 6, "expected 5 descriptors, got 6"),
        (good, 20, "too many descriptors"),
    ] {
        let text = send_rejected(&first, &bytes, count);
        assert!(text.contains(reason), "{reason}: {text}");
        assert_works(&first);
    }
    first.wait_until_idle();
}

#[test]
fn silent_and_slow_hosts_do_not_block_others() {
    let first = FirstProcess::start();
    let silent: Vec<_> = (0..20).map(|_| first.connect_only()).collect();
    let mut half = first.connect();
    half.socket.write_all(&frame(script("echo"))[..7]).unwrap();
    assert_works(&first);
    drop(silent);
    half.socket.shutdown(Shutdown::Write).unwrap();
    assert_eq!(half.answer(), None);
    first.wait_until_idle();
}

#[test]
fn invalid_data_after_the_step_ends_it() {
    let first = FirstProcess::start();
    for nonsense in [vec![0x82, 0xff, 0, 0, 0], vec![7; 5], frame(step(&["true"]))] {
        let mut connection = first.connect();
        let _pipes = connection.start(script("sleep 1000 & sleep 1000"));
        connection.socket.write_all(&nonsense).unwrap();
        assert_eq!(connection.answer(), None);
        // The supervisor ends although the test still has the write ends of the step's pipes.
        first.wait_until_idle();
    }
}

#[test]
fn late_descriptors_are_closed() {
    let first = FirstProcess::start();
    let mut connection = first.connect();
    let _pipes = connection.start(script("sleep 1000"));
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    connection.send_with(&StepRequest::Signal(18).encode().unwrap(), &[write]);
    // End of the pipe, once its write end is closed everywhere.
    assert_eq!(rustix::io::read(&read, &mut [0]), Ok(0));
}

#[test]
fn random_bytes_start_and_end_nothing() {
    let first = FirstProcess::start();
    let mut random = fastrand::Rng::with_seed(15);
    let good =
        frame(ContainerStep { env: vec![(b"A".to_vec(), b"b".to_vec())], ..script("exit 3") });
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
    assert_works(&first);
    first.wait_until_idle();
}
