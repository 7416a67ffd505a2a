//! The plugin's side of a conversation with a runtime.

use prost::Message as _;
use tracing::{debug, trace};

use super::identity::PluginIdentity;
use super::multiplex::{self, Demultiplexer, multiplex};
use super::ttrpc::{
    self, MAX_PAYLOAD_BYTES, MessageKind, MessagePayload, MessageReader, TtrpcMessage,
};
use super::wire::nri::{
    ConfigureRequest, ConfigureResponse, ContainerAdjustment, CreateContainerRequest,
    CreateContainerResponse, Hooks, RegisterPluginRequest, SynchronizeRequest, SynchronizeResponse,
};
use super::wire::ttrpc::{Request, Response, Status};

const PLUGIN_SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";

const RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";

/// Event mask of the subscription: bit 3 is `CREATE_CONTAINER`, event 4.
const EVENTS: i32 = 1 << 3;

/// Calls that are answered without any action. The plugin does not subscribe to them, but a runtime may send
/// them.
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

/// ttrpc stream of the registration, the only call that the plugin makes.
const REGISTRATION: u32 = 1;

/// Status codes of gRPC, which ttrpc uses.
mod code {
    pub const INVALID_ARGUMENT: i32 = 3;
    pub const RESOURCE_EXHAUSTED: i32 = 8;
    pub const FAILED_PRECONDITION: i32 = 9;
    pub const UNIMPLEMENTED: i32 = 12;
}

/// Methods of a plugin, called by the runtime. An error is reported to the runtime.
pub trait PluginService {
    /// Configures the plugin with its part of the runtime's configuration. The default ignores it.
    fn configure(&mut self, request: &ConfigureRequest) -> Result<(), String> {
        let _ = request;
        Ok(())
    }

    /// Receives containers that already exist; the runtime may call this several times, each time with some
    /// of them. The default ignores them.
    fn synchronize(&mut self, request: &SynchronizeRequest) {
        let _ = request;
    }

    /// Returns the changes to a container that is about to be created. An error rejects the container.
    fn create_container(
        &mut self,
        request: &CreateContainerRequest,
    ) -> Result<ContainerAdjustment, String>;

    /// Notifies the plugin that the runtime is shutting down. The default ignores it.
    fn shutdown(&mut self) {}
}

impl From<Hooks> for ContainerAdjustment {
    fn from(hooks: Hooks) -> Self {
        let hooks = (hooks != Hooks::default()).then_some(hooks);
        ContainerAdjustment { hooks, ..ContainerAdjustment::default() }
    }
}

/// Errors that end a conversation with a runtime.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("the runtime rejected the registration as {identity}: {message}")]
    Rejected { identity: PluginIdentity, message: String },
    #[error("the runtime sent an invalid response")]
    Response(#[source] prost::DecodeError),
}

/// A conversation with a runtime: takes the bytes from its socket, and returns the bytes for it.
#[derive(Debug)]
pub struct NriSession {
    identity: PluginIdentity,
    demultiplexer: Demultiplexer,
    requests: MessageReader,
    responses: MessageReader,
    /// Highest ttrpc stream number that the runtime has used. Stream numbers increase.
    last_stream: u32,
    is_registered: bool,
}

impl NriSession {
    /// Starts a conversation. The returned bytes register the plugin, and have to be sent first.
    pub fn new(identity: PluginIdentity) -> (Self, Vec<u8>) {
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
        let message = ttrpc::encode(REGISTRATION, MessageKind::Request, &request.encode_to_vec());
        let mut out = Vec::new();
        multiplex(multiplex::RUNTIME, &message, &mut out);
        let session = NriSession {
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

    /// Processes bytes from the socket, and returns the bytes to write to it.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        service: &mut impl PluginService,
    ) -> Result<Vec<u8>, SessionError> {
        let (mut requests, mut responses) = (Vec::new(), Vec::new());
        self.demultiplexer.feed(bytes, |connection, part| match connection {
            multiplex::PLUGIN => self.requests.feed(part, |message| requests.push(message)),
            multiplex::RUNTIME => self.responses.feed(part, |message| responses.push(message)),
            // Later versions may have more connections.
            _ => trace!(connection, "skip bytes of an unknown connection"),
        });
        for response in responses {
            self.handle_registration(response)?;
        }
        let mut out = Vec::new();
        for request in requests {
            let stream = request.stream;
            if let Some(response) = self.respond(request, service) {
                let message = ttrpc::encode(stream, MessageKind::Response, &response);
                multiplex(multiplex::PLUGIN, &message, &mut out);
            }
        }
        Ok(out)
    }

    /// Processes the response to the registration.
    fn handle_registration(&mut self, message: TtrpcMessage) -> Result<(), SessionError> {
        let (REGISTRATION, MessageKind::Response, MessagePayload::Bytes(payload)) =
            (message.stream, message.kind, message.payload)
        else {
            debug!("skip a message that is not the response to the registration");
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

    /// Returns the payload of the response to a message of the runtime, if the message needs one.
    fn respond(
        &mut self,
        message: TtrpcMessage,
        service: &mut impl PluginService,
    ) -> Option<Vec<u8>> {
        let result = match message.kind {
            MessageKind::Request => self.request(message, service),
            MessageKind::Data => Err(invalid("NRI has no streams".to_owned())),
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

    fn request(
        &mut self,
        message: TtrpcMessage,
        service: &mut impl PluginService,
    ) -> Result<Vec<u8>, Status> {
        if message.stream.is_multiple_of(2) || message.stream <= self.last_stream {
            let (stream, last) = (message.stream, self.last_stream);
            let text = format!("invalid stream {stream}: expected an odd number above {last}");
            return Err(invalid(text));
        }
        self.last_stream = message.stream;
        match message.payload {
            MessagePayload::Bytes(payload) => call(&decode(&payload)?, service),
            MessagePayload::Oversized(length) => Err(Status {
                code: code::RESOURCE_EXHAUSTED,
                message: format!("the request has {length} bytes: expected at most 4 MiB"),
            }),
        }
    }
}

/// Returns the payload of the response to a call.
fn call(request: &Request, service: &mut impl PluginService) -> Result<Vec<u8>, Status> {
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
            let adjust = service.create_container(&decode(payload)?).map_err(rejected)?;
            let is_change = adjust != ContainerAdjustment::default();
            CreateContainerResponse { adjust: is_change.then_some(adjust) }.encode_to_vec()
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
