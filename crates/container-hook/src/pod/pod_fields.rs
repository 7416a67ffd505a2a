//! A template's fields of the pod as a whole.

use std::collections::BTreeMap;

use container_hook_job::request::RequestMount;
use container_hook_job::template::{FieldPath, TemplateFault, TemplateSettings};
use k8s_openapi::api::core::v1::{Container, PodSpec, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use oci_hooks_image::CredentialFile;

use super::objects::ObjectRef;
use super::volumes::VolumeBackings;

/// Key of a secret that contains logins.
const LOGINS: &str = ".dockerconfigjson";

/// The fields of a pod that apply to all of its containers.
#[derive(Debug)]
pub struct PodFields {
    /// Labels and annotations of the template, and the name of the pod.
    pub metadata: ObjectMeta,
    /// Fields of the template, without containers.
    pub spec: PodSpec,
    pub place: FieldPath,
    /// Mounts of the runner's directories in the request.
    pub system_mounts: Vec<RequestMount>,
    /// Containers by name, for the downward API.
    pub containers: BTreeMap<String, Container>,
    pub is_step: bool,
    /// Sources of the volumes.
    pub backings: VolumeBackings,
}

impl PodFields {
    /// Returns the group ID of volumes that are created for the pod.
    pub fn fs_group(&self) -> Option<u32> {
        let context = self.spec.security_context.as_ref()?;
        context.fs_group.and_then(|group| u32::try_from(group).ok())
    }

    /// Returns the volumes of the template.
    pub fn volumes(&self) -> impl Iterator<Item = (&Volume, FieldPath)> {
        let place = self.place.at("spec/volumes");
        let all = self.spec.volumes.iter().flatten().enumerate();
        all.map(move |(at, volume)| (volume, place.item(at)))
            .filter(|(_, place)| place.is_from_template())
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
