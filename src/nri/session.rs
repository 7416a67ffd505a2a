//! The plugin's side of a conversation with a runtime.

use prost::Message as _;
use tracing::{debug, trace};

use super::identity::Identity;
use super::multiplex::{self, Demultiplexer, multiplex};
use super::ttrpc::{self, Kind, MAX_PAYLOAD_BYTES, Message, MessageReader, Payload};
use super::wire::nri::{
    ConfigureRequest, ConfigureResponse, ContainerAdjustment, CreateContainerRequest,
    CreateContainerResponse, Hooks, RegisterPluginRequest, SynchronizeRequest, SynchronizeResponse,
};
use super::wire::ttrpc::{Request, Response, Status};

/// The service that plugins serve.
const PLUGIN_SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";

/// The service that runtimes serve.
const RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";

/// The events to be told of: bit 3 is `CREATE_CONTAINER`, which is event 4.
const EVENTS: i32 = 1 << 3;

/// Calls that need no answer but that they came. None is subscribed to; a runtime may send them all the
/// same.
const IGNORED: [&str; 14] = [
    "RunPodSandbox",
    "UpdatePodSandbox",
    "PostUpdatePodSandbox",
    "StopPodSandbox",
    "RemovePodSandbox",
    "PostCreateContainer",
    "StartContainer",
    "PostStartContainer",
    "UpdateContainer",
    "PostUpdateContainer",
    "StopContainer",
    "RemoveContainer",
    "StateChange",
    "ValidateContainerAdjustment",
];

/// The stream of the only call of ours.
const REGISTRATION: u32 = 1;

/// Codes of gRPC, which ttrpc uses.
mod code {
    pub const INVALID_ARGUMENT: i32 = 3;
    pub const RESOURCE_EXHAUSTED: i32 = 8;
    pub const FAILED_PRECONDITION: i32 = 9;
    pub const UNIMPLEMENTED: i32 = 12;
}

/// What a plugin does when the runtime calls it. An error is the text that the runtime gets.
pub trait Service {
    /// Reads the plugin's part of the runtime's configuration.
    fn configure(&mut self, request: &ConfigureRequest) -> Result<(), String>;

    /// Is told of containers that exist already, of some in each of several calls.
    fn synchronize(&mut self, request: &SynchronizeRequest);

    /// Returns the hooks of a container that is about to be created. An error keeps it from being so.
    fn create_container(&mut self, request: &CreateContainerRequest) -> Result<Hooks, String>;

    /// Is told that the runtime ends.
    fn shutdown(&mut self);
}

/// Why a conversation with a runtime ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    #[error("the runtime rejected the registration as {identity}: {message}")]
    Rejected { identity: Identity, message: String },
    #[error("the runtime sent an invalid response")]
    Response(#[source] prost::DecodeError),
}

/// A conversation with a runtime: bytes from its socket go in, bytes for it come out.
#[derive(Debug)]
pub struct Session {
    identity: Identity,
    demultiplexer: Demultiplexer,
    requests: MessageReader,
    responses: MessageReader,
    /// The last stream of the runtime's, whose numbers grow.
    last_stream: u32,
    is_registered: bool,
}

impl Session {
    /// Begins a conversation. The bytes, which register the plugin, are to be sent first.
    pub fn new(identity: Identity) -> (Self, Vec<u8>) {
        let request = RegisterPluginRequest {
            plugin_name: identity.name.clone(),
            plugin_idx: identity.index.clone(),
        };
        let request = Request {
            service: RUNTIME_SERVICE.to_owned(),
            method: "RegisterPlugin".to_owned(),
            payload: request.encode_to_vec(),
            timeout_nano: 0,
        };
        let message = ttrpc::encode(REGISTRATION, Kind::Request, &request.encode_to_vec());
        let mut out = Vec::new();
        multiplex(multiplex::RUNTIME, &message, &mut out);
        let session = Session {
            identity,
            demultiplexer: Demultiplexer::default(),
            requests: MessageReader::default(),
            responses: MessageReader::default(),
            last_stream: 0,
            is_registered: false,
        };
        (session, out)
    }

    /// Returns whether the runtime has accepted the plugin.
    pub fn is_registered(&self) -> bool {
        self.is_registered
    }

    /// Takes what was read from the socket, and returns what is to be written to it.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        service: &mut impl Service,
    ) -> Result<Vec<u8>, SessionError> {
        let (mut requests, mut responses) = (Vec::new(), Vec::new());
        self.demultiplexer.feed(bytes, |connection, part| match connection {
            multiplex::PLUGIN => self.requests.feed(part, |message| requests.push(message)),
            multiplex::RUNTIME => self.responses.feed(part, |message| responses.push(message)),
            // For connections that later versions may have.
            _ => trace!(connection, "skip bytes of an unknown connection"),
        });
        for response in responses {
            self.registered(response)?;
        }
        let mut out = Vec::new();
        for request in requests {
            let stream = request.stream;
            if let Some(response) = self.respond(request, service) {
                let message = ttrpc::encode(stream, Kind::Response, &response);
                multiplex(multiplex::PLUGIN, &message, &mut out);
            }
        }
        Ok(out)
    }

    /// Reads the response to our registration.
    fn registered(&mut self, message: Message) -> Result<(), SessionError> {
        let (REGISTRATION, Kind::Response, Payload::Bytes(payload)) =
            (message.stream, message.kind, message.payload)
        else {
            debug!("skip a message that answers nothing");
            return Ok(());
        };
        let response = Response::decode(&payload[..]).map_err(SessionError::Response)?;
        match response.status {
            Some(Status { code, message }) if code != 0 => {
                Err(SessionError::Rejected { identity: self.identity.clone(), message })
            }
            _ => {
                self.is_registered = true;
                Ok(())
            }
        }
    }

    /// Returns the payload of the response to a message of the runtime, if it is one that has any.
    fn respond(&mut self, message: Message, service: &mut impl Service) -> Option<Vec<u8>> {
        let result = match message.kind {
            Kind::Request => self.request(message, service),
            Kind::Data => Err(invalid("NRI has no streams".to_owned())),
            _ => return None,
        };
        let response = match result {
            Ok(payload) => Response { status: None, payload },
            Err(status) => {
                debug!(code = status.code, message = ?status.message, "answer with an error");
                Response { status: Some(status), payload: Vec::new() }
            }
        };
        let response = response.encode_to_vec();
        if response.len() <= MAX_PAYLOAD_BYTES {
            return Some(response);
        }
        let message = format!("the response has {} bytes: expected at most 4 MiB", response.len());
        let status = Status { code: code::RESOURCE_EXHAUSTED, message };
        Some(Response { status: Some(status), payload: Vec::new() }.encode_to_vec())
    }

    fn request(&mut self, message: Message, service: &mut impl Service) -> Result<Vec<u8>, Status> {
        if message.stream.is_multiple_of(2) || message.stream <= self.last_stream {
            let stream = message.stream;
            return Err(invalid(format!("invalid stream {stream}: expected a greater odd number")));
        }
        self.last_stream = message.stream;
        match message.payload {
            Payload::Bytes(payload) => call(&decode(&payload)?, service),
            Payload::Oversized(length) => Err(Status {
                code: code::RESOURCE_EXHAUSTED,
                message: format!("the request has {length} bytes: expected at most 4 MiB"),
            }),
        }
    }
}

/// Returns the payload of the response to a call.
fn call(request: &Request, service: &mut impl Service) -> Result<Vec<u8>, Status> {
    let Request { service: name, method, payload, .. } = request;
    trace!(service = ?name, method = ?method, "a call of the runtime");
    if name != PLUGIN_SERVICE {
        return Err(unimplemented(format!("unknown service {name:?}")));
    }
    let rejected = |message| Status { code: code::FAILED_PRECONDITION, message };
    Ok(match method.as_str() {
        "Configure" => {
            service.configure(&decode(payload)?).map_err(rejected)?;
            ConfigureResponse { events: EVENTS }.encode_to_vec()
        }
        "Synchronize" => {
            let request: SynchronizeRequest = decode(payload)?;
            service.synchronize(&request);
            SynchronizeResponse { more: request.more }.encode_to_vec()
        }
        "CreateContainer" => {
            let hooks = service.create_container(&decode(payload)?).map_err(rejected)?;
            let adjust = ContainerAdjustment { hooks: Some(hooks) };
            let has_hooks = adjust.hooks != Some(Hooks::default());
            CreateContainerResponse { adjust: has_hooks.then_some(adjust) }.encode_to_vec()
        }
        "Shutdown" => {
            service.shutdown();
            Vec::new()
        }
        method if IGNORED.contains(&method) => Vec::new(),
        method => return Err(unimplemented(format!("unknown method {method:?}"))),
    })
}

fn decode<M: prost::Message + Default>(payload: &[u8]) -> Result<M, Status> {
    M::decode(payload).map_err(|error| invalid(format!("invalid request: {error}")))
}

fn invalid(message: String) -> Status {
    Status { code: code::INVALID_ARGUMENT, message }
}

fn unimplemented(message: String) -> Status {
    Status { code: code::UNIMPLEMENTED, message }
}

#[cfg(test)]
mod tests;
