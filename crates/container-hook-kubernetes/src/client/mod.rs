//! Client of the API server.
//!
//! [`ClusterClient`] knows the server's address and our credentials, retries temporary failures, and describes
//! rejected calls. `kube` implements the connection: kubeconfig files, token rotation, TLS, upgrades. All of it is
//! asynchronous, and runs inside [`ClusterClient::run`].

mod call;
mod cluster;
mod error;
mod exec;
mod objects;
mod opener;
#[cfg(test)]
pub mod testing;
#[cfg(test)]
mod tests;

pub use cluster::{ClusterClient, RetryPolicy};
pub use error::{ApiOperation, ApiRejection, CallFault, ClusterError, Verb};
pub use exec::{ExecEnd, ExecOutput, ExecStream};
pub use objects::ServerVersion;
pub use opener::ClusterOpener;
