//! `volumeMounts` of a container.

use std::path::{Component, Path, PathBuf};

use container_hook_job::HookError;
use container_hook_job::plan::PlanRole;
use container_hook_job::template::{FieldPath, TemplateFault};
use k8s_openapi::api::core::v1::VolumeMount;
use oci_hooks_engine::bundle::MountPropagation;

use super::environment::ContainerEnvironment;
use super::mount_plan::{MountPlan, PlannedSource, RunnerDirectory, Subpath};
use super::overlay::ContainerOverlay;
use super::volumes::{VolumeBacking, check_socket};
use crate::backend::EngineBackend;
use crate::mounts::runner_directory;

/// Volumes of the hook's own pod, which here are the runner's directories, with their paths in containers.
const RUNNER_VOLUMES: [(&str, &str); 3] =
    [("externals", "/__e"), ("work", "/__w"), ("github", "/github")];

impl ContainerOverlay {
    /// Checks the mounts of a container and opens the runner's directories among them; `environment` is the
    /// environment before the container has addresses.
    pub(super) fn mounts(
        &self,
        backend: &EngineBackend<'_>,
        environment: &ContainerEnvironment,
    ) -> Result<Vec<MountPlan>, HookError> {
        let wanted = self.container.volume_mounts.iter().flatten();
        let plans = wanted.enumerate().skip(self.given.mounts).map(|(at, wanted)| {
            let place = self.place.at("volumeMounts").item(at);
            let target = self.target(wanted, &place)?.to_owned();
            let subpath = Subpath::new(wanted, &place)?;
            let below = subpath.expand(environment)?;
            let propagation = propagation(backend, wanted, &place)?;
            let source = match self.runner_source(backend, wanted, &place)? {
                Some(_) if propagation != MountPropagation::Private => {
                    let problem = "is not supported for the runner's directories: remove it";
                    return Err(place.at("mountPropagation").fault(problem).into());
                }
                Some(source) => source,
                None => {
                    let backing = self.backing(wanted, propagation, &place)?;
                    if let VolumeBacking::Host { path, .. } = backing {
                        let all = below.as_ref().map_or(path.clone(), |below| path.join(below));
                        check_socket(&all, &backend.context.settings.policy, &place)?;
                        PlannedSource::Host { path: path.clone(), place }
                    } else {
                        PlannedSource::Volume(wanted.name.clone())
                    }
                }
            };
            let is_files =
                matches!(self.pod.backings.get(&wanted.name), Some(VolumeBacking::Files(_)))
                    && matches!(source, PlannedSource::Volume(_));
            let read_only = wanted.read_only == Some(true) || is_files;
            Ok(MountPlan { target, source, propagation, read_only, subpath })
        });
        plans.collect()
    }

    fn target<'a>(
        &self,
        wanted: &'a VolumeMount,
        place: &FieldPath,
    ) -> Result<&'a Path, TemplateFault> {
        let target = Path::new(&wanted.mount_path);
        let is_there = |other: &str| Path::new(other).components().eq(target.components());
        let is_ours = matches!(self.role, PlanRole::Job | PlanRole::Step)
            && self.pod.system_mounts.iter().any(|mount| is_there(&mount.target));
        let goes_up = target.components().any(|part| part == Component::ParentDir);
        let problem = if !target.is_absolute() || goes_up || target == Path::new("/") {
            "has to be an absolute path below /, without `..`"
        } else if target.starts_with("/proc") {
            "is in /proc, which the runtime mounts: mount it elsewhere"
        } else if is_ours {
            "is a directory of the runner: mount it elsewhere"
        } else {
            return Ok(target);
        };
        Err(place.at("mountPath").fault(problem))
    }

    /// Returns the runner's directories behind a mount; none for another volume.
    fn runner_source(
        &self,
        backend: &EngineBackend<'_>,
        wanted: &VolumeMount,
        place: &FieldPath,
    ) -> Result<Option<PlannedSource>, HookError> {
        let name = wanted.name.as_str();
        let Some((_, top)) = RUNNER_VOLUMES.iter().find(|(known, _)| *known == name) else {
            return Ok(None);
        };
        let mounts = self.pod.system_mounts.iter().filter_map(|mount| {
            let below = Path::new(&mount.target).strip_prefix(top).ok()?;
            let path = mount.source.as_ref().map(PathBuf::from)?;
            Some((path, below.to_owned(), mount.read_only))
        });
        // Mounts below `work` and `externals` are directories inside them.
        let is_part = |below: &Path| name == "github" || below.as_os_str().is_empty();
        let mut found: Vec<_> = mounts.filter(|(_, below, _)| is_part(below)).collect();
        if found.is_empty() && name == "work" {
            found.push((backend.context.runner.work().to_owned(), PathBuf::new(), false));
        }
        if found.is_empty() && !self.pod.is_step {
            return Err(place
                .at("name")
                .fault("is a directory of the runner, which only jobs with a job container mount")
                .into());
        }
        let directories = found.into_iter().map(|(path, below, read_only)| {
            Ok(RunnerDirectory { file: runner_directory(backend, &path)?, path, below, read_only })
        });
        let directories = directories.collect::<Result<Vec<RunnerDirectory>, HookError>>()?;
        let may_fail = directories.iter().all(|directory| directory.read_only);
        Ok(Some(PlannedSource::Runner { directories, id_mapping: backend.id_mapping(may_fail) }))
    }

    /// Returns the source of a mount's volume.
    fn backing(
        &self,
        wanted: &VolumeMount,
        propagation: MountPropagation,
        place: &FieldPath,
    ) -> Result<&VolumeBacking, TemplateFault> {
        let backing = self.pod.backings.get(&wanted.name).ok_or_else(|| {
            place.at("name").fault(format!("the pod has no volume {:?}", wanted.name))
        })?;
        if propagation == MountPropagation::Shared && !matches!(backing, VolumeBacking::Host { .. })
        {
            // Mounts that a container makes in another volume would be removed with the volume.
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
) -> Result<MountPropagation, TemplateFault> {
    if wanted.recursive_read_only.as_deref() == Some("Enabled") {
        let problem = "is not supported: write `IfPossible`";
        return Err(place.at("recursiveReadOnly").fault(problem));
    }
    let place = place.at("mountPropagation");
    match wanted.mount_propagation.as_deref() {
        None | Some("None") => Ok(MountPropagation::Private),
        Some("HostToContainer") => Ok(MountPropagation::Slave),
        Some("Bidirectional") if backend.context.settings.policy.shared_mounts => {
            Ok(MountPropagation::Shared)
        }
        Some("Bidirectional") => Err(place.fault(format!(
            "makes mounts of the container appear on this machine: remove it, or set `shared-mounts = true` under {}",
            backend.context.settings.policy.section("policy")
        ))),
        Some(other) => Err(place.fault(format!(
            "{other:?} is not a propagation: expected `None`, `HostToContainer` or `Bidirectional`"
        ))),
    }
}
