//! The example of the client library, run once.

use step_runner::wire::proto::step_result::Status;

use crate::service::setup::{ServerFixture, block_on};

#[path = "../../../examples/step_client.rs"]
#[expect(dead_code, reason = "nobody calls its main")]
mod step_client;

#[test]
fn step_client_prints_both_streams_and_the_exit_code() {
    let server = ServerFixture::start();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let script = "echo hello; echo problem >&2; exit 3";
    let socket = server.socket();
    let run = step_client::run(&socket, "1", script, &mut out, &mut err);
    let outcome = block_on(run).unwrap();
    assert_eq!((outcome.status, outcome.exit_code), (Status::Failure, 3));
    let out = String::from_utf8(out).unwrap();
    assert!(out.ends_with("hello\n"), "{out}");
    assert_eq!(String::from_utf8(err).unwrap(), "problem\n");
}
