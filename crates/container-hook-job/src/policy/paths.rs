//! Paths of the host that a workflow names.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::{fs, io};

use oci_hooks_files::fs::PathError;
use oci_hooks_host::host_file::{HostFile, HostRoot};

/// File names of container engine sockets; write access to one gives the permissions of its daemon.
const ENGINE_SOCKETS: [&str; 5] =
    ["buildkitd.sock", "containerd.sock", "crio.sock", "docker.sock", "podman.sock"];

/// Returns whether a path is a container engine's socket, which amounts to root on the host.
///
/// Compares only the file name, because the runner mounts Docker's socket even where it does not exist.
pub fn is_engine_socket(path: &Path) -> bool {
    path.file_name().is_some_and(|name| ENGINE_SOCKETS.iter().any(|socket| name == *socket))
}

/// Returns the path without symbolic links, `.` and `..`. Its last components need not exist.
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
                // The target of a dangling symlink may exist by the time of the mount, and `..` of a
                // missing directory cannot be resolved.
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

/// Returns the paths that match an entry with a trailing `*`; else the entry itself, which may have fields
/// after the path.
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

/// Returns an allowed path without symbolic links; none for a relative path, such as the name of a
/// CDI device. A relative path would be resolved in the working directory, where jobs could make it
/// a symlink to any file.
fn resolve_allowed(entry: &Path) -> Option<PathBuf> {
    entry.is_absolute().then(|| resolve(entry).ok()).flatten()
}

/// Returns whether a resolved path is an allowed path or below it.
pub fn is_within(path: &Path, allowed: &[PathBuf]) -> bool {
    let mut allowed = allowed.iter().filter_map(|entry| resolve_allowed(entry));
    allowed.any(|prefix| path.starts_with(prefix))
}

/// Opens a resolved path beneath one of the allowed paths; fails if it is beneath none of them. A
/// missing directory is created for `owner`, if given.
///
/// A path that was changed after it was resolved leads at most to another file beneath the allowed path, and
/// symbolic links are not followed.
pub fn open_beneath(
    path: &Path,
    allowed: &[PathBuf],
    owner: Option<(u32, u32)>,
) -> Result<HostFile, PathError> {
    let mut refused = PathError::new("mount", path, io::ErrorKind::PermissionDenied);
    for root in allowed.iter().filter_map(|entry| resolve_allowed(entry)) {
        let Ok(relative) = path.strip_prefix(&root) else { continue };
        // The admin's own path, which may be a file.
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
