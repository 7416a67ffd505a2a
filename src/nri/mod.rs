//! NRI, the Node Resource Interface of containerd and CRI-O: adding hooks to containers as a plugin.
//!
//! A plugin and a runtime share one socket. [`multiplex`] separates its two connections, one for each
//! side to call the other; [`ttrpc`] reads and writes the messages on them; [`Session`] is the plugin's
//! side of the conversation: bytes come in, bytes go out, and no call blocks. [`Decider`] selects the
//! hooks of a container, [`Metrics`] counts what it did, and [`SocketWatch`] waits for the runtime's
//! socket to appear.
//!
//! The messages are decoded by `prost`. The `ttrpc` crate wants a socket of its own for each connection,
//! its own threads or tokio; what it does for unary calls takes less code than bridging the two
//! multiplexed connections to it by socket pairs.

mod connect;
mod decide;
mod identity;
mod metrics;
pub mod multiplex;
mod session;
pub mod ttrpc;
pub mod wire;

pub use connect::{SocketWatch, Woken};
pub use decide::{Decider, Decision, Rejection, container_name};
pub use identity::{Identity, IdentityError};
pub use metrics::{Metrics, Outcome};
pub use session::{Service, Session, SessionError};
