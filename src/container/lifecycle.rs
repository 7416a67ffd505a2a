//! Actions of a container's life as its record has them: health checks, and how it is stopped.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Something that a container is to do or to answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Check {
    /// A program in it ends with code 0.
    Command(Vec<String>),
    /// A request from its network is answered with a code from 200 to 399; certificates do not count.
    Http {
        /// `http` or `https`, with the host and the port.
        url: String,
        headers: Vec<(String, String)>,
    },
    /// A connection from its network is accepted.
    Tcp(SocketAddr),
    Sleep(Duration),
}

/// How a container is ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Stop {
    /// What is done in it first.
    pub before: Option<Check>,
    /// The signal that asks it to end; none if it takes no notice of any.
    pub signal: Option<String>,
    /// How long all of that may take.
    pub grace: Duration,
}
