//! Environment variables, and the default socket.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The variable that names the socket.
pub(crate) const SOCKET: &str = "STEP_RUNNER_SOCKET";

/// The name of the socket in its directory.
pub(crate) const SOCKET_NAME: &str = "step-runner.sock";

/// Path of the socket, and who chose it.
pub(crate) enum Socket {
    /// Named on the command line or in `STEP_RUNNER_SOCKET`.
    Named(PathBuf),
    /// In a private directory of this user.
    Default(PathBuf),
}

impl Socket {
    pub(crate) fn path(&self) -> &Path {
        match self {
            Socket::Named(path) | Socket::Default(path) => path,
        }
    }
}

/// Returns the socket that is used if none is named on the command line.
pub(crate) fn socket() -> Socket {
    if let Some(path) = variable(SOCKET) {
        return Socket::Named(path.into());
    }
    let dir = match variable("XDG_RUNTIME_DIR") {
        Some(dir) => PathBuf::from(dir).join("step-runner"),
        None => private_dir(),
    };
    Socket::Default(dir.join(SOCKET_NAME))
}

/// Returns the directory in the temporary directory that belongs to this user's servers.
pub(crate) fn private_dir() -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    env::temp_dir().join(format!("step-runner-{uid}"))
}

/// Returns the environment variables that are UTF-8, which protobuf strings must be.
pub(crate) fn variables() -> BTreeMap<String, String> {
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    env::vars_os().filter_map(text).collect()
}

fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}
