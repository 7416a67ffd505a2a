//! `volumeMounts` of a container.

use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::VolumeMount;

use super::environment::Environment;
use super::overlay::Overlay;
use super::volumes::{Backing, Backings, below, check_socket};
use crate::bundle::{IdMapping, Mount, MountSource, Propagation};
use crate::container_hook::engine::backend::EngineBackend;
use crate::container_hook::engine::mounts::runner_directory;
use crate::container_hook::error::HookError;
use crate::container_hook::plan::Role;
use crate::container_hook::template::{Fault, FieldPath};
use crate::sys::host_file::HostFile;

/// A mount of the template, checked.
#[derive(Debug)]
pub(super) struct MountPlan {
    target: PathBuf,
    source: PlannedSource,
    propagation: Propagation,
    read_only: bool,
    subpath: Subpath,
}

/// What a mount shows.
#[derive(Debug)]
enum PlannedSource {
    /// A file or directory of the host that the administrator names.
    Host(PathBuf),
    /// A volume of ours, by its name in the pod.
    Volume(String),
    /// The runner's own directories: several for its volume `github`.
    Runner { directories: Vec<OpenDirectory>, id_mapping: Option<IdMapping> },
}

/// A directory of the runner that a mount shows.
#[derive(Debug)]
struct OpenDirectory {
    path: PathBuf,
    file: HostFile,
    /// Where it is in the volume.
    below: PathBuf,
    read_only: bool,
}

/// What of a volume is mounted, in which `$(NAME)` may stand.
#[derive(Debug)]
enum Subpath {
    All,
    Path(String, FieldPath),
    Expandable(String, FieldPath),
}

impl Subpath {
    fn new(wanted: &VolumeMount, place: &FieldPath) -> Result<Self, Fault> {
        match (&wanted.sub_path, &wanted.sub_path_expr) {
            (Some(path), None) => Ok(Subpath::Path(path.clone(), place.at("subPath"))),
            (None, Some(path)) => Ok(Subpath::Expandable(path.clone(), place.at("subPathExpr"))),
            (None, None) => Ok(Subpath::All),
            (Some(_), Some(_)) => Err(place.fault("has both `subPath` and `subPathExpr`")),
        }
    }

    /// Returns the path below the volume's top; none for all of it.
    fn expand(&self, environment: &Environment) -> Result<Option<PathBuf>, Fault> {
        let (path, place) = match self {
            Subpath::All => return Ok(None),
            Subpath::Path(path, place) => (path.clone(), place),
            Subpath::Expandable(path, place) => (environment.expand(path), place),
        };
        if path.is_empty() {
            return Ok(None);
        }
        let problem = "has to be a path below the volume's top, without `..`";
        below(&path).map(Some).ok_or_else(|| place.fault(problem))
    }
}

impl MountPlan {
    /// Returns the mounts in a container with this environment; `volumes` is the directory of the pod's
    /// volumes.
    pub(super) fn mounts(
        &self,
        environment: &Environment,
        volumes: &Path,
    ) -> Result<Vec<Mount>, Fault> {
        let subpath = self.subpath.expand(environment)?;
        let (propagation, recursive) = (self.propagation, true);
        let mount = |path| Mount {
            target: self.target.clone(),
            source: MountSource::Trusted { path, propagation, recursive },
            subpath: subpath.clone(),
            read_only: self.read_only,
            id_mapping: None,
        };
        Ok(match &self.source {
            PlannedSource::Host(path) => vec![mount(path.clone())],
            PlannedSource::Volume(name) => vec![mount(volumes.join(name))],
            PlannedSource::Runner { directories, id_mapping } => {
                let mounts = directories.iter().filter_map(|directory| {
                    let (target, subpath) = directory.place(&self.target, subpath.as_deref())?;
                    let file = directory.file.clone();
                    Some(Mount {
                        target,
                        source: MountSource::Bind { file, propagation, recursive },
                        subpath,
                        read_only: self.read_only || directory.read_only,
                        id_mapping: *id_mapping,
                    })
                });
                mounts.collect()
            }
        })
    }

    /// Returns whether the mount is at a path of the container.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        path.components().eq(self.target.components())
    }

    /// Returns the runner's directories that can be written to.
    pub(super) fn writable(&self) -> impl Iterator<Item = &Path> {
        let directories = match &self.source {
            PlannedSource::Runner { directories, .. } if !self.read_only => &directories[..],
            _ => &[],
        };
        let writable = directories.iter().filter(|directory| !directory.read_only);
        writable.map(|directory| directory.path.as_path())
    }
}

impl OpenDirectory {
    /// Returns where the directory is mounted, and what of it, if a volume with it has this target and
    /// subpath; none if the subpath leaves it out.
    fn place(&self, target: &Path, subpath: Option<&Path>) -> Option<(PathBuf, Option<PathBuf>)> {
        match subpath {
            _ if self.below.as_os_str().is_empty() => {
                Some((target.to_owned(), subpath.map(Path::to_owned)))
            }
            // What is mounted below the volume's top is mounted below the target, or alone.
            None => Some((target.join(&self.below), None)),
            Some(path) => {
                let rest = path.strip_prefix(&self.below).ok()?.to_owned();
                Some((target.to_owned(), (!rest.as_os_str().is_empty()).then_some(rest)))
            }
        }
    }
}

impl Overlay {
    /// Checks the mounts of a container and opens the runner's directories among them; `environment`
    /// is what is known of it before the container has addresses.
    pub(super) fn mounts(
        &self,
        backend: &EngineBackend<'_>,
        environment: &Environment,
    ) -> Result<Vec<MountPlan>, HookError> {
        let wanted = self.container.volume_mounts.iter().flatten();
        let plans = wanted.enumerate().skip(self.given.mounts).map(|(at, wanted)| {
            let place = self.place.at("volumeMounts").item(at);
            let target = self.target(wanted, &place)?.to_owned();
            let subpath = Subpath::new(wanted, &place)?;
            let below = subpath.expand(environment)?;
            let propagation = propagation(backend, wanted, &place)?;
            let source = match self.runner_source(backend, wanted, &place)? {
                Some(_) if propagation != Propagation::Private => {
                    let problem = "is not for the runner's directories: remove it";
                    return Err(place.at("mountPropagation").fault(problem).into());
                }
                Some(source) => source,
                None => {
                    let backing = self.backing(wanted, propagation, &place)?;
                    if let Backing::Host { path, .. } = backing {
                        let all = below.as_ref().map_or(path.clone(), |below| path.join(below));
                        check_socket(&all, &backend.context.settings.policy, &place)?;
                        PlannedSource::Host(path.clone())
                    } else {
                        PlannedSource::Volume(wanted.name.clone())
                    }
                }
            };
            let is_files = matches!(self.volumes.get(&wanted.name), Some(Backing::Files(_)))
                && matches!(source, PlannedSource::Volume(_));
            let read_only = wanted.read_only == Some(true) || is_files;
            Ok(MountPlan { target, source, propagation, read_only, subpath })
        });
        plans.collect()
    }

    fn target<'a>(&self, wanted: &'a VolumeMount, place: &FieldPath) -> Result<&'a Path, Fault> {
        let target = Path::new(&wanted.mount_path);
        let is_there = |other: &str| Path::new(other).components().eq(target.components());
        let is_ours = matches!(self.role, Role::Job | Role::Step)
            && self.pod.system_mounts.iter().any(|mount| is_there(&mount.target));
        let goes_up = target.components().any(|part| part == Component::ParentDir);
        let problem = if !target.is_absolute() || goes_up || target == Path::new("/") {
            "has to be an absolute path below /, without `..`"
        } else if target.starts_with("/proc") {
            "is in /proc, which is the runtime's: mount it elsewhere"
        } else if is_ours {
            "is a directory of the runner: mount it elsewhere"
        } else {
            return Ok(target);
        };
        Err(place.at("mountPath").fault(problem))
    }

    /// Returns the runner's directories that a mount shows; none if it shows another volume.
    fn runner_source(
        &self,
        backend: &EngineBackend<'_>,
        wanted: &VolumeMount,
        place: &FieldPath,
    ) -> Result<Option<PlannedSource>, HookError> {
        let work = backend.context.runner.work();
        let Some(found) = self.pod.runner_volume(work, &wanted.name, place)? else {
            return Ok(None);
        };
        let directories = found.into_iter().map(|found| {
            let file = runner_directory(backend, &found.path)?;
            let (path, below, read_only) = (found.path, found.below, found.read_only);
            Ok(OpenDirectory { path, file, below, read_only })
        });
        let directories = directories.collect::<Result<_, HookError>>()?;
        Ok(Some(PlannedSource::Runner { directories, id_mapping: backend.id_mapping() }))
    }

    /// Returns where what is in the volume of a mount comes from.
    fn backing(
        &self,
        wanted: &VolumeMount,
        propagation: Propagation,
        place: &FieldPath,
    ) -> Result<&Backing, Fault> {
        let volumes: &Backings = &self.volumes;
        let backing = volumes.get(&wanted.name).ok_or_else(|| {
            place.at("name").fault(format!("there is no volume {:?} in the pod", wanted.name))
        })?;
        if propagation == Propagation::Shared && !matches!(backing, Backing::Host { .. }) {
            // What a container mounted there would be removed with the volume.
            let problem = "is only for volumes with `hostPath`";
            return Err(place.at("mountPropagation").fault(problem));
        }
        Ok(backing)
    }
}

fn propagation(
    backend: &EngineBackend<'_>,
    wanted: &VolumeMount,
    place: &FieldPath,
) -> Result<Propagation, Fault> {
    if wanted.recursive_read_only.as_deref() == Some("Enabled") {
        let problem = "is not supported: write `IfPossible`";
        return Err(place.at("recursiveReadOnly").fault(problem));
    }
    let place = place.at("mountPropagation");
    match wanted.mount_propagation.as_deref() {
        None | Some("None") => Ok(Propagation::Private),
        Some("HostToContainer") => Ok(Propagation::Slave),
        Some("Bidirectional") if backend.context.settings.policy.shared_mounts => {
            Ok(Propagation::Shared)
        }
        Some("Bidirectional") => Err(place.fault(
            "makes mounts on the host: remove it, or set `shared-mounts = true` \
                 under [policy] of the settings",
        )),
        Some(other) => Err(place.fault(format!("{other:?} is no propagation"))),
    }
}
