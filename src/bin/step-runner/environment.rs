//! What the environment says.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The variable that names the socket.
pub(crate) const SOCKET: &str = "STEP_RUNNER_SOCKET";

/// The name of the socket in its directory.
pub(crate) const SOCKET_NAME: &str = "step-runner.sock";

/// Where the socket is.
pub(crate) enum Socket {
    /// Where somebody said.
    Named(PathBuf),
    /// In a directory that is this user's alone.
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

/// Returns a directory for this user's servers.
pub(crate) fn private_dir() -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    env::temp_dir().join(format!("step-runner-{uid}"))
}

/// Returns the variables, but those that are no text: values on the wire are.
pub(crate) fn variables() -> BTreeMap<String, String> {
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    env::vars_os().filter_map(text).collect()
}

fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}
