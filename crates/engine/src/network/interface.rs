//! Names of network interfaces: valid ones, as the kernel accepts them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Prefix of the names of links on the host, also used by the firewall's rules.
pub const LINK: &str = "ocih";

/// `IFNAMSIZ`, including the terminating zero.
const BYTES: usize = 16;

/// The name of a network interface, valid for the kernel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct InterfaceName(String);

/// Error of parsing the name of an interface.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid interface name {text:?}: expected one that `ip link` shows, of at most 15 bytes, \
     for example \"br1\""
)]
pub struct InterfaceError {
    text: String,
}

impl FromStr for InterfaceName {
    type Err = InterfaceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // As in the kernel's `dev_valid_name`.
        let fits = (1..BYTES).contains(&text.len())
            && !matches!(text, "." | "..")
            && !text.contains(|c: char| matches!(c, '/' | ':' | '\0') || c.is_whitespace());
        let error = || InterfaceError { text: text.to_owned() };
        fits.then(|| InterfaceName(text.to_owned())).ok_or_else(error)
    }
}

impl TryFrom<String> for InterfaceName {
    type Error = InterfaceError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<InterfaceName> for String {
    fn from(interface: InterfaceName) -> Self {
        interface.0
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl InterfaceName {
    /// Returns the name, as `ip link` shows it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name as nftables stores it in the keys of sets: padded with zeros to 16 bytes.
    pub(super) fn to_padded(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..self.0.len()].copy_from_slice(self.0.as_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_interface_names_are_rejected() {
        for text in ["", "sixteen-bytes-xx", "a/b", "a b", "..", "eth0:1", "a\0"] {
            assert!(text.parse::<InterfaceName>().is_err(), "{text:?}");
        }
        let name: InterfaceName = "fifteen-bytes-x".parse().unwrap();
        assert_eq!(name.to_padded(), *b"fifteen-bytes-x\0");
    }
}
