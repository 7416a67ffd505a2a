//! Conversations without a socket.

use super::*;
use crate::wire::nri::{Container, Hook};

/// Counts calls, and rejects containers named "rejected".
#[derive(Default)]
struct RecordingService {
    calls: Vec<String>,
}

impl PluginService for RecordingService {
    fn configure(&mut self, request: &ConfigureRequest) -> Result<(), String> {
        self.calls.push(format!("configure {}", request.config));
        if request.config == "bad" { Err("no such key".to_owned()) } else { Ok(()) }
    }

    fn synchronize(&mut self, request: &SynchronizeRequest) {
        self.calls.push(format!("synchronize {}", request.containers.len()));
    }

    fn create_container(
        &mut self,
        request: &CreateContainerRequest,
    ) -> Result<ContainerAdjustment, String> {
        let name = request.container.clone().unwrap_or_default().name;
        let path = match name.as_str() {
            "rejected" => return Err("it is rejected".to_owned()),
            "plain" => return Ok(Hooks::default().into()),
            "large" => "x".repeat(5 << 20),
            _ => "/bin/true".to_owned(),
        };
        Ok(Hooks { poststop: vec![hook(&path)], ..Hooks::default() }.into())
    }

    fn shutdown(&mut self) {
        self.calls.push("shutdown".to_owned());
    }
}

fn hook(path: &str) -> Hook {
    Hook { path: path.to_owned(), ..Hook::default() }
}

fn session() -> NriSession {
    NriSession::new(PluginIdentity::new("test", "10").unwrap()).0
}

fn frames(stream: u32, service: &str, method: &str, payload: Vec<u8>) -> Vec<u8> {
    let request = Request {
        service: service.to_owned(),
        method: method.to_owned(),
        payload,
        timeout_nano: 2_000_000_000,
    };
    let mut out = Vec::new();
    let message = ttrpc::encode(stream, MessageKind::Request, &request.encode_to_vec());
    multiplex(multiplex::PLUGIN, &message, &mut out);
    out
}

/// Calls a method of the plugin, and returns the payload or the error of its response.
fn answer(
    session: &mut NriSession,
    stream: u32,
    method: &str,
    payload: Vec<u8>,
) -> Result<Vec<u8>, (i32, String)> {
    let out = session
        .receive(&frames(stream, PLUGIN_SERVICE, method, payload), &mut RecordingService::default())
        .unwrap();
    response(&out, stream)
}

fn response(out: &[u8], stream: u32) -> Result<Vec<u8>, (i32, String)> {
    let mut messages = Vec::new();
    let mut reader = MessageReader::default();
    Demultiplexer::default().feed(out, |connection, part| {
        assert_eq!(connection, multiplex::PLUGIN);
        reader.feed(part, |message| messages.push(message));
    });
    let [
        TtrpcMessage {
            stream: found,
            kind: MessageKind::Response,
            payload: MessagePayload::Bytes(payload),
        },
    ] = &messages[..]
    else {
        panic!("{messages:?}")
    };
    assert_eq!(*found, stream);
    let response = Response::decode(&payload[..]).unwrap();
    match response.status {
        Some(status) if status.code != 0 => Err((status.code, status.message)),
        _ => Ok(response.payload),
    }
}

fn create(name: &str) -> Vec<u8> {
    let container = Some(Container { name: name.to_owned(), ..Container::default() });
    CreateContainerRequest { pod: None, container }.encode_to_vec()
}

#[test]
fn registration_matches_the_bytes_expected_by_containerd() {
    let (_, out) = NriSession::new(PluginIdentity::new("n", "10").unwrap());
    let mut expected = vec![0, 0, 0, 2, 0, 0, 0, 68, 0, 0, 0, 58, 0, 0, 0, 1, 1, 0];
    expected.extend(b"\x0a\x1cnri.pkg.api.v1alpha1.Runtime");
    expected.extend(b"\x12\x0eRegisterPlugin");
    expected.extend(b"\x1a\x07\x0a\x01n\x12\x0210");
    expected[7] = u8::try_from(expected.len() - 8).unwrap();
    expected[11] = u8::try_from(expected.len() - 18).unwrap();
    assert_eq!(out, expected);
}

#[test]
fn a_rejected_registration_is_an_error() {
    let respond = |status: Option<Status>| {
        let response = Response { status, payload: Vec::new() }.encode_to_vec();
        let mut out = Vec::new();
        let message = ttrpc::encode(REGISTRATION, MessageKind::Response, &response);
        multiplex(multiplex::RUNTIME, &message, &mut out);
        let mut session = session();
        session.receive(&out, &mut RecordingService::default()).map(|_| session.is_registered())
    };
    assert!(respond(None).unwrap());
    assert!(respond(Some(Status { code: 0, message: String::new() })).unwrap());
    let error = respond(Some(Status { code: 2, message: "no".to_owned() })).unwrap_err();
    assert_eq!(error.to_string(), "the runtime rejected the registration as 10-test: no");
}

#[test]
fn configure_synchronize_and_create_container_are_answered() {
    let mut session = session();
    let configured = answer(&mut session, 1, "Configure", Vec::new()).unwrap();
    assert_eq!(ConfigureResponse::decode(&configured[..]).unwrap().events, 8);
    let more = SynchronizeRequest { more: true, ..SynchronizeRequest::default() };
    let synchronized = answer(&mut session, 3, "Synchronize", more.encode_to_vec()).unwrap();
    assert!(SynchronizeResponse::decode(&synchronized[..]).unwrap().more);
    let created = answer(&mut session, 5, "CreateContainer", create("a")).unwrap();
    let created = CreateContainerResponse::decode(&created[..]).unwrap();
    assert_eq!(created.adjust.unwrap().hooks.unwrap().poststop, [hook("/bin/true")]);
    assert_eq!(answer(&mut session, 7, "CreateContainer", create("plain")), Ok(Vec::new()));
    for (at, method) in IGNORED.iter().enumerate() {
        let stream = 9 + 2 * u32::try_from(at).unwrap();
        assert_eq!(answer(&mut session, stream, method, vec![255; 9]), Ok(Vec::new()), "{method}");
    }
}

#[test]
fn errors_are_answered_and_the_session_continues() {
    let mut session = session();
    let error = answer(&mut session, 1, "CreateContainer", create("rejected")).unwrap_err();
    assert_eq!(error, (code::FAILED_PRECONDITION, "it is rejected".to_owned()));
    let (code, _) = answer(&mut session, 3, "CreateContainer", vec![255]).unwrap_err();
    assert_eq!(code, code::INVALID_ARGUMENT);
    let (code, text) = answer(&mut session, 5, "Reboot", Vec::new()).unwrap_err();
    assert_eq!((code, text.as_str()), (code::UNIMPLEMENTED, "unknown method \"Reboot\""));
    let (code, _) = answer(&mut session, 5, "Configure", Vec::new()).unwrap_err();
    assert_eq!(code, code::INVALID_ARGUMENT, "a stream that was used");
    let (code, _) = answer(&mut session, 8, "Configure", Vec::new()).unwrap_err();
    assert_eq!(code, code::INVALID_ARGUMENT, "an even stream");
    let (code, text) = answer(&mut session, 9, "CreateContainer", create("large")).unwrap_err();
    assert_eq!(code, code::RESOURCE_EXHAUSTED, "{text}");
    let (code, _) = answer(&mut session, 11, "StateChange", vec![0; 4 << 20]).unwrap_err();
    assert_eq!(code, code::RESOURCE_EXHAUSTED);
    assert!(answer(&mut session, 13, "CreateContainer", create("a")).is_ok());
    let other = frames(15, "nri.pkg.api.v1alpha1.HostFunctions", "Log", Vec::new());
    let out = session.receive(&other, &mut RecordingService::default()).unwrap();
    assert_eq!(response(&out, 15).unwrap_err().0, code::UNIMPLEMENTED);
}

#[test]
fn arbitrary_bytes_cause_no_panic_and_little_memory() {
    let mut random = fastrand::Rng::with_seed(14);
    let valid = frames(1, PLUGIN_SERVICE, "CreateContainer", create("a"));
    for _ in 0..2000 {
        let mut bytes = valid.repeat(1 + random.usize(..3));
        for _ in 0..random.usize(..6) {
            let at = random.usize(..bytes.len());
            bytes[at] = random.u8(..);
        }
        bytes.truncate(random.usize(..=bytes.len()));
        let mut session = session();
        for part in bytes.chunks(1 + random.usize(..40)) {
            // A response that cannot be decoded ends the conversation.
            let Ok(out) = session.receive(part, &mut RecordingService::default()) else { break };
            assert!(out.len() < 1000);
        }
    }
}
