//! The API server, behind one door.
//!
//! [`Cluster`] knows where it is and who we are, repeats what may work the next time, and says in words
//! what was refused. `kube` has the connection: kubeconfig files, tokens that rotate, TLS, upgrades.
//! What is here is asynchronous, and runs inside of [`Cluster::run`].

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

pub use cluster::{Cluster, RetryPolicy};
pub use error::{ClusterError, Fault, Operation, Refusal, Verb};
pub use exec::{Exec, ExecEnd, ExecOutput};
pub use objects::ServerVersion;
pub use opener::ClusterOpener;
