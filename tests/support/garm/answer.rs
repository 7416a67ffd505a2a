//! What GARM reads of a provider, read as strictly as GARM does.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

/// An instance, as a provider says it is.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Answer {
    pub(crate) provider_id: String,
    pub(crate) name: String,
    pub(crate) os_type: String,
    #[serde(default)]
    pub(crate) os_name: String,
    #[serde(default)]
    pub(crate) os_version: String,
    #[serde(default)]
    pub(crate) os_arch: String,
    #[serde(default)]
    pub(crate) addresses: Vec<Address>,
    pub(crate) status: Status,
    #[serde(default)]
    provider_fault: Option<String>,
}

/// An address of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Address {
    pub(crate) address: String,
    #[serde(rename = "type")]
    pub(crate) kind: AddressKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AddressKind {
    Public,
    Private,
}

/// The only words that GARM takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    Running,
    Stopped,
    Error,
    Unknown,
}

impl Answer {
    /// Reads one instance, which must be all that there is.
    #[track_caller]
    pub(super) fn parse(stdout: &str) -> Self {
        Self::check(serde_json::from_str(stdout).unwrap_or_else(|e| panic!("{e}: {stdout}")))
    }

    /// Reads a list.
    #[track_caller]
    pub(super) fn parse_list(stdout: &str) -> Vec<Self> {
        let list: Vec<Self> =
            serde_json::from_str(stdout).unwrap_or_else(|e| panic!("{e}: {stdout}"));
        list.into_iter().map(Self::check).collect()
    }

    /// Returns why the instance failed; empty if it did not.
    #[track_caller]
    pub(crate) fn fault(&self) -> String {
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
