//! `volumeMounts` of a container.

use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::VolumeMount;

use super::environment::{Environment, Sources};
use super::fault::{Fault, Place};
use super::overlay::{Facts, Overlay};
use super::volumes::{Backing, below, check_socket};
use crate::bundle::{self, Mount, MountSource, Propagation};
use crate::container::Role;
use crate::container_hook::engine::backend::EngineBackend;
use crate::container_hook::engine::mounts::runner_directory;
use crate::container_hook::error::HookError;

impl Overlay {
    /// Adds mounts, in place of what the workflow has at the same path.
    pub(super) fn mounts(
        &self,
        backend: &EngineBackend<'_>,
        facts: &Facts<'_>,
        environment: &Environment,
        options: &mut bundle::Options,
    ) -> Result<(), HookError> {
        let wanted = self.container.volume_mounts.iter().flatten();
        for (at, wanted) in wanted.enumerate().skip(self.given.mounts) {
            let place = self.place.at("volumeMounts").item(at);
            let target = self.target(wanted, &place)?;
            let mounts = self.mount(backend, facts, environment, (wanted, &place))?;
            options.mounts.retain(|mount| mount.target.components().ne(target.components()));
            options.mounts.extend(mounts);
        }
        Ok(())
    }

    fn target<'a>(&self, wanted: &'a VolumeMount, place: &Place) -> Result<&'a Path, Fault> {
        let target = Path::new(&wanted.mount_path);
        let is_there = |other: &str| Path::new(other).components().eq(target.components());
        let is_ours = matches!(self.role, Role::Job | Role::Step)
            && self.wide.system_mounts.iter().any(|mount| is_there(&mount.target));
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

    /// Returns what a mount of the template is: several for the runner's `github`.
    fn mount(
        &self,
        backend: &EngineBackend<'_>,
        facts: &Facts<'_>,
        environment: &Environment,
        (wanted, place): (&VolumeMount, &Place),
    ) -> Result<Vec<Mount>, HookError> {
        let subpath = match (&wanted.sub_path, &wanted.sub_path_expr) {
            (Some(path), None) => Some((path.clone(), place.at("subPath"))),
            (None, Some(path)) => Some((environment.expand(path), place.at("subPathExpr"))),
            (None, None) => None,
            (Some(_), Some(_)) => {
                return Err(place.fault("has both `subPath` and `subPathExpr`").into());
            }
        };
        let subpath = subpath.filter(|(path, _)| !path.is_empty()).map(|(path, place)| {
            let problem = "has to be a path below the volume's top, without `..`";
            below(&path).ok_or_else(|| place.fault(problem))
        });
        let subpath = subpath.transpose()?;
        let propagation = match wanted.mount_propagation.as_deref() {
            None | Some("None") => Propagation::Private,
            Some("HostToContainer") => Propagation::Slave,
            Some("Bidirectional") if backend.context.settings.policy.shared_mounts => {
                Propagation::Shared
            }
            Some("Bidirectional") => {
                let problem = "makes mounts on the host: remove it, or set `shared-mounts = true` \
                               under [policy] of the settings";
                return Err(place.at("mountPropagation").fault(problem).into());
            }
            Some(other) => {
                let problem = format!("{other:?} is no propagation");
                return Err(place.at("mountPropagation").fault(problem).into());
            }
        };
        if wanted.recursive_read_only.as_deref() == Some("Enabled") {
            let problem = "is not to be had: write `IfPossible`";
            return Err(place.at("recursiveReadOnly").fault(problem).into());
        }
        let is_read_only = wanted.read_only == Some(true);
        let mount = |source| Mount {
            target: PathBuf::from(&wanted.mount_path),
            source,
            subpath: subpath.clone(),
            read_only: is_read_only,
            ownership: None,
        };
        if let Some(sources) = self.wide.runner_volume(backend, &wanted.name, place)? {
            if propagation != Propagation::Private {
                let problem = "is not for the runner's directories: remove it";
                return Err(place.at("mountPropagation").fault(problem).into());
            }
            let mounts = sources.into_iter().filter_map(|(below, source)| {
                let recursive = true;
                let opened = match facts.volumes {
                    // Only what is wrong with the template is looked for.
                    None => Ok(trusted(source.path.clone(), propagation)),
                    Some(_) => runner_directory(backend, &source.path)
                        .map(|file| MountSource::Bind { file, propagation, recursive }),
                };
                let mut mount = match opened {
                    Ok(source) => mount(source),
                    Err(error) => return Some(Err(error)),
                };
                mount.read_only |= source.read_only;
                mount.ownership = backend.ownership();
                // What is mounted below the volume's top is mounted below the target, or alone.
                if !below.as_os_str().is_empty() {
                    match &subpath {
                        None => mount.target.push(below),
                        Some(path) => {
                            let rest = path.strip_prefix(&below).ok()?.to_owned();
                            mount.subpath = (!rest.as_os_str().is_empty()).then_some(rest);
                        }
                    }
                }
                Some(Ok(mount))
            });
            return mounts.collect();
        }
        let (volume, volume_place) = self.wide.volume(&wanted.name).ok_or_else(|| {
            place.at("name").fault(format!("there is no volume {:?} in the pod", wanted.name))
        })?;
        let sources =
            Sources { settings: &backend.context.settings.template, wide: &self.wide, facts };
        let backing = sources.backing(volume, &volume_place, &backend.context.settings.policy)?;
        if propagation == Propagation::Shared && !matches!(backing, Backing::Host { .. }) {
            // What a container mounted there would be removed with the volume.
            let problem = "is only for volumes with `hostPath`";
            return Err(place.at("mountPropagation").fault(problem).into());
        }
        let own = facts.volumes.unwrap_or(Path::new("/")).join(&volume.name);
        Ok(vec![match backing {
            Backing::Host { path, .. } => {
                let all = subpath.as_ref().map_or(path.clone(), |below| path.join(below));
                check_socket(&all, &backend.context.settings.policy, place)?;
                mount(trusted(path, propagation))
            }
            Backing::Empty { .. } => mount(trusted(own, propagation)),
            Backing::Files(_) => Mount { read_only: true, ..mount(trusted(own, propagation)) },
        }])
    }
}

/// Returns the source of what the administrator's template names, or is in a directory of ours.
fn trusted(path: PathBuf, propagation: Propagation) -> MountSource {
    MountSource::Trusted { path, propagation, recursive: true }
}
