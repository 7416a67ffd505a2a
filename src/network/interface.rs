//! Names of interfaces of the host.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What the names of links on the host begin with; the rules of the firewall name it too.
pub const LINK: &str = "ocih";

/// `IFNAMSIZ`, with the zero at the end.
const BYTES: usize = 16;

/// The name of an interface, as the kernel takes it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Interface(String);

/// A text that is no name of an interface.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid interface name {text:?}: expected one that `ip link` shows, of at most 15 bytes, \
     for example \"br1\""
)]
pub struct InterfaceError {
    text: String,
}

impl FromStr for Interface {
    type Err = InterfaceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // As the kernel's `dev_valid_name` has it.
        let fits = (1..BYTES).contains(&text.len())
            && !matches!(text, "." | "..")
            && !text.contains(|c: char| matches!(c, '/' | ':' | '\0') || c.is_whitespace());
        let error = || InterfaceError { text: text.to_owned() };
        fits.then(|| Interface(text.to_owned())).ok_or_else(error)
    }
}

impl TryFrom<String> for Interface {
    type Error = InterfaceError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Interface> for String {
    fn from(interface: Interface) -> Self {
        interface.0
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Interface {
    /// Returns the name, as `ip link` shows it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name as elements of sets have it.
    pub(super) fn padded(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..self.0.len()].copy_from_slice(self.0.as_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_interface_has_are_refused() {
        for text in ["", "sixteen-bytes-xx", "a/b", "a b", "..", "eth0:1", "a\0"] {
            assert!(text.parse::<Interface>().is_err(), "{text:?}");
        }
        let name: Interface = "fifteen-bytes-x".parse().unwrap();
        assert_eq!(name.padded(), *b"fifteen-bytes-x\0");
    }
}
