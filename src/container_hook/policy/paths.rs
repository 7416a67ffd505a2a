//! Paths of the host that a workflow names.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use crate::sys::fs::PathError;
use crate::sys::host_file::{HostFile, HostRoot};

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
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
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

/// Returns the paths of a directory that begin as the entry does, if that has `*` at its end; else the
/// entry itself, which may have more than a path.
pub fn expand(entry: &str) -> Vec<String> {
    let Some(start) = entry.strip_suffix('*') else { return vec![entry.to_owned()] };
    let Some((dir, name)) = start.rsplit_once('/') else { return Vec::new() };
    let entries = fs::read_dir(format!("{dir}/")).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut found: Vec<_> = names
        .filter(|found| found.starts_with(name))
        .map(|found| format!("{dir}/{found}"))
        .collect();
    found.sort();
    found
}

/// Whether a resolved path is one of the allowed ones or below.
pub fn is_within(path: &Path, allowed: &[PathBuf]) -> bool {
    allowed.iter().any(|prefix| resolve(prefix).is_ok_and(|prefix| path.starts_with(prefix)))
}

/// Opens a resolved path beneath one of the allowed ones: being opened there is being allowed.
///
/// Whoever could change the path since it was resolved gets something else beneath the allowed one
/// at most, and no symbolic link is followed.
pub fn open_beneath(
    path: &Path,
    allowed: &[PathBuf],
    owner: Option<(u32, u32)>,
) -> Result<HostFile, PathError> {
    let mut refused = PathError::new("mount", path, io::ErrorKind::PermissionDenied);
    for prefix in allowed {
        let Ok(root) = resolve(prefix) else { continue };
        let Ok(relative) = path.strip_prefix(&root) else { continue };
        // The administrator's own path, which may be a file.
        let root = HostFile::open_trusted(&root)?;
        let opened = if relative.as_os_str().is_empty() {
            Ok(root)
        } else {
            let root = HostRoot::of(root)?;
            match owner {
                Some(owner) => root.open_or_make_dir(relative, owner),
                None => root.open(relative),
            }
        };
        match opened {
            Ok(file) => return Ok(file),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}
