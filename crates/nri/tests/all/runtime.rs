//! A simulated runtime's side of NRI, which the benchmark includes too.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use oci_hooks_nri::multiplex::{self, Demultiplexer, multiplex};
use oci_hooks_nri::ttrpc::{self, MessageKind, MessagePayload, MessageReader, TtrpcMessage};
use oci_hooks_nri::wire::nri::{
    ConfigureRequest, ConfigureResponse, Container, CreateContainerRequest,
    CreateContainerResponse, Hooks, PodSandbox, RegisterPluginRequest,
};
use oci_hooks_nri::wire::ttrpc::{Request, Response, Status};
use oci_hooks_testsupport::program::DEADLINE;
use prost::Message as _;

/// A runtime with one connected plugin.
pub(crate) struct SimulatedRuntime {
    pub(crate) socket: UnixStream,
    demultiplexer: Demultiplexer,
    readers: [MessageReader; 2],
    received: VecDeque<(u32, TtrpcMessage)>,
    next_stream: u32,
}

/// Code and message of an error.
pub(crate) type CallError = (i32, String);

impl SimulatedRuntime {
    pub(crate) fn new(socket: UnixStream) -> Self {
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        SimulatedRuntime {
            socket,
            demultiplexer: Demultiplexer::default(),
            readers: [MessageReader::default(), MessageReader::default()],
            received: VecDeque::new(),
            next_stream: 1,
        }
    }

    /// Accepts the plugin's registration; returns its index and name.
    #[track_caller]
    pub(crate) fn register(&mut self) -> String {
        self.answer_registration(Status::default())
    }

    /// Answers the plugin's registration.
    #[track_caller]
    pub(crate) fn answer_registration(&mut self, status: Status) -> String {
        let (connection, message) = self.message().expect("the plugin registers");
        assert_eq!((connection, message.kind), (multiplex::RUNTIME, MessageKind::Request));
        let request = Request::decode(&bytes(&message)[..]).unwrap();
        assert_eq!(request.service, "nri.pkg.api.v1alpha1.Runtime");
        assert_eq!(request.method, "RegisterPlugin");
        let plugin = RegisterPluginRequest::decode(&request.payload[..]).unwrap();
        let response = Response { status: Some(status), payload: Vec::new() }.encode_to_vec();
        let response = ttrpc::encode(message.stream, MessageKind::Response, &response);
        let mut out = Vec::new();
        multiplex(multiplex::RUNTIME, &response, &mut out);
        self.socket.write_all(&out).unwrap();
        format!("{}-{}", plugin.plugin_idx, plugin.plugin_name)
    }

    /// Configures the plugin; returns the events to which it subscribes.
    pub(crate) fn configure(&mut self, config: &str) -> Result<i32, CallError> {
        let request = ConfigureRequest {
            config: config.to_owned(),
            runtime_name: "played".to_owned(),
            runtime_version: "1".to_owned(),
            request_timeout: 2000,
        };
        let response = self.call("Configure", request.encode_to_vec())?;
        Ok(ConfigureResponse::decode(&response[..]).unwrap().events)
    }

    /// Accepts the plugin and configures it with this text.
    #[track_caller]
    pub(crate) fn accept(socket: UnixStream, config: &str) -> Self {
        let mut runtime = Self::new(socket);
        runtime.register();
        assert_eq!(runtime.configure(config), Ok(8));
        runtime.call("Synchronize", Vec::new()).unwrap();
        runtime
    }

    /// Creates a container; returns the hooks that the plugin adds.
    pub(crate) fn create(
        &mut self,
        pod: Option<PodSandbox>,
        container: Container,
    ) -> Result<Hooks, CallError> {
        let request = CreateContainerRequest { pod, container: Some(container) };
        let response = self.call("CreateContainer", request.encode_to_vec())?;
        let response = CreateContainerResponse::decode(&response[..]).unwrap();
        Ok(response.adjust.and_then(|adjust| adjust.hooks).unwrap_or_default())
    }

    /// Calls a method of the plugin.
    pub(crate) fn call(&mut self, method: &str, payload: Vec<u8>) -> Result<Vec<u8>, CallError> {
        let stream = self.next_stream();
        let request = request(stream, method, payload);
        self.socket.write_all(&request).unwrap();
        self.response(stream)
    }

    /// Repeats a recorded call.
    pub(crate) fn replay(&mut self, request: &[u8]) -> Result<Vec<u8>, CallError> {
        let stream = self.next_stream();
        let mut out = Vec::new();
        multiplex(
            multiplex::PLUGIN,
            &ttrpc::encode(stream, MessageKind::Request, request),
            &mut out,
        );
        self.socket.write_all(&out).unwrap();
        self.response(stream)
    }

    /// Returns the stream number of the next call.
    pub(crate) fn next_stream(&mut self) -> u32 {
        self.next_stream += 2;
        self.next_stream - 2
    }

    /// Waits for the response to a call.
    #[track_caller]
    pub(crate) fn response(&mut self, stream: u32) -> Result<Vec<u8>, CallError> {
        let (connection, message) = self.message().expect("the plugin answers");
        assert_eq!((connection, message.kind), (multiplex::PLUGIN, MessageKind::Response));
        assert_eq!(message.stream, stream);
        let response = Response::decode(&bytes(&message)[..]).unwrap();
        match response.status {
            Some(Status { code, message }) if code != 0 => Err((code, message)),
            _ => Ok(response.payload),
        }
    }

    /// Waits for a message and its connection; returns `None` when the plugin has closed the connection.
    pub(crate) fn message(&mut self) -> Option<(u32, TtrpcMessage)> {
        let mut buffer = [0; 4096];
        loop {
            if let Some(message) = self.received.pop_front() {
                return Some(message);
            }
            let count = self.socket.read(&mut buffer).expect("the plugin says something");
            if count == 0 {
                return None;
            }
            let (readers, received) = (&mut self.readers, &mut self.received);
            self.demultiplexer.feed(&buffer[..count], |connection, part| {
                let reader = &mut readers[connection as usize - 1];
                reader.feed(part, |message| received.push_back((connection, message)));
            });
        }
    }
}

/// Encodes a call of the plugin.
pub(crate) fn request(stream: u32, method: &str, payload: Vec<u8>) -> Vec<u8> {
    let request = Request {
        service: "nri.pkg.api.v1alpha1.Plugin".to_owned(),
        method: method.to_owned(),
        payload,
        timeout_nano: 2_000_000_000,
    };
    let mut out = Vec::new();
    let message = ttrpc::encode(stream, MessageKind::Request, &request.encode_to_vec());
    multiplex(multiplex::PLUGIN, &message, &mut out);
    out
}

fn bytes(message: &TtrpcMessage) -> Vec<u8> {
    match &message.payload {
        MessagePayload::Bytes(bytes) => bytes.clone(),
        MessagePayload::Oversized(length) => panic!("a message of {length} bytes"),
    }
}
