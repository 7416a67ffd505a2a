//! What a template says of the pod as a whole.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, PodSpec, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::objects::{Kind, Reference};
use crate::container_hook::request::Mount;
use crate::container_hook::template::{Fault, FieldPath, TemplateSettings};
use crate::image::CredentialFile;

/// The key of a secret that holds logins.
const LOGINS: &str = ".dockerconfigjson";

/// The volumes of the hook's own pod: here they are the runner's directories, each with where it is
/// in containers.
const RUNNER_VOLUMES: [(&str, &str); 3] =
    [("externals", "/__e"), ("work", "/__w"), ("github", "/github")];

/// The fields of a pod that hold for all of its containers.
#[derive(Debug)]
pub struct PodFields {
    /// Only what the template says, and the name.
    pub metadata: ObjectMeta,
    /// Only what the template says; without containers.
    pub spec: PodSpec,
    pub place: FieldPath,
    /// The runner's directories, as the request names them.
    pub system_mounts: Vec<Mount>,
    /// By name, for the downward API.
    pub containers: BTreeMap<String, Container>,
    pub is_step: bool,
}

/// One of the runner's directories.
#[derive(Clone, Debug)]
pub struct RunnerDirectory {
    pub path: PathBuf,
    /// Where it is in the volume.
    pub below: PathBuf,
    pub read_only: bool,
}

impl PodFields {
    /// Returns the group of volumes that are made for the pod.
    pub fn fs_group(&self) -> Option<u32> {
        let context = self.spec.security_context.as_ref()?;
        context.fs_group.and_then(|group| u32::try_from(group).ok())
    }

    /// Returns a container by its name.
    pub fn container(&self, name: &str) -> Option<&Container> {
        self.containers.get(name)
    }

    /// Returns the volumes of the template.
    pub fn volumes(&self) -> impl Iterator<Item = (&Volume, FieldPath)> {
        let place = self.place.at("spec/volumes");
        let all = self.spec.volumes.iter().flatten().enumerate();
        all.map(move |(at, volume)| (volume, place.item(at)))
            .filter(|(_, place)| place.is_from_template())
    }

    /// Returns the runner's directories that a volume of the hook's own pod stands for; none if it is
    /// another volume. `work` is the runner's work directory.
    pub fn runner_volume(
        &self,
        work: &Path,
        name: &str,
        place: &FieldPath,
    ) -> Result<Option<Vec<RunnerDirectory>>, Fault> {
        let Some((_, top)) = RUNNER_VOLUMES.iter().find(|(known, _)| *known == name) else {
            return Ok(None);
        };
        let below = self.system_mounts.iter().filter_map(|mount| {
            let below = Path::new(&mount.target).strip_prefix(top).ok()?.to_owned();
            let path = mount.source.as_ref()?.into();
            Some(RunnerDirectory { path, below, read_only: mount.read_only })
        });
        // What is mounted below `work` and `externals` is in them anyway.
        let is_whole = name != "github";
        let found: Vec<_> =
            below.filter(|found| !is_whole || found.below.as_os_str().is_empty()).collect();
        if found.is_empty() && name == "work" {
            let (path, below) = (work.to_owned(), PathBuf::new());
            return Ok(Some(vec![RunnerDirectory { path, below, read_only: false }]));
        }
        if found.is_empty() && !self.is_step {
            return Err(place.at("name").fault("needs a job container"));
        }
        Ok(Some(found))
    }

    /// Returns the logins of `imagePullSecrets`.
    pub fn logins(&self, settings: &TemplateSettings) -> Result<Vec<CredentialFile>, Fault> {
        let mut logins = Vec::new();
        for (at, secret) in self.spec.image_pull_secrets.iter().flatten().enumerate() {
            let place = self.place.at("spec/imagePullSecrets").item(at);
            let reference = Reference { kind: Kind::Secret, name: &secret.name, optional: None };
            let content = reference.key(LOGINS, settings, &place)?.unwrap_or_default();
            let file = CredentialFile::parse(&String::from_utf8_lossy(&content));
            logins.push(file.map_err(|error| place.fault(error.to_string()))?);
        }
        Ok(logins)
    }
}
