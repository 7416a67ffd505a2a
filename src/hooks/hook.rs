//! One entry of the runtime specification's `hooks` object.

use serde::Serialize;

/// A program the runtime runs, as the runtime specification's [POSIX-platform hooks] describe it.
///
/// [POSIX-platform hooks]: https://github.com/opencontainers/runtime-spec/blob/main/config.md#posix-platform-hooks
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Hook {
    /// Absolute path of the program.
    pub path: String,
    /// Its argument vector, `args[0]` included; empty means that the runtime passes the path.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Its whole environment as `NAME=value`. Without one, runc and crun pass their own on, and so
    /// what the engine put there; an empty list keeps that out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<Vec<String>>,
    /// Timeout in seconds, greater than zero to be of use; none means no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
}
