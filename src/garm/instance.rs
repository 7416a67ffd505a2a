//! Instances, as GARM is told of them.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Serialize, Serializer};
use serde_json::json;

/// The longest name of an instance, in bytes. Files are called after it, with something added.
const MAX_NAME_BYTES: usize = 128;

/// An instance that is there, running or not.
///
/// As JSON it is what GARM wants to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Its name, which is what we call it too.
    pub name: String,
    pub pool_id: String,
    /// The distribution: `debian`; empty if its image does not say.
    pub os_name: String,
    /// The version of the distribution: `12`; empty if its image does not say.
    pub os_version: String,
    /// `amd64`, `arm64` and so on.
    pub os_arch: String,
    pub addresses: Vec<IpAddr>,
    pub status: Status,
    /// What went wrong with it.
    pub fault: Option<String>,
}

/// The status of an instance, in GARM's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Running,
    Stopped,
    /// It could not be made, or its runner could not be brought up.
    Error,
    Unknown,
}

impl Instance {
    /// Returns whether an instance can have this name: one that can be the name of a file.
    pub fn is_name(name: &str) -> bool {
        name.len() <= MAX_NAME_BYTES
            && name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
    }
}

impl Serialize for Instance {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Nobody but the host reaches an instance.
        let address = |address| json!({"address": address, "type": "private"});
        let addresses: Vec<_> = self.addresses.iter().map(address).collect();
        json!({
            // By which GARM names it later, if not by its name: so both are the same.
            "provider_id": self.name,
            "name": self.name,
            "os_type": "linux",
            "os_name": self.os_name,
            "os_version": self.os_version,
            "os_arch": self.os_arch,
            "addresses": addresses,
            "status": self.status,
            // Bytes are base64 in Go's JSON; a plain text fails the whole call.
            "provider_fault": STANDARD.encode(self.fault.as_deref().unwrap_or_default()),
            "pool_id": self.pool_id,
        })
        .serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance() -> Instance {
        Instance {
            name: "garm-a".to_owned(),
            pool_id: "my set/1".to_owned(),
            os_name: "debian".to_owned(),
            os_version: "12".to_owned(),
            os_arch: "amd64".to_owned(),
            addresses: vec!["10.214.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
            status: Status::Running,
            fault: None,
        }
    }

    #[test]
    fn garm_is_told_what_it_knows_to_read() {
        assert_eq!(
            serde_json::to_value(instance()).unwrap(),
            json!({
                "provider_id": "garm-a",
                "name": "garm-a",
                "os_type": "linux",
                "os_name": "debian",
                "os_version": "12",
                "os_arch": "amd64",
                "addresses": [
                    {"address": "10.214.0.2", "type": "private"},
                    {"address": "fd00::2", "type": "private"},
                ],
                "status": "running",
                "provider_fault": "",
                "pool_id": "my set/1",
            })
        );
    }

    #[test]
    fn faults_are_base64() {
        let fault = Some("no such image".to_owned());
        let failed = Instance { status: Status::Error, fault, ..instance() };
        let failed = serde_json::to_value(failed).unwrap();
        assert_eq!(failed["status"], "error");
        assert_eq!(failed["provider_fault"], "bm8gc3VjaCBpbWFnZQ==");
    }

    #[test]
    fn names_can_be_names_of_files() {
        for name in ["a", "garm-kkxdxvtsukjg", "Garm_1.x", &"a".repeat(128)] {
            assert!(Instance::is_name(name), "{name}");
        }
        for name in ["", ".", "..", "-a", "_a", "a/b", "../a", "a b", "a\n", "ä", &"a".repeat(129)]
        {
            assert!(!Instance::is_name(name), "{name}");
        }
    }
}
