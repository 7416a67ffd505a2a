//! Environment variables, and the default socket.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use step_runner::socket::{SocketError, private_directory};

use crate::error::StepRunnerError;
use crate::report;
use crate::steps_command::ARGUMENTS;

/// Environment variable with the path of the socket.
pub const SOCKET: &str = "STEP_RUNNER_SOCKET";

/// File name of the socket.
pub const SOCKET_NAME: &str = "step-runner.sock";

/// Returns the socket that `serve` listens on by default: the one named in `STEP_RUNNER_SOCKET`, or else one in a
/// private directory of this user, which is created if missing.
pub fn socket() -> Result<PathBuf, StepRunnerError> {
    if let Some(path) = variable(SOCKET) {
        return Ok(path.into());
    }
    let dir = match runtime_dir() {
        Some(dir) => dir,
        None => private_dir()?,
    };
    private_directory(&dir)?;
    Ok(dir.join(SOCKET_NAME))
}

/// Returns the socket that clients use by default: the first existing one of those that `serve` may choose.
pub fn server_socket() -> PathBuf {
    if let Some(path) = variable(SOCKET) {
        return path.into();
    }
    let temporary = temporary_dirs().into_iter().map(|dir| dir.join(private_name()));
    let mut paths = runtime_dir().into_iter().chain(temporary).map(|dir| dir.join(SOCKET_NAME));
    let first = paths.next().unwrap_or_else(|| SOCKET_NAME.into());
    if first.exists() { first } else { paths.find(|path| path.exists()).unwrap_or(first) }
}

fn runtime_dir() -> Option<PathBuf> {
    variable("XDG_RUNTIME_DIR").map(|dir| PathBuf::from(dir).join("step-runner"))
}

/// Returns the private directory of this user's servers, below the first writable directory for temporary
/// files. It is created if missing.
pub fn private_dir() -> Result<PathBuf, StepRunnerError> {
    let mut tried = Vec::new();
    for (number, dir) in temporary_dirs().into_iter().enumerate() {
        let path = dir.join(private_name());
        let reason = if number == 0 || is_safe(&dir) {
            match private_directory(&path) {
                Ok(()) if is_writable(&path) => return Ok(path),
                Ok(()) => "read-only".to_owned(),
                Err(SocketError::Create(error)) => report::reason(&error.source),
                // The path is occupied by another file, or belongs to another user.
                Err(error) => return Err(error.into()),
            }
        } else {
            "missing, or owned or writable by other users".to_owned()
        };
        tried.push(format!("{}: {reason}", dir.display()));
    }
    Err(StepRunnerError::NoDirectory { tried })
}

/// Returns the directories for temporary files, in order of preference. In build containers with a read-only
/// root only some of them are writable.
fn temporary_dirs() -> Vec<PathBuf> {
    let exe = env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_owned()));
    let usual = ["/tmp", "/var/tmp", "/dev/shm"].map(PathBuf::from);
    let all = [env::temp_dir()].into_iter().chain(usual).chain(exe).chain(env::current_dir().ok());
    let mut dirs: Vec<PathBuf> = Vec::new();
    for dir in all {
        if !dirs.contains(&dir) {
            dirs.push(dir);
        }
    }
    dirs
}

fn private_name() -> String {
    format!("step-runner-{}", rustix::process::geteuid().as_raw())
}

/// Returns whether other users cannot replace this user's files in a directory.
fn is_safe(dir: &Path) -> bool {
    let Ok(meta) = fs::metadata(dir) else { return false };
    let owners = [0, rustix::process::geteuid().as_raw()];
    let is_sticky = meta.mode() & 0o1000 != 0;
    meta.is_dir() && owners.contains(&meta.uid()) && (is_sticky || meta.mode() & 0o022 == 0)
}

/// Returns whether files can be created in a directory, or, if it is missing, in its nearest existing parent.
pub fn is_writable(dir: &Path) -> bool {
    let existing = dir.ancestors().find(|dir| dir.is_dir());
    existing.is_some_and(|dir| access(dir, Access::WRITE_OK | Access::EXEC_OK).is_ok())
}

/// Returns the environment variables that steps inherit: all that are UTF-8, as protobuf strings
/// must be, except [`ARGUMENTS`].
pub fn variables() -> BTreeMap<String, String> {
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    env::vars_os().filter_map(text).filter(|(name, _)| name != ARGUMENTS).collect()
}

fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}
