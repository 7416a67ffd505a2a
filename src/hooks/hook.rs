//! Hooks: an entry of the runtime specification's `hooks` object, and the stage it runs at.

use std::fmt;

use serde::{Serialize, Serializer};

/// A program the runtime runs, as the runtime specification's [POSIX-platform hooks] describe it.
///
/// [POSIX-platform hooks]: https://github.com/opencontainers/runtime-spec/blob/main/config.md#posix-platform-hooks
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Hook {
    /// Absolute path of the program.
    pub path: String,
    /// Argument vector, `args[0]` included; if it is empty, the runtime passes the path.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Complete environment, as `NAME=value`. With `None`, runc and crun pass their own
    /// environment, which the engine set; with an empty list, the program gets no variables.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<Vec<String>>,
    /// Timeout in seconds, greater than zero to be of use; `None` means no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
}

/// A stage as hook files name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HookStage {
    /// A stage of the runtime specification.
    Oci(OciStage),
    /// A stage that the consumer runs itself, such as podman's `precreate`.
    Extension(String),
}

/// A stage of the runtime specification, run by the OCI runtime.
///
/// See the [lifecycle](https://github.com/opencontainers/runtime-spec/blob/main/runtime.md#lifecycle).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OciStage {
    /// Deprecated in favour of `createRuntime`, which runs right after it.
    Prestart,
    /// After the namespaces are created, in the runtime's namespaces, before `pivot_root`.
    CreateRuntime,
    /// Right after `createRuntime`, in the container's namespaces, before `pivot_root`; the program
    /// is looked up on the host.
    CreateContainer,
    /// Right before the user's process starts, in the container; the program is looked up in the
    /// container.
    StartContainer,
    /// Right after the user's process has started, in the runtime's namespaces.
    Poststart,
    /// After the container is deleted, in the runtime's namespaces.
    Poststop,
}

impl OciStage {
    /// All stages in the order they run in.
    pub const ALL: [OciStage; 6] = [
        OciStage::Prestart,
        OciStage::CreateRuntime,
        OciStage::CreateContainer,
        OciStage::StartContainer,
        OciStage::Poststart,
        OciStage::Poststop,
    ];

    /// Returns the key of the stage in the `hooks` object of `config.json`.
    pub fn name(self) -> &'static str {
        match self {
            OciStage::Prestart => "prestart",
            OciStage::CreateRuntime => "createRuntime",
            OciStage::CreateContainer => "createContainer",
            OciStage::StartContainer => "startContainer",
            OciStage::Poststart => "poststart",
            OciStage::Poststop => "poststop",
        }
    }

    /// Finds a stage by its exact name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.name() == name)
    }
}

impl HookStage {
    /// Finds a stage by its exact name; an extension stage hides a runtime stage of the same name.
    pub fn from_name(name: &str, extension_stages: &[String]) -> Option<Self> {
        if extension_stages.iter().any(|stage| stage == name) {
            return Some(HookStage::Extension(name.to_owned()));
        }
        OciStage::from_name(name).map(HookStage::Oci)
    }

    /// Returns the name that hook files use.
    pub fn name(&self) -> &str {
        match self {
            HookStage::Oci(stage) => stage.name(),
            HookStage::Extension(name) => name,
        }
    }
}

impl fmt::Display for OciStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for HookStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for HookStage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
