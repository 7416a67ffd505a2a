//! Files and directories of the host, as mounts of a container. They are opened when the request is checked, and
//! mounted by descriptor later, so replacing a path in between has no effect.

use std::path::{Path, PathBuf};

use container_hook_job::HookError;
use container_hook_job::policy::is_engine_socket;
use container_hook_job::request;
use container_hook_job::volumes::{RequestVolume, VolumePropagation, VolumeSource};
use oci_hooks_engine::bundle::{self, MountRequest, MountSource};
use oci_hooks_files::fs::PathError;
use oci_hooks_host::host_file::HostFile;
use rustix::io::Errno;

use super::backend::EngineBackend;

/// A `volumes:` entry, a `--volume` or a `--mount`, with the file of the host that it mounts.
pub struct OpenVolume {
    volume: RequestVolume,
    /// The mounted file or directory of the host; none for named and anonymous volumes.
    file: Option<HostFile>,
}

impl OpenVolume {
    /// Opens the source of a workflow's mount, if the policy allows it. Creates a missing directory if the mount asks
    /// for it.
    pub fn open(backend: &EngineBackend<'_>, volume: RequestVolume) -> Result<Self, HookError> {
        let file = match &volume.source {
            VolumeSource::Bind { path, create } => {
                // Docker does not start if a directory has the path of its socket.
                let may_make = *create && !is_engine_socket(path);
                let owner = may_make.then_some(backend.context.runner.user);
                Some(backend.context.settings.policy.open_bind_mount(path, owner)?)
            }
            VolumeSource::Work { path, create: true } => Some(runner_directory(backend, path)?),
            VolumeSource::Work { path, create: false } => {
                let opened = backend.context.runner.files.open(path);
                Some(opened.map_err(|error| escape(backend, path, error))?)
            }
            VolumeSource::Named(_) | VolumeSource::Anonymous => None,
        };
        Ok(OpenVolume { volume, file })
    }

    /// Returns the path if it is in the runner's work directory and the container can write to it.
    pub fn writable_path(&self) -> Option<&Path> {
        match &self.volume.source {
            VolumeSource::Work { path, .. } if !self.volume.read_only => Some(path),
            _ => None,
        }
    }

    /// Opens the source of a mount from the admin's settings.
    pub fn open_trusted(volume: RequestVolume) -> Result<Self, HookError> {
        let file = match &volume.source {
            VolumeSource::Bind { path, .. } | VolumeSource::Work { path, .. } => {
                Some(HostFile::open_trusted(path)?)
            }
            VolumeSource::Named(_) | VolumeSource::Anonymous => None,
        };
        Ok(OpenVolume { volume, file })
    }

    /// Returns whether this is a named volume.
    pub fn has_name(&self) -> bool {
        matches!(self.volume.source, VolumeSource::Named(_))
    }

    /// Returns the mount; `own` is the directory for an anonymous volume.
    pub fn mount(&self, backend: &EngineBackend<'_>, own: PathBuf) -> MountRequest {
        let volume = &self.volume;
        let source = match (&self.file, &volume.source) {
            (Some(file), _) => MountSource::Bind {
                file: file.clone(),
                propagation: match volume.propagation {
                    None => bundle::MountPropagation::Private,
                    Some(VolumePropagation::Slave) => bundle::MountPropagation::Slave,
                    Some(VolumePropagation::Shared) => bundle::MountPropagation::Shared,
                },
                recursive: volume.recursive,
            },
            (None, VolumeSource::Named(name)) => {
                let path = backend.volume(name);
                MountSource::Volume { path, copy: volume.copy, is_shared: true }
            }
            (None, _) => MountSource::Volume { path: own, copy: volume.copy, is_shared: false },
        };
        MountRequest {
            target: PathBuf::from(&volume.target),
            source,
            read_only: volume.read_only,
            subpath: None,
            id_mapping: self.file.as_ref().and_then(|_| match &volume.source {
                VolumeSource::Work { .. } => backend.id_mapping(volume.read_only),
                _ => backend.id_mapping(true),
            }),
        }
    }
}

/// A mount of one of the runner's own directories.
pub struct RunnerMount {
    source: PathBuf,
    target: PathBuf,
    file: HostFile,
    read_only: bool,
}

impl RunnerMount {
    /// Opens the directory of a mount; returns none if the mount has no source.
    pub fn open(
        backend: &EngineBackend<'_>,
        mount: &request::RequestMount,
    ) -> Option<Result<Self, HookError>> {
        let source = mount.source.as_ref().map(PathBuf::from)?;
        let (target, read_only) = (PathBuf::from(&mount.target), mount.read_only);
        let file = runner_directory(backend, &source);
        Some(file.map(|file| RunnerMount { source, target, file, read_only }))
    }

    /// Returns the mount of the cache to which the runner links actions, at the path that the links name.
    pub fn of_actions(backend: &EngineBackend<'_>) -> Option<Self> {
        let cache = backend.context.runner.files.actions()?;
        let (source, target) = (cache.path.clone(), cache.path.clone());
        Some(RunnerMount { source, target, file: cache.dir().clone(), read_only: true })
    }

    /// Returns the path in the request, if the container can write to it.
    pub fn writable_path(&self) -> Option<&Path> {
        (!self.read_only).then_some(&self.source)
    }

    pub(super) fn mount(&self, backend: &EngineBackend<'_>) -> MountRequest {
        MountRequest {
            target: self.target.clone(),
            source: MountSource::Bind {
                file: self.file.clone(),
                propagation: bundle::MountPropagation::Private,
                recursive: true,
            },
            read_only: self.read_only,
            subpath: None,
            id_mapping: backend.id_mapping(self.read_only),
        }
    }
}

/// Opens one of the runner's own directories. Creates it if it is missing, because the runner relies on Docker to
/// do so.
pub fn runner_directory(backend: &EngineBackend<'_>, path: &Path) -> Result<HostFile, HookError> {
    let opened = backend.context.runner.files.open_or_make_dir(path, backend.context.runner.user);
    opened.map_err(|error| escape(backend, path, error))
}

/// Returns the error of a path that cannot be opened, or [`HookError::Escapes`] if it leads out of the work
/// directory.
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
