//! A template's fields of the pod as a whole.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use container_hook_job::request::RequestMount;
use container_hook_job::template::{FieldPath, TemplateFault, TemplateSettings};
use k8s_openapi::api::core::v1::{Container, PodSpec, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use oci_hooks_image::CredentialFile;

use super::objects::ObjectRef;

/// Key of a secret that contains logins.
const LOGINS: &str = ".dockerconfigjson";

/// Volumes of the hook's own pod, which here are the runner's directories, with their paths in containers.
const RUNNER_VOLUMES: [(&str, &str); 3] =
    [("externals", "/__e"), ("work", "/__w"), ("github", "/github")];

/// The fields of a pod that apply to all of its containers.
#[derive(Debug)]
pub struct PodFields {
    /// Labels and annotations of the template, and the name.
    pub metadata: ObjectMeta,
    /// Fields of the template, without containers.
    pub spec: PodSpec,
    pub place: FieldPath,
    /// Mounts of the runner's directories in the request.
    pub system_mounts: Vec<RequestMount>,
    /// Containers by name, for the downward API.
    pub containers: BTreeMap<String, Container>,
    pub is_step: bool,
}

/// One of the runner's directories.
#[derive(Clone, Debug)]
pub struct RunnerDirectory {
    pub path: PathBuf,
    pub below: PathBuf,
    pub read_only: bool,
}

impl PodFields {
    /// Returns the group ID of volumes that are created for the pod.
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

    /// Returns the runner's directories behind a volume of the hook's own pod; none for another volume. `work` is the
    /// runner's work directory.
    pub fn runner_volume(
        &self,
        work: &Path,
        name: &str,
        place: &FieldPath,
    ) -> Result<Option<Vec<RunnerDirectory>>, TemplateFault> {
        let Some((_, top)) = RUNNER_VOLUMES.iter().find(|(known, _)| *known == name) else {
            return Ok(None);
        };
        let below = self.system_mounts.iter().filter_map(|mount| {
            let below = Path::new(&mount.target).strip_prefix(top).ok()?.to_owned();
            let path = mount.source.as_ref()?.into();
            Some(RunnerDirectory { path, below, read_only: mount.read_only })
        });
        // Mounts below `work` and `externals` are directories inside them.
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
    pub fn logins(
        &self,
        settings: &TemplateSettings,
    ) -> Result<Vec<CredentialFile>, TemplateFault> {
        let mut logins = Vec::new();
        for (at, secret) in self.spec.image_pull_secrets.iter().flatten().enumerate() {
            let place = self.place.at("spec/imagePullSecrets").item(at);
            let reference = ObjectRef::secret(settings, &secret.name, None);
            let content = reference.key(LOGINS, &place)?.unwrap_or_default();
            let file = CredentialFile::parse(&String::from_utf8_lossy(&content));
            logins.push(file.map_err(|error| place.fault(error.to_string()))?);
        }
        Ok(logins)
    }
}
