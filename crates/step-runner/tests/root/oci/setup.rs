//! A registry with images of steps, and a job that uses them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oci_hooks_image::{ClientOptions, Digest, RegistryClient};
use oci_hooks_testsupport::images::{LayerArchive, MANIFEST, TestImage, TestLayer};
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::registry::{RegistryAuth, TestRegistry};
use serde_json::json;
use step_runner::document::StepReference;
use step_runner::resolve::{
    Interrupt, LoadedStep, ReferenceContext, RemoteAccess, ResolveError, Resolver,
};
use tempfile::TempDir;

pub(crate) const USER: &str = "job";
pub(crate) const PASSWORD: &str = "s3cr3t-of-the-job";

/// A registry that requires the password, and a cache.
pub(crate) struct RegistrySetup {
    pub(crate) registry: TestRegistry,
    pub(crate) dir: TempDir,
}

impl RegistrySetup {
    pub(crate) fn new() -> Self {
        RegistrySetup {
            registry: TestRegistry::start(RegistryAuth::Password(USER, PASSWORD)),
            dir: program::temporary_directory(),
        }
    }

    /// Pushes an image with these layers as `steps/test` with a tag.
    pub(crate) fn push(&self, tag: &str, layers: &[&dyn Fn(&mut LayerArchive)]) {
        let layers: Vec<_> = layers.iter().map(|fill| TestLayer::new(fill)).collect();
        let image = TestImage::new(&layers.iter().collect::<Vec<_>>(), json!({}));
        let layout = program::temporary_directory();
        write_layout(&image, layout.path());
        let from = format!("oci:{}:latest", layout.path().display());
        self.registry.push(&from, &format!("steps/test:{tag}"), Some((USER, PASSWORD)));
    }

    /// Returns the reference of a directory in an image.
    pub(crate) fn reference(&self, tag: &str, path: &str) -> StepReference {
        let text = format!("{}/steps/test:{tag} {path}", self.registry.address());
        let reference = StepReference::parse(&text).unwrap();
        assert!(matches!(reference, StepReference::Oci { .. }), "{reference:?}");
        reference
    }

    /// Loads a step for a job with these variables, with a new resolver.
    pub(crate) fn load(
        &self,
        reference: &StepReference,
        vars: &BTreeMap<String, String>,
    ) -> Result<LoadedStep, ResolveError> {
        let registries = RegistryClient::new(ClientOptions::default()).unwrap();
        let resolver = Resolver::new(RemoteAccess::new(self.dir.path().join("cache"), registries));
        let (env, interrupt) = (BTreeMap::new(), Interrupt::new().unwrap());
        let dir = self.dir.path();
        resolver.load(
            reference,
            &ReferenceContext { dir, tree: None, vars, env: &env, interrupt: &interrupt },
        )
    }

    /// Returns the registry variables that GitLab sets for a job.
    pub(crate) fn ci_login(&self) -> BTreeMap<String, String> {
        let (registry, user) = (self.registry.address(), USER.to_owned());
        BTreeMap::from([
            ("CI_REGISTRY".to_owned(), registry),
            ("CI_REGISTRY_USER".to_owned(), user),
            ("CI_REGISTRY_PASSWORD".to_owned(), PASSWORD.to_owned()),
        ])
    }

    /// Returns the variable that users set for other registries.
    pub(crate) fn docker_login(&self, password: &str) -> BTreeMap<String, String> {
        let auth = STANDARD.encode(format!("{USER}:{password}"));
        let config = json!({"auths": {self.registry.address(): {"auth": auth}}});
        BTreeMap::from([("DOCKER_AUTH_CONFIG".to_owned(), config.to_string())])
    }
}

/// Returns a step file whose command prints a text.
pub(crate) fn step(says: &str) -> String {
    format!("spec: {{}}\n---\nexec: {{command: [echo, {says}]}}\n")
}

/// Writes an image as an OCI layout with the tag `latest`.
fn write_layout(image: &TestImage, directory: &Path) {
    let blobs = directory.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let (config, manifest) = (image.config_document(), image.manifest());
    let layers = image.layers.iter().map(|layer| &layer.blob);
    for blob in layers.chain([&config, &manifest]) {
        fs::write(blobs.join(Digest::of(blob).hex()), blob).unwrap();
    }
    fs::write(directory.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    let index = json!({"schemaVersion": 2, "manifests": [{
        "mediaType": MANIFEST,
        "digest": Digest::of(&manifest),
        "size": manifest.len(),
        "annotations": {"org.opencontainers.image.ref.name": "latest"},
    }]});
    fs::write(directory.join("index.json"), index.to_string()).unwrap();
}
