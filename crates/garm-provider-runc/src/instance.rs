//! Instances, as reported to GARM.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Serialize, Serializer};
use serde_json::json;

/// Length limit of an instance name. File names consist of the name and a suffix.
const MAX_NAME_BYTES: usize = 128;

/// An existing instance, running or not.
///
/// Serialized to the JSON that GARM expects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GarmInstance {
    /// Name, which is also the provider id.
    pub name: String,
    pub pool_id: String,
    /// Distribution, such as `debian`; empty if the image does not name it.
    pub os_name: String,
    /// Version of the distribution, such as `12`; empty if the image does not name it.
    pub os_version: String,
    /// `amd64`, `arm64` and so on.
    pub os_arch: String,
    pub addresses: Vec<IpAddr>,
    pub status: InstanceStatus,
    pub fault: Option<String>,
}

/// Status of an instance, by GARM's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum InstanceStatus {
    Running,
    Stopped,
    /// The creation or the runner failed, the supervisor was killed, or a record is unreadable.
    Error,
}

impl GarmInstance {
    /// Returns whether a name is valid for an instance, whose files have its name.
    pub fn is_name(name: &str) -> bool {
        name.len() <= MAX_NAME_BYTES
            && name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
    }
}

impl Serialize for GarmInstance {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Only the host can reach an instance.
        let address = |address| json!({"address": address, "type": "private"});
        let addresses: Vec<_> = self.addresses.iter().map(address).collect();
        json!({
            // GARM passes either the provider id or the name later, so both are the same.
            "provider_id": self.name,
            "name": self.name,
            "os_type": "linux",
            "os_name": self.os_name,
            "os_version": self.os_version,
            "os_arch": self.os_arch,
            "addresses": addresses,
            "status": self.status,
            // Go decodes `[]byte` from base64; plain text would make the whole call fail.
            "provider_fault": STANDARD.encode(self.fault.as_deref().unwrap_or_default()),
            "pool_id": self.pool_id,
        })
        .serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance() -> GarmInstance {
        GarmInstance {
            name: "garm-a".to_owned(),
            pool_id: "my set/1".to_owned(),
            os_name: "debian".to_owned(),
            os_version: "12".to_owned(),
            os_arch: "amd64".to_owned(),
            addresses: vec!["10.214.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
            status: InstanceStatus::Running,
            fault: None,
        }
    }

    #[test]
    fn answer_contains_the_fields_known_to_garm() {
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
    fn faults_are_encoded_as_base64() {
        let fault = Some("no such image".to_owned());
        let failed = GarmInstance { status: InstanceStatus::Error, fault, ..instance() };
        let failed = serde_json::to_value(failed).unwrap();
        assert_eq!(failed["status"], "error");
        assert_eq!(failed["provider_fault"], "bm8gc3VjaCBpbWFnZQ==");
    }

    #[test]
    fn instance_names_are_valid_file_names() {
        for name in ["a", "garm-kkxdxvtsukjg", "Garm_1.x", &"a".repeat(128)] {
            assert!(GarmInstance::is_name(name), "{name}");
        }
        for name in ["", ".", "..", "-a", "_a", "a/b", "../a", "a b", "a\n", "ä", &"a".repeat(129)]
        {
            assert!(!GarmInstance::is_name(name), "{name}");
        }
    }
}
