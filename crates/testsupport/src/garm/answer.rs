//! The answers of a provider, parsed as strictly as by GARM.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

/// An instance, as described by a provider.
#[derive(Clone, Debug, Deserialize)]
pub struct ProviderInstance {
    pub provider_id: String,
    pub name: String,
    pub os_type: String,
    #[serde(default)]
    pub os_name: String,
    #[serde(default)]
    pub os_version: String,
    #[serde(default)]
    pub os_arch: String,
    #[serde(default)]
    pub addresses: Vec<InstanceAddress>,
    pub status: AnswerStatus,
    #[serde(default)]
    provider_fault: Option<String>,
}

/// An address of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct InstanceAddress {
    pub address: String,
    #[serde(rename = "type")]
    pub kind: AddressKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AddressKind {
    Public,
    Private,
}

/// The only states that GARM accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AnswerStatus {
    Running,
    Stopped,
    Error,
    Unknown,
}

impl ProviderInstance {
    /// Parses one instance, which must be the whole output.
    #[track_caller]
    pub fn parse(stdout: &str) -> Self {
        Self::check(serde_json::from_str(stdout).unwrap_or_else(|e| panic!("{e}: {stdout}")))
    }

    /// Parses a list of instances.
    #[track_caller]
    pub fn parse_list(stdout: &str) -> Vec<Self> {
        let list: Vec<Self> =
            serde_json::from_str(stdout).unwrap_or_else(|e| panic!("{e}: {stdout}"));
        list.into_iter().map(Self::check).collect()
    }

    /// Returns the failure reason of the instance, or an empty string.
    #[track_caller]
    pub fn fault(&self) -> String {
        let bytes = STANDARD.decode(self.provider_fault.as_deref().unwrap_or_default());
        String::from_utf8(bytes.expect("the fault is base64")).expect("the fault is text")
    }

    #[track_caller]
    fn check(self) -> Self {
        assert!(!self.provider_id.is_empty() && !self.name.is_empty(), "{self:?}");
        drop(self.fault());
        self
    }
}
