//! Frames and messages that no runtime sends.

use std::io::Write as _;

use oci_hooks_nri::multiplex::{PLUGIN, multiplex};
use oci_hooks_nri::ttrpc::{self, MessageKind};
use oci_hooks_nri::wire::nri::CreateContainerRequest;
use prost::Message as _;

use crate::plugin::{PluginDir, container};
use crate::runtime::request;

/// Status code for messages that are too large.
const RESOURCE_EXHAUSTED: i32 = 8;

#[test]
fn oversized_unknown_and_invalid_messages_are_answered_and_the_next_one_works() {
    let place = PluginDir::new();
    let (plugin, mut runtime) = place.start_accepted(&[]);
    let (code, _) = runtime.call("StateChange", vec![0; 5 << 20]).unwrap_err();
    assert_eq!(code, RESOURCE_EXHAUSTED);
    let mut out = Vec::new();
    // A frame of another connection, whose frames may have any length.
    out.extend([0, 0, 0, 9]);
    out.extend(u32::to_be_bytes(1 << 20));
    out.extend(vec![b'x'; 1 << 20]);
    multiplex(PLUGIN, &ttrpc::encode(99, MessageKind::Response, b"nobody asked"), &mut out);
    multiplex(PLUGIN, &ttrpc::encode(99, MessageKind::Unknown, b"later versions"), &mut out);
    runtime.socket.write_all(&out).unwrap();
    assert!(runtime.call("CreateContainer", vec![0xff; 100]).is_err());
    assert!(runtime.call("Reboot", Vec::new()).is_err());
    assert!(runtime.create(None, container("/bin/sh")).is_ok());
    let status = std::fs::read_to_string(format!("/proc/{}/status", plugin.pid())).unwrap();
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    let kilobytes: u64 = peak.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(kilobytes < 40_000, "{peak}");
}

#[test]
fn calls_that_come_together_or_in_pieces_are_answered_in_order() {
    let place = PluginDir::new();
    let (_plugin, mut runtime) = place.start_accepted(&[]);
    let payload = |size: usize| {
        let mut container = container("/bin/sh");
        container.args.push("x".repeat(size));
        CreateContainerRequest { pod: None, container: Some(container) }.encode_to_vec()
    };
    let mut out = Vec::new();
    let streams: Vec<_> = (0..20).map(|_| runtime.next_stream()).collect();
    for (at, stream) in streams.iter().enumerate() {
        out.extend(request(*stream, "CreateContainer", payload(at * 1000)));
    }
    for part in out.chunks(777) {
        runtime.socket.write_all(part).unwrap();
    }
    for stream in streams {
        runtime.response(stream).unwrap();
    }
}

#[test]
fn disconnect_within_a_frame_is_handled_normally() {
    let place = PluginDir::new();
    let listener = place.listen();
    let _plugin = place.start_external(&[]);
    for cut in [1, 9, 30] {
        let mut runtime = crate::plugin::accept(&listener);
        runtime.socket.write_all(&request(99, "Configure", vec![0; 100])[..cut]).unwrap();
    }
    crate::plugin::accept(&listener).create(None, container("/bin/sh")).unwrap();
}
