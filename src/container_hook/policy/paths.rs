//! Paths of the host that a workflow names.

use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};

/// Sockets that give whoever can write to them the rights of a daemon.
const ENGINE_SOCKETS: [&str; 5] =
    ["buildkitd.sock", "containerd.sock", "crio.sock", "docker.sock", "podman.sock"];

/// Whether a path is that of a container engine's socket: root of the host, in effect.
///
/// By name, since the runner asks for Docker's even where none is.
pub fn is_engine_socket(path: &Path) -> bool {
    path.file_name().is_some_and(|name| ENGINE_SOCKETS.iter().any(|socket| name == *socket))
}

/// Returns the path without symbolic links, `.` and `..`. The end of it need not exist.
pub(super) fn resolve(path: &Path) -> io::Result<PathBuf> {
    let mut existing = path;
    let mut missing: Vec<OsString> = Vec::new();
    loop {
        match existing.canonicalize() {
            Ok(mut resolved) => {
                resolved.extend(missing.iter().rev());
                return Ok(resolved);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // A link to nowhere may lead somewhere by the time of the mount, and what is beyond
                // a directory that does not exist cannot be said at all.
                let last = existing.components().next_back();
                let (Some(Component::Normal(name)), Some(parent), false) =
                    (last, existing.parent(), existing.is_symlink())
                else {
                    return Err(error);
                };
                missing.push(name.to_owned());
                existing = parent;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Whether a resolved path is one of the allowed ones or below.
pub(super) fn is_within(path: &Path, allowed: &[PathBuf]) -> bool {
    allowed.iter().any(|prefix| resolve(prefix).is_ok_and(|prefix| path.starts_with(prefix)))
}
