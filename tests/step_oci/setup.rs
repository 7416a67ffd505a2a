//! A registry with images of steps, and a job that wants them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oci_hooks::image::{ClientOptions, Digest, RegistryClient};
use oci_hooks::step_runner::document::Reference;
use oci_hooks::step_runner::resolve::{Caller, Interrupt, Loaded, Remote, ResolveError, Resolver};
use serde_json::json;
use tempfile::TempDir;

use crate::support::images::{Image, Layer, MANIFEST, Tree};
use crate::support::program;
use crate::support::registry::{Auth, Registry};

pub(crate) const USER: &str = "job";
pub(crate) const PASSWORD: &str = "s3cr3t-of-the-job";

/// A registry that asks for the password, and a cache.
pub(crate) struct Setup {
    pub(crate) registry: Registry,
    pub(crate) dir: TempDir,
}

impl Setup {
    pub(crate) fn new() -> Self {
        Setup {
            registry: Registry::start(Auth::Password(USER, PASSWORD)),
            dir: program::temporary_directory(),
        }
    }

    /// Pushes an image of some layers as `steps/test` with a tag.
    pub(crate) fn push(&self, tag: &str, layers: &[&dyn Fn(&mut Tree)]) {
        let layers: Vec<_> = layers.iter().map(|fill| Layer::new(fill)).collect();
        let image = Image::new(&layers.iter().collect::<Vec<_>>(), json!({}));
        let layout = program::temporary_directory();
        write_layout(&image, layout.path());
        let from = format!("oci:{}:latest", layout.path().display());
        self.registry.push(&from, &format!("steps/test:{tag}"), Some((USER, PASSWORD)));
    }

    /// Returns the reference of a directory in an image.
    pub(crate) fn reference(&self, tag: &str, path: &str) -> Reference {
        let text = format!("{}/steps/test:{tag} {path}", self.registry.address());
        let reference = Reference::parse(&text).unwrap();
        assert!(matches!(reference, Reference::Oci { .. }), "{reference:?}");
        reference
    }

    /// Finds a step for a job with these variables, as a program does that was just started.
    pub(crate) fn load(
        &self,
        reference: &Reference,
        vars: &BTreeMap<String, String>,
    ) -> Result<Loaded, ResolveError> {
        let registries = RegistryClient::new(ClientOptions::default()).unwrap();
        let resolver = Resolver::new(Remote::new(self.dir.path().join("cache"), registries));
        let (env, interrupt) = (BTreeMap::new(), Interrupt::new().unwrap());
        let dir = self.dir.path();
        resolver
            .load(reference, &Caller { dir, tree: None, vars, env: &env, interrupt: &interrupt })
    }

    /// Returns the variables that GitLab gives a job for its registry.
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

/// Returns a step file whose script says something.
pub(crate) fn step(says: &str) -> String {
    format!("spec: {{}}\n---\nexec: {{command: [echo, {says}]}}\n")
}

/// Writes an image as an OCI layout with the tag `latest`.
fn write_layout(image: &Image, directory: &Path) {
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
