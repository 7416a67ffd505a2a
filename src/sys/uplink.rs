//! The way out of a network namespace that is an ordinary user's own: pasta or slirp4netns, which take what is
//! sent to a tap device there and send it on by sockets of their own on the host.
//!
//! Such a program is started in the host's network, by whoever is root of the user namespace that the network
//! namespace belongs to, and enters that by a pin. It is a process of that user: the pid namespace it is
//! started in ends it. What is at the other end of the tap gets no further than the user does, and less: the
//! host's loopback cannot be reached by it, but for one resolver.

mod error;
mod find;
mod slirp4netns;
mod start;
mod version;

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use error::UplinkError;
pub use find::{UplinkChoice, UplinkChoiceError};
pub use start::{Forward, Gateway4, Gateway6, Transport, UplinkRequest};
pub use version::Version;

/// How long packets through an uplink may be, in bytes. Each costs the program a system call or two, so that
/// this decides how much gets through; both programs take it.
pub const MTU: u32 = 65520;

/// The length of the prefix of the network between the program and the namespace, by IPv4 and IPv6.
pub const PREFIX: u8 = 24;
/// See [`PREFIX`].
pub const PREFIX6: u8 = 64;

/// The device of the kernel that both programs make theirs by.
pub const TUN: &str = "/dev/net/tun";

/// A kind of program that leads out of a network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UplinkKind {
    Pasta,
    Slirp4netns,
}

impl UplinkKind {
    /// Returns what the program is called.
    pub fn name(self) -> &'static str {
        match self {
            UplinkKind::Pasta => "pasta",
            UplinkKind::Slirp4netns => "slirp4netns",
        }
    }

    /// Returns the package of most distributions that has it.
    pub fn package(self) -> &'static str {
        match self {
            UplinkKind::Pasta => "passt",
            UplinkKind::Slirp4netns => "slirp4netns",
        }
    }

    /// Returns whether IPv6 gets through, if the host has it.
    pub fn has_ipv6(self) -> bool {
        // slirp4netns calls it experimental, and has one network for all.
        self == UplinkKind::Pasta
    }
}

impl fmt::Display for UplinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A program that leads out of a network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uplink {
    pub kind: UplinkKind,
    /// Its file.
    pub program: PathBuf,
    /// None if it does not say.
    pub version: Option<Version>,
}

impl Uplink {
    /// Returns whether connections that a client ends on its side before it is answered hang or lose data,
    /// as they do with pasta of 2023 and 2025: what asks like that is `nc`, and some package managers.
    ///
    /// Of the versions in between it is not known: they count as the older ones.
    pub fn loses_half_closed(&self) -> bool {
        self.kind == UplinkKind::Pasta
            && self.version.as_ref().is_none_or(|version| *version < version::ANSWERS)
    }
}
