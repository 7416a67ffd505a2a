//! Mounts of a template, of which only values that name addresses are not known yet.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::VolumeMount;

use super::environment::Environment;
use super::volumes::{below, check_socket};
use crate::bundle::{IdMapping, Mount, MountSource, Propagation};
use crate::container_hook::policy::Policy;
use crate::container_hook::template::{Fault, FieldPath};
use crate::sys::host_file::HostFile;

/// A mount of the template, checked.
#[derive(Debug)]
pub struct MountPlan {
    pub target: PathBuf,
    pub source: PlannedSource,
    pub propagation: Propagation,
    pub read_only: bool,
    pub subpath: Subpath,
}

/// What of the host a mount shows.
#[derive(Debug)]
pub enum PlannedSource {
    /// A file or directory of the host that the administrator names.
    Host { path: PathBuf, place: FieldPath },
    /// A volume of ours, by its name in the pod.
    Volume(String),
    /// The runner's own directories: several for its volume `github`.
    Runner { directories: Vec<OpenDirectory>, id_mapping: Option<IdMapping> },
}

/// A directory of the runner that a mount shows.
#[derive(Debug)]
pub struct OpenDirectory {
    pub path: PathBuf,
    pub file: HostFile,
    /// Where it is in the volume.
    pub below: PathBuf,
    pub read_only: bool,
}

/// What of a volume is mounted, in which `$(NAME)` may stand.
#[derive(Debug)]
pub enum Subpath {
    All,
    Path(String, FieldPath),
    Expandable(String, FieldPath),
}

impl Subpath {
    pub(super) fn new(wanted: &VolumeMount, place: &FieldPath) -> Result<Self, Fault> {
        match (&wanted.sub_path, &wanted.sub_path_expr) {
            (Some(path), None) => Ok(Subpath::Path(path.clone(), place.at("subPath"))),
            (None, Some(path)) => Ok(Subpath::Expandable(path.clone(), place.at("subPathExpr"))),
            (None, None) => Ok(Subpath::All),
            (Some(_), Some(_)) => Err(place.fault("has both `subPath` and `subPathExpr`")),
        }
    }

    /// Returns the path below the volume's top; none for all of it.
    pub fn expand(&self, environment: &Environment) -> Result<Option<PathBuf>, Fault> {
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
    /// Returns the mounts in a container with this environment, as far as the policy allows what of the
    /// host they show; `volumes` is the directory of the pod's volumes.
    pub fn mounts(
        &self,
        environment: &Environment,
        volumes: &Path,
        policy: &Policy,
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
            PlannedSource::Host { path, place } => {
                // Asked when it was planned too, of what was there then and as far as values were known.
                let all = subpath.as_ref().map_or(path.clone(), |below| path.join(below));
                check_socket(&all, policy, place)?;
                vec![mount(path.clone())]
            }
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
    pub fn is_at(&self, path: &Path) -> bool {
        path.components().eq(self.target.components())
    }

    /// Returns the runner's directories that can be written to.
    pub fn writable(&self) -> impl Iterator<Item = &Path> {
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::container_hook::engine::pod::environment::Addresses;
    use crate::container_hook::template::Template;
    use crate::container_hook::template::base::Base;

    /// A path in the environment may be known only once the container has addresses, and a socket may
    /// appear after the mount was planned.
    #[test]
    fn the_policy_is_asked_about_what_is_mounted() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("docker.sock"), "").unwrap();
        let base = Base::parse("pod", "spec: {containers: [{name: job, image: a}]}").unwrap();
        let merged = Template::parse("/t", "spec: {}").unwrap().merge_job(base).unwrap();
        let place = FieldPath::top(Arc::new(merged), "/t");
        let plan = MountPlan {
            target: PathBuf::from("/x"),
            source: PlannedSource::Host { path: dir.path().to_owned(), place: place.clone() },
            propagation: Propagation::Private,
            read_only: false,
            subpath: Subpath::Expandable("$(NAME)".to_owned(), place),
        };
        let mounts = |name: &str, policy: &Policy| {
            let variables = [format!("NAME={name}")];
            let environment = Environment::new(&variables, &[], Addresses::default());
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
