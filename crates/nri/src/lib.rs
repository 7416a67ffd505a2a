//! Plugins for NRI, the Node Resource Interface of containerd and CRI-O: a library for writing one, and the
//! parts of the program `oci-hooks-nri`, which adds hooks.d hooks to containers.
//!
//! A plugin implements [`PluginService`], whose only required method receives each container before it is created,
//! and returns hooks, annotations and variables to add, or an error that rejects the container. A [`NriSession`]
//! is the plugin's side of the conversation: it takes the bytes that the plugin read from the runtime's
//! socket, calls the service, and returns the bytes to write. It does no I/O and needs no threads or async
//! runtime. [`SocketWatch`] waits for a runtime's socket to appear.
//!
//! The example `plugin` (`examples/plugin.rs`) prints containers and gives each a variable:
//!
//! ```text
//! cargo run -p oci-hooks-nri --example plugin -- /var/run/nri/nri.sock
//! ```
//!
//! Below a session, [`multiplex`] separates the two connections that share the socket, one for the calls of
//! each side, and [`ttrpc`] reads and writes their messages. For the program, [`Decider`] selects the hooks
//! of a container, and [`Metrics`] counts the decisions.
//!
//! # Limits
//!
//! - A plugin is called for each container that is created, and gets a list of existing ones when it connects. It
//!   subscribes to no other event: pods, starts, stops and updates are not reported.
//! - It sees the ID, name, annotations, arguments, mounts and hooks of a container, and the ID, name, namespace and
//!   annotations of a pod. It can add hooks, annotations and variables, but no mounts, devices or limits. [`wire`]
//!   has all decoded messages.
//! - It cannot call the runtime, for example to update or evict other containers.
//! - Messages are limited to 4 MiB.
//! - It is tested with containerd 1.7.24, where NRI is off by default. CRI-O has the same interface since 1.26 and is
//!   untested.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod connect;
mod decide;
mod identity;
mod metrics;
pub mod multiplex;
mod session;
pub mod ttrpc;
pub mod wire;

pub use connect::{SocketWatch, WaitResult};
pub use decide::{Decider, Decision, RejectionError, container_name};
pub use identity::{IdentityError, PluginIdentity};
pub use metrics::{ContainerOutcome, Metrics};
pub use session::{NriSession, PluginService, SessionError};
