//! An image, a registry that serves it, and a client that pulls it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
pub(crate) use oci_hooks_files::error::chain;
use oci_hooks_image::{
    ClientOptions, Credentials, Digest, Image, ImageReference, ImageStore, LoginMethod, Platform,
    ProgressEvent, PullError, PullPolicy, PullProgress, PullRequest, RegistryClient,
    RegistryCredential, RetryOptions, Secret, StoreOptions, pull,
};
use oci_hooks_testsupport::http::{WebRequest, WebResponse, WebServer};
use oci_hooks_testsupport::program;
use serde_json::{Value, json};

pub(crate) const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// Image as stored in a registry.
#[derive(Clone)]
pub(crate) struct MockImage {
    pub(crate) manifest: Value,
    pub(crate) config: Vec<u8>,
    pub(crate) layers: Vec<Vec<u8>>,
}

/// Returns an archive with one file.
pub(crate) fn archive(name: &str, content: &[u8]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_ustar();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    header.set_uid(rustix::process::geteuid().as_raw().into());
    header.set_gid(rustix::process::getegid().as_raw().into());
    builder.append_data(&mut header, name, content).unwrap();
    builder.into_inner().unwrap()
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Returns bytes that do not compress.
pub(crate) fn random_bytes(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    (0..len).map(|_| next()).collect()
}

/// Media types of documents in the specifications.
pub(crate) mod media_type {
    pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
    pub(crate) const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
    pub(crate) const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
    pub(crate) const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
}

pub(crate) fn descriptor(media_type: &str, bytes: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": Digest::of(bytes), "size": bytes.len()})
}

impl MockImage {
    /// Returns an image with a layer for each content, in files `0`, `1` and so on.
    pub(crate) fn new(files: &[&[u8]]) -> Self {
        let archives: Vec<_> =
            files.iter().enumerate().map(|(at, file)| archive(&at.to_string(), file)).collect();
        let layers = archives.iter().map(|archive| gzip(archive)).collect();
        MockImage::with_layers(&archives, layers)
    }

    /// Returns an image of these archives, in the given compressed form.
    pub(crate) fn with_layers(archives: &[Vec<u8>], layers: Vec<Vec<u8>>) -> Self {
        let platform = Platform::host();
        let config = json!({
            "os": platform.os, "architecture": platform.architecture, "config": {"Cmd": ["/0"]},
            "rootfs": {
                "type": "layers",
                "diff_ids": archives.iter().map(|archive| Digest::of(archive)).collect::<Vec<_>>(),
            },
        });
        let config = config.to_string().into_bytes();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": media_type::OCI_MANIFEST,
            "config": descriptor(media_type::OCI_CONFIG, &config),
            "layers": layers.iter().map(|layer| descriptor(GZIP, layer)).collect::<Vec<_>>(),
        });
        MockImage { manifest, config, layers }
    }

    /// Returns an honest registry's response if the image is `test/image:latest`.
    pub(crate) fn answer(&self, request: &WebRequest) -> WebResponse {
        let manifest = self.manifest.to_string().into_bytes();
        let path = request.path.split('?').next().unwrap();
        if path == "/v2/" {
            return WebResponse::status(200);
        }
        let Some(path) = path.strip_prefix("/v2/test/image/") else {
            return WebResponse::status(404);
        };
        let digest = Digest::of(&manifest);
        if path == "manifests/latest" || path == format!("manifests/{digest}") {
            let media_type = self.manifest["mediaType"].as_str().unwrap();
            return WebResponse::ok(manifest)
                .with("content-type", media_type)
                .with("docker-content-digest", digest.to_string());
        }
        let mut blobs = self.layers.iter().chain([&self.config]);
        let blob = blobs.find(|blob| path == format!("blobs/{}", Digest::of(blob)));
        let Some(blob) = blob else { return WebResponse::status(404) };
        let start = request.header("range").and_then(|range| {
            range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok()
        });
        match start {
            None => WebResponse::ok(blob.clone()),
            Some(start) => {
                let range = format!("bytes {start}-{}/{}", blob.len() - 1, blob.len());
                let part = WebResponse::ok(&blob[start..]).with("content-range", range);
                WebResponse { status: 206, ..part }
            }
        }
    }

    /// Serves the image.
    pub(crate) fn serve(&self) -> WebServer {
        let content = self.clone();
        WebServer::start(move |request| content.answer(request))
    }

    /// Returns the path of a layer on a server.
    pub(crate) fn layer_path(&self, at: usize) -> String {
        format!("/v2/test/image/blobs/{}", Digest::of(&self.layers[at]))
    }
}

/// Client with a store.
pub(crate) struct Puller {
    directory: tempfile::TempDir,
    pub(crate) options: ClientOptions,
    pub(crate) credentials: Credentials,
    pub(crate) policy: PullPolicy,
    pub(crate) seen: EventCounts,
}

/// Counts of progress events by name.
#[derive(Clone, Default)]
pub(crate) struct EventCounts(pub(crate) Arc<Mutex<BTreeMap<&'static str, u64>>>);

impl PullProgress for EventCounts {
    fn event(&self, event: ProgressEvent<'_>) {
        let (name, count) = match event {
            ProgressEvent::LayerBytes { bytes, .. } => ("bytes", bytes),
            ProgressEvent::Retry { .. } => ("retry", 1),
            ProgressEvent::Waiting => ("waiting", 1),
            ProgressEvent::LayerDone { .. } => ("done", 1),
            ProgressEvent::Outdated { .. } => ("outdated", 1),
            ProgressEvent::LayerCached { .. } => ("cached", 1),
            _ => return,
        };
        *self.0.lock().unwrap().entry(name).or_default() += count;
    }
}

impl EventCounts {
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.0.lock().unwrap().get(name).copied().unwrap_or(0)
    }
}

impl Puller {
    pub(crate) fn new() -> Self {
        let retry = RetryOptions {
            attempts: 3,
            delay: Duration::from_millis(1),
            max_delay: Duration::from_secs(1),
        };
        let options = ClientOptions { retry, ..ClientOptions::default() };
        Puller {
            directory: program::temporary_directory_in(std::path::Path::new("/dev/shm")),
            options,
            credentials: Credentials::default(),
            policy: PullPolicy::Always,
            seen: EventCounts::default(),
        }
    }

    /// Returns a client with a password for a registry.
    pub(crate) fn with_login(registry: &str, user: &str, password: &str) -> Self {
        let mut puller = Puller::new();
        puller.credentials = login(registry, user, password);
        puller
    }

    pub(crate) fn store(&self) -> ImageStore {
        let root = self.directory.path().join("root");
        let run = self.directory.path().join("run");
        ImageStore::open(StoreOptions::new(root, run)).unwrap()
    }

    /// Pulls `test/image:latest` from a registry.
    pub(crate) fn pull(&self, registry: &str) -> Result<Image, PullError> {
        self.pull_image(&format!("{registry}/test/image"))
    }

    pub(crate) fn pull_image(&self, name: &str) -> Result<Image, PullError> {
        let result = self.pull_beside_others(name);
        // Without a valid client there is no store.
        let left: Vec<_> = fs::read_dir(self.directory.path().join("root/layers"))
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with('.'))
            .collect();
        assert!(left.is_empty(), "a pull leaves nothing behind: {left:?}");
        result
    }

    /// Pulls an image, perhaps in parallel with others of the same store.
    pub(crate) fn pull_beside_others(&self, name: &str) -> Result<Image, PullError> {
        let reference: ImageReference = name.parse().unwrap();
        let client = RegistryClient::new(self.options.clone())?;
        let request = PullRequest {
            reference: &reference,
            platform: &Platform::host(),
            credentials: &self.credentials,
            policy: self.policy,
            progress: &self.seen,
        };
        pull(&self.store(), &client, &request)
    }

    /// Returns the number of complete layers in the store.
    pub(crate) fn layers(&self) -> usize {
        fs::read_dir(self.directory.path().join("root/layers")).unwrap().count()
    }
}

pub(crate) fn login(registry: &str, user: &str, password: &str) -> Credentials {
    let login = LoginMethod::Password {
        username: user.to_owned(),
        password: Secret::new(password.to_owned()),
    };
    Credentials::new(vec![RegistryCredential::new(registry, login)])
}

/// Returns the `Authorization` header of a login by password.
pub(crate) fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

/// Reads a file of a layer.
pub(crate) fn read(image: &Image, layer: usize) -> Vec<u8> {
    fs::read(image.layers[layer].join(layer.to_string())).unwrap()
}
