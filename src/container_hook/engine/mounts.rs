//! Files and directories of the host, as mounts of a container: opened when the request is checked,
//! and mounted by descriptor later, whatever has their names by then.

use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::backend::EngineBackend;
use crate::bundle::{self, Mount, MountSource};
use crate::container_hook::error::HookError;
use crate::container_hook::policy::is_engine_socket;
use crate::container_hook::request;
use crate::container_hook::volumes::{Propagation, Source, Volume};
use crate::sys::fs::PathError;
use crate::sys::host_file::HostFile;

/// A `volumes:` entry, a `--volume` or a `--mount`, with the file of the host that it mounts.
pub struct OpenVolume {
    volume: Volume,
    /// None for volumes of ours.
    file: Option<HostFile>,
}

impl OpenVolume {
    /// Opens what a workflow mounts, if the policy allows that.
    pub fn open(backend: &EngineBackend<'_>, volume: Volume) -> Result<Self, HookError> {
        let file = match &volume.source {
            Source::Bind { path, create } => {
                // Docker makes a directory where its socket should be, and does not start any more.
                let may_make = *create && !is_engine_socket(path);
                let owner = may_make.then_some(backend.context.runner.user);
                Some(backend.context.settings.policy.open_bind_mount(path, owner)?)
            }
            Source::Work { path, create: true } => Some(runner_directory(backend, path)?),
            Source::Work { path, create: false } => {
                let opened = backend.context.runner.files.open(path);
                Some(opened.map_err(|error| escape(backend, path, error))?)
            }
            Source::Named(_) | Source::Anonymous => None,
        };
        Ok(OpenVolume { volume, file })
    }

    /// Returns the path, if it is in the runner's work directory and the container can write there.
    pub fn writable(&self) -> Option<&Path> {
        match &self.volume.source {
            Source::Work { path, .. } if !self.volume.read_only => Some(path),
            _ => None,
        }
    }

    /// Opens what the administrator's settings name.
    pub fn open_trusted(volume: Volume) -> Result<Self, HookError> {
        let file = match &volume.source {
            Source::Bind { path, .. } | Source::Work { path, .. } => {
                Some(HostFile::open_trusted(path)?)
            }
            Source::Named(_) | Source::Anonymous => None,
        };
        Ok(OpenVolume { volume, file })
    }

    /// Returns whether it is a volume with a name.
    pub fn has_name(&self) -> bool {
        matches!(self.volume.source, Source::Named(_))
    }

    /// Returns the mount; `own` is where a volume of this container's own would be.
    pub fn mount(&self, backend: &EngineBackend<'_>, own: PathBuf) -> Mount {
        let volume = &self.volume;
        let source = match (&self.file, &volume.source) {
            (Some(file), _) => MountSource::Bind {
                file: file.clone(),
                propagation: match volume.propagation {
                    None => bundle::Propagation::Private,
                    Some(Propagation::Slave) => bundle::Propagation::Slave,
                    Some(Propagation::Shared) => bundle::Propagation::Shared,
                },
                recursive: volume.recursive,
            },
            (None, Source::Named(name)) => {
                let path = backend.volume(name);
                MountSource::Volume { path, copy: volume.copy, is_shared: true }
            }
            (None, _) => MountSource::Volume { path: own, copy: volume.copy, is_shared: false },
        };
        Mount {
            target: PathBuf::from(&volume.target),
            source,
            read_only: volume.read_only,
            subpath: None,
            id_mapping: self.file.as_ref().and_then(|_| backend.id_mapping()),
        }
    }
}

/// One of the runner's own directories that a request mounts.
pub struct RunnerMount {
    /// As the request names it.
    source: PathBuf,
    target: PathBuf,
    file: HostFile,
    read_only: bool,
}

impl RunnerMount {
    /// Opens a directory that a request mounts; none if the mount names none.
    pub fn open(
        backend: &EngineBackend<'_>,
        mount: &request::Mount,
    ) -> Option<Result<Self, HookError>> {
        let source = mount.source.as_ref().map(PathBuf::from)?;
        let (target, read_only) = (PathBuf::from(&mount.target), mount.read_only);
        let file = runner_directory(backend, &source);
        Some(file.map(|file| RunnerMount { source, target, file, read_only }))
    }

    /// Returns the path of the request, if the container can write there.
    pub fn writable(&self) -> Option<&Path> {
        (!self.read_only).then_some(&self.source)
    }

    pub(super) fn mount(&self, backend: &EngineBackend<'_>) -> Mount {
        Mount {
            target: self.target.clone(),
            source: MountSource::Bind {
                file: self.file.clone(),
                propagation: bundle::Propagation::Private,
                recursive: true,
            },
            read_only: self.read_only,
            subpath: None,
            id_mapping: backend.id_mapping(),
        }
    }
}

/// Opens one of the runner's own directories, made if it is missing: the runner counts on Docker for
/// that.
pub fn runner_directory(backend: &EngineBackend<'_>, path: &Path) -> Result<HostFile, HookError> {
    let opened = backend.context.runner.files.open_or_make_dir(path, backend.context.runner.user);
    opened.map_err(|error| escape(backend, path, error))
}

/// Returns the error of what cannot be opened, which says so if it leads out of the work directory.
fn escape(backend: &EngineBackend<'_>, path: &Path, error: PathError) -> HookError {
    // Jobs can write in the runner's work directory, and put links there.
    match Errno::from_io_error(&error.source) {
        Some(Errno::LOOP | Errno::XDEV) => {
            let work = backend.context.runner.work().to_owned();
            HookError::Escapes { path: path.to_owned(), work }
        }
        _ => HookError::Files(error),
    }
}
