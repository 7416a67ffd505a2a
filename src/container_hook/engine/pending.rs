//! Containers that are about to be made, and what they are started in.

use std::net::IpAddr;
use std::path::Path;

use super::job::Peer;
use super::network::JobNetwork;
use super::plan::Plan;
use crate::image::Image;
use crate::network::Endpoint;

/// A container that has all it needs but is not yet made.
pub(super) struct PendingContainer<'a> {
    pub(super) plan: &'a Plan<'a>,
    pub(super) image: Image,
    pub(super) id: String,
    /// None if it is not on the job's network.
    pub(super) endpoint: Option<Endpoint>,
}

/// What all containers of a job or step are started in.
#[derive(Clone, Copy)]
pub(super) struct LaunchContext<'a> {
    pub(super) network: &'a JobNetwork,
    pub(super) peers: &'a [Peer],
    /// The directory of the volumes of the pod.
    pub(super) volumes: &'a Path,
    /// The process whose process namespace all but the first share.
    pub(super) process: Option<u32>,
}

impl PendingContainer<'_> {
    /// Returns the container's own address.
    pub(super) fn address(&self) -> Option<IpAddr> {
        self.endpoint.as_ref().and_then(|endpoint| endpoint.addresses.first().copied())
    }
}
