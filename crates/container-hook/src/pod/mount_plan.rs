//! Mounts of a template, complete except for subpaths that refer to addresses.

use std::path::{Path, PathBuf};

use container_hook_job::policy::Policy;
use container_hook_job::template::{FieldPath, TemplateFault};
use k8s_openapi::api::core::v1::VolumeMount;
use oci_hooks_engine::bundle::{IdMapping, MountPropagation, MountRequest, MountSource};
use oci_hooks_host::host_file::HostFile;

use super::environment::ContainerEnvironment;
use super::volumes::{check_socket, descending_path};

/// A checked mount of the template.
#[derive(Debug)]
pub struct MountPlan {
    pub target: PathBuf,
    pub source: PlannedSource,
    pub propagation: MountPropagation,
    pub read_only: bool,
    pub subpath: Subpath,
}

/// The source of a mount.
#[derive(Debug)]
pub enum PlannedSource {
    /// A file or directory of the host that the admin's template names.
    Host { path: PathBuf, place: FieldPath },
    /// A volume of the pod, by its name.
    Volume(String),
    /// The runner's own directories; several for the volume `github`.
    Runner { directories: Vec<RunnerDirectory>, id_mapping: Option<IdMapping> },
}

/// An opened directory of the runner.
#[derive(Debug)]
pub struct RunnerDirectory {
    pub path: PathBuf,
    pub file: HostFile,
    /// Path of the directory in its volume; empty for the whole volume.
    pub below: PathBuf,
    pub read_only: bool,
}

/// The part of a volume that is mounted.
#[derive(Debug)]
pub enum Subpath {
    All,
    Path(String, FieldPath),
    Expandable(String, FieldPath),
}

impl Subpath {
    pub(super) fn new(wanted: &VolumeMount, place: &FieldPath) -> Result<Self, TemplateFault> {
        match (&wanted.sub_path, &wanted.sub_path_expr) {
            (Some(path), None) => Ok(Subpath::Path(path.clone(), place.at("subPath"))),
            (None, Some(path)) => Ok(Subpath::Expandable(path.clone(), place.at("subPathExpr"))),
            (None, None) => Ok(Subpath::All),
            (Some(_), Some(_)) => {
                Err(place.fault("has both `subPath` and `subPathExpr`: remove one"))
            }
        }
    }

    /// Returns the path below the volume's top; none for the whole volume.
    pub fn expand(
        &self,
        environment: &ContainerEnvironment,
    ) -> Result<Option<PathBuf>, TemplateFault> {
        let (path, place) = match self {
            Subpath::All => return Ok(None),
            Subpath::Path(path, place) => (path.clone(), place),
            Subpath::Expandable(path, place) => (environment.expand(path), place),
        };
        if path.is_empty() {
            return Ok(None);
        }
        let problem = "has to be a relative path without `..`";
        descending_path(&path).map(Some).ok_or_else(|| place.fault(problem))
    }
}

impl MountPlan {
    /// Returns the mounts of a container with this environment, if the policy allows their host paths; `volumes` is
    /// the directory of the pod's volumes.
    pub fn mounts(
        &self,
        environment: &ContainerEnvironment,
        volumes: &Path,
        policy: &Policy,
    ) -> Result<Vec<MountRequest>, TemplateFault> {
        let subpath = self.subpath.expand(environment)?;
        let (propagation, recursive) = (self.propagation, true);
        let mount = |path| MountRequest {
            target: self.target.clone(),
            source: MountSource::Trusted { path, propagation, recursive },
            subpath: subpath.clone(),
            read_only: self.read_only,
            id_mapping: None,
        };
        Ok(match &self.source {
            PlannedSource::Host { path, place } => {
                // Also checked when planned, but files may have changed, and values were incomplete then.
                let all = subpath.as_ref().map_or(path.clone(), |below| path.join(below));
                check_socket(&all, policy, place)?;
                vec![mount(path.clone())]
            }
            PlannedSource::Volume(name) => vec![mount(volumes.join(name))],
            PlannedSource::Runner { directories, id_mapping } => {
                let mounts = directories.iter().filter_map(|directory| {
                    let (target, subpath) = directory.place(&self.target, subpath.as_deref())?;
                    let file = directory.file.clone();
                    Some(MountRequest {
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

    /// Returns whether the mount has this target.
    pub fn is_at(&self, path: &Path) -> bool {
        path.components().eq(self.target.components())
    }

    /// Returns the runner's directories that are mounted writable.
    pub fn writable_paths(&self) -> impl Iterator<Item = &Path> {
        let directories = match &self.source {
            PlannedSource::Runner { directories, .. } if !self.read_only => &directories[..],
            _ => &[],
        };
        let writable = directories.iter().filter(|directory| !directory.read_only);
        writable.map(|directory| directory.path.as_path())
    }
}

impl RunnerDirectory {
    /// Returns the target and subpath of the directory's mount, for a volume with this target and subpath; none if the
    /// subpath excludes the directory.
    fn place(&self, target: &Path, subpath: Option<&Path>) -> Option<(PathBuf, Option<PathBuf>)> {
        match subpath {
            _ if self.below.as_os_str().is_empty() => {
                Some((target.to_owned(), subpath.map(Path::to_owned)))
            }
            // Without a subpath, a directory below the volume's top is mounted below the target.
            None => Some((target.join(&self.below), None)),
            Some(path) => {
                let rest = path.strip_prefix(&self.below).ok()?.to_owned();
                Some((target.to_owned(), (!rest.as_os_str().is_empty()).then_some(rest)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use container_hook_job::template::PodTemplate;
    use container_hook_job::template::base::BasePod;

    use super::*;
    use crate::pod::environment::PodAddresses;

    /// A subpath may be known only once the container has addresses, and a socket may appear after the mount
    /// was planned.
    #[test]
    fn mounts_require_permission_of_the_policy() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("docker.sock"), "").unwrap();
        let base = BasePod::parse("pod", "spec: {containers: [{name: job, image: a}]}").unwrap();
        let merged = PodTemplate::parse("/t", "spec: {}").unwrap().merge_job(base).unwrap();
        let place = FieldPath::top(Arc::new(merged), "/t");
        let plan = MountPlan {
            target: PathBuf::from("/x"),
            source: PlannedSource::Host { path: dir.path().to_owned(), place: place.clone() },
            propagation: MountPropagation::Private,
            read_only: false,
            subpath: Subpath::Expandable("$(NAME)".to_owned(), place),
        };
        let mounts = |name: &str, policy: &Policy| {
            let variables = [format!("NAME={name}")];
            let environment = ContainerEnvironment::new(&variables, &[], PodAddresses::default());
            plan.mounts(&environment, Path::new("/volumes"), policy)
        };
        let policy = Policy::default();
        assert_eq!(mounts("other", &policy).unwrap().len(), 1);
        assert!(mounts("docker.sock", &policy).unwrap_err().to_string().contains("root"));
        let real = dir.path().canonicalize().unwrap();
        let allowed = Policy { bind_mounts: vec![real], ..Policy::default() };
        assert!(mounts("docker.sock", &allowed).is_ok());
    }
}
