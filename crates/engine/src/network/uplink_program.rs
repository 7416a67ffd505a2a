//! User-mode networking for rootless network namespaces: pasta or slirp4netns, which forward
//! traffic between a tap device in the namespace and their own sockets on the host.
//!
//! An uplink program is started in the host's network, by root of the user namespace that owns the
//! network namespace. It enters the network namespace by the file on which the namespace is pinned
//! (bind-mounted). It is a process of the user, and ends with the PID namespace in which it was
//! started. The network namespace reaches only what the user can reach, and not the host's
//! loopback, except for one resolver.

mod error;
mod find;
mod slirp4netns;
mod start;
mod version;

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use error::UplinkError;
pub use find::UplinkChoice;
pub use start::{Gateway4, Gateway6, PortForward, UplinkRequest};
use version::UplinkVersion;

/// MTU of an uplink in bytes. Each packet costs the program one or two system calls, so that large packets increase
/// throughput; both programs support this size.
pub const MTU: u32 = 65520;

/// The kernel's device with which both programs create their tap device.
pub const TUN: &str = "/dev/net/tun";

/// A supported uplink program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UplinkKind {
    Pasta,
    Slirp4netns,
}

impl UplinkKind {
    /// Returns the name of the program.
    pub fn name(self) -> &'static str {
        match self {
            UplinkKind::Pasta => "pasta",
            UplinkKind::Slirp4netns => "slirp4netns",
        }
    }

    /// Returns the package that contains the program in most distributions.
    fn package(self) -> &'static str {
        match self {
            UplinkKind::Pasta => "passt",
            UplinkKind::Slirp4netns => "slirp4netns",
        }
    }

    /// Returns whether the program forwards IPv6, if the host has it.
    pub fn has_ipv6(self) -> bool {
        // slirp4netns calls IPv6 experimental, and uses the same network for all namespaces.
        self == UplinkKind::Pasta
    }
}

impl fmt::Display for UplinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An installed uplink program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uplink {
    pub kind: UplinkKind,
    pub program: PathBuf,
    /// `None` if the program does not report its version.
    pub version: Option<UplinkVersion>,
}

impl Uplink {
    /// Returns whether connections hang or lose data if the client half-closes them before the answer, as they do with
    /// pasta of 2023 and 2025: `nc` and some package managers do this.
    ///
    /// Versions in between are untested, and count as broken.
    pub fn loses_half_closed(&self) -> bool {
        self.kind == UplinkKind::Pasta
            && self.version.as_ref().is_none_or(|version| *version < version::FIRST_WITHOUT_LOSS)
    }
}
