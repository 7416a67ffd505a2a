//! A client of the CRI, through which Kubernetes' kubelet creates containers, as far as tests need it. Names
//! and numbers are those of `runtime.v1`.

use std::collections::HashMap;
use std::path::Path;

use prost::Message;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SandboxMetadata {
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
    pub(crate) metadata: Option<SandboxMetadata>,
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

/// A message whose only field, or first field, is an id.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct IdMessage {
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
pub(crate) struct CriMount {
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
    pub(crate) mounts: Vec<CriMount>,
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

/// State and exit code of a container.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StatusMessage {
    #[prost(int32, tag = "3")]
    pub(crate) state: i32,
    #[prost(int32, tag = "7")]
    pub(crate) exit_code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerStatus {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<StatusMessage>,
}

/// A connection to a CRI socket.
pub(crate) struct CriClient {
    runtime: tokio::runtime::Runtime,
    channel: Channel,
}

impl CriClient {
    pub(crate) fn new(socket: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let endpoint = Endpoint::try_from(format!("unix://{}", socket.display())).unwrap();
        let channel = runtime.block_on(async { endpoint.connect_lazy() });
        CriClient { runtime, channel }
    }

    /// Calls a method such as `RuntimeService/RunPodSandbox`; returns the message of an error.
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
