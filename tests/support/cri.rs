//! A client of the CRI, the interface by which Kubernetes' kubelet has containers made: as much of it as
//! tests need. Names and numbers are those of `runtime.v1`.

use std::collections::HashMap;
use std::path::Path;

use prost::Message;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Metadata {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) uid: String,
    #[prost(string, tag = "3")]
    pub(crate) namespace: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NamespaceOption {
    #[prost(int32, tag = "1")]
    pub(crate) network: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SandboxSecurity {
    #[prost(message, optional, tag = "1")]
    pub(crate) namespace_options: Option<NamespaceOption>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LinuxSandbox {
    #[prost(string, tag = "1")]
    pub(crate) cgroup_parent: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) security_context: Option<SandboxSecurity>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SandboxConfig {
    #[prost(message, optional, tag = "1")]
    pub(crate) metadata: Option<Metadata>,
    #[prost(string, tag = "3")]
    pub(crate) log_directory: String,
    #[prost(map = "string, string", tag = "7")]
    pub(crate) annotations: HashMap<String, String>,
    #[prost(message, optional, tag = "8")]
    pub(crate) linux: Option<LinuxSandbox>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RunSandbox {
    #[prost(message, optional, tag = "1")]
    pub(crate) config: Option<SandboxConfig>,
    #[prost(string, tag = "2")]
    pub(crate) runtime_handler: String,
}

/// A message with an id and nothing else, or with its first field only.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Id {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerMetadata {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ImageSpec {
    #[prost(string, tag = "1")]
    pub(crate) image: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ImageStatus {
    #[prost(message, optional, tag = "1")]
    pub(crate) image: Option<ImageSpec>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Mount {
    #[prost(string, tag = "1")]
    pub(crate) container_path: String,
    #[prost(string, tag = "2")]
    pub(crate) host_path: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerConfig {
    #[prost(message, optional, tag = "1")]
    pub(crate) metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "2")]
    pub(crate) image: Option<ImageSpec>,
    #[prost(string, repeated, tag = "3")]
    pub(crate) command: Vec<String>,
    #[prost(message, repeated, tag = "7")]
    pub(crate) mounts: Vec<Mount>,
    #[prost(map = "string, string", tag = "10")]
    pub(crate) annotations: HashMap<String, String>,
    #[prost(string, tag = "11")]
    pub(crate) log_path: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CreateContainer {
    #[prost(string, tag = "1")]
    pub(crate) sandbox: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) config: Option<ContainerConfig>,
    #[prost(message, optional, tag = "3")]
    pub(crate) sandbox_config: Option<SandboxConfig>,
}

/// The state and the exit code of a container.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Status {
    #[prost(int32, tag = "3")]
    pub(crate) state: i32,
    #[prost(int32, tag = "7")]
    pub(crate) exit_code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerStatus {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<Status>,
}

/// A connection to a CRI socket.
pub(crate) struct Client {
    runtime: tokio::runtime::Runtime,
    channel: Channel,
}

impl Client {
    pub(crate) fn new(socket: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let endpoint = Endpoint::try_from(format!("unix://{}", socket.display())).unwrap();
        let channel = runtime.block_on(async { endpoint.connect_lazy() });
        Client { runtime, channel }
    }

    /// Calls a method such as `RuntimeService/RunPodSandbox`; an error is its message.
    pub(crate) fn call<Q, R>(&self, method: &str, request: Q) -> Result<R, String>
    where
        Q: Message + Send + Sync + 'static,
        R: Message + Default + Send + Sync + 'static,
    {
        let path = PathAndQuery::try_from(format!("/runtime.v1.{method}")).unwrap();
        let mut client = Grpc::new(self.channel.clone());
        self.runtime.block_on(async {
            client.ready().await.map_err(|error| error.to_string())?;
            let codec = ProstCodec::<Q, R>::default();
            let response = client.unary(tonic::Request::new(request), path, codec).await;
            response.map(tonic::Response::into_inner).map_err(|status| status.message().to_owned())
        })
    }
}
