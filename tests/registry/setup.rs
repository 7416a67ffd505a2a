//! An image, a registry that has it, and somebody who pulls it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oci_hooks::image::{
    ClientOptions, Credential, Credentials, Digest, Image, Login, Platform, Progress,
    ProgressEvent, PullError, PullPolicy, PullRequest, Reference, RegistryClient, Retry, Secret,
    Store, StoreOptions, pull,
};
use serde_json::{Value, json};

use crate::support::http::{Request, Response, Server};
use crate::support::program;

pub(crate) const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// An image as a registry holds it.
#[derive(Clone)]
pub(crate) struct Content {
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
pub(crate) fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    (0..len).map(|_| next()).collect()
}

/// The types of documents, as the specifications write them.
pub(crate) mod media_type {
    pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
    pub(crate) const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
    pub(crate) const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
    pub(crate) const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
}

pub(crate) fn descriptor(media_type: &str, bytes: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": Digest::of(bytes), "size": bytes.len()})
}

impl Content {
    /// Returns an image with one layer for each content, a file `0`, `1` and so on.
    pub(crate) fn new(files: &[&[u8]]) -> Self {
        let archives: Vec<_> =
            files.iter().enumerate().map(|(at, file)| archive(&at.to_string(), file)).collect();
        let layers = archives.iter().map(|archive| gzip(archive)).collect();
        Content::with_layers(&archives, layers)
    }

    /// Returns an image of these archives, compressed somehow.
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
        Content { manifest, config, layers }
    }

    /// Returns what an honest registry answers when the image is `test/image:latest`.
    pub(crate) fn answer(&self, request: &Request) -> Response {
        let manifest = self.manifest.to_string().into_bytes();
        let path = request.path.split('?').next().unwrap();
        if path == "/v2/" {
            return Response::status(200);
        }
        let Some(path) = path.strip_prefix("/v2/test/image/") else {
            return Response::status(404);
        };
        let digest = Digest::of(&manifest);
        if path == "manifests/latest" || path == format!("manifests/{digest}") {
            let media_type = self.manifest["mediaType"].as_str().unwrap();
            return Response::ok(manifest)
                .with("content-type", media_type)
                .with("docker-content-digest", digest.to_string());
        }
        let mut blobs = self.layers.iter().chain([&self.config]);
        let blob = blobs.find(|blob| path == format!("blobs/{}", Digest::of(blob)));
        let Some(blob) = blob else { return Response::status(404) };
        let start = request.header("range").and_then(|range| {
            range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok()
        });
        match start {
            None => Response::ok(blob.clone()),
            Some(start) => {
                let range = format!("bytes {start}-{}/{}", blob.len() - 1, blob.len());
                let part = Response::ok(&blob[start..]).with("content-range", range);
                Response { status: 206, ..part }
            }
        }
    }

    /// Serves the image.
    pub(crate) fn serve(&self) -> Server {
        let content = self.clone();
        Server::start(move |request| content.answer(request))
    }

    /// Returns the address of a layer on a server.
    pub(crate) fn layer_path(&self, at: usize) -> String {
        format!("/v2/test/image/blobs/{}", Digest::of(&self.layers[at]))
    }
}

/// Somebody with a store who pulls.
pub(crate) struct Puller {
    directory: tempfile::TempDir,
    pub(crate) options: ClientOptions,
    pub(crate) credentials: Credentials,
    pub(crate) policy: PullPolicy,
    pub(crate) seen: Events,
}

/// What happened, as text.
#[derive(Clone, Default)]
pub(crate) struct Events(pub(crate) Arc<Mutex<BTreeMap<&'static str, u64>>>);

impl Progress for Events {
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

impl Events {
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.0.lock().unwrap().get(name).copied().unwrap_or(0)
    }
}

impl Puller {
    pub(crate) fn new() -> Self {
        let retry = Retry {
            attempts: 3,
            delay: Duration::from_millis(1),
            max_delay: Duration::from_secs(1),
        };
        let mut options = ClientOptions::default();
        options.retry = retry;
        Puller {
            directory: program::temporary_directory_in(std::path::Path::new("/dev/shm")),
            options,
            credentials: Credentials::default(),
            policy: PullPolicy::Always,
            seen: Events::default(),
        }
    }

    /// Returns one with a password for a registry.
    pub(crate) fn with_login(registry: &str, user: &str, password: &str) -> Self {
        let mut puller = Puller::new();
        puller.credentials = login(registry, user, password);
        puller
    }

    pub(crate) fn store(&self) -> Store {
        let root = self.directory.path().join("root");
        let run = self.directory.path().join("run");
        Store::open(StoreOptions::new(root, run)).unwrap()
    }

    /// Pulls `test/image:latest` from a registry.
    pub(crate) fn pull(&self, registry: &str) -> Result<Image, PullError> {
        self.pull_image(&format!("{registry}/test/image"))
    }

    pub(crate) fn pull_image(&self, name: &str) -> Result<Image, PullError> {
        let result = self.pull_beside_others(name);
        // There is no store if the client cannot be made.
        let left: Vec<_> = fs::read_dir(self.directory.path().join("root/layers"))
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with('.'))
            .collect();
        assert!(left.is_empty(), "a pull leaves nothing behind: {left:?}");
        result
    }

    /// Pulls an image while others of this store may be pulled too.
    pub(crate) fn pull_beside_others(&self, name: &str) -> Result<Image, PullError> {
        let reference: Reference = name.parse().unwrap();
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

    /// Returns the number of whole layers in the store.
    pub(crate) fn layers(&self) -> usize {
        fs::read_dir(self.directory.path().join("root/layers")).unwrap().count()
    }
}

pub(crate) fn login(registry: &str, user: &str, password: &str) -> Credentials {
    let login =
        Login::Password { username: user.to_owned(), password: Secret::new(password.to_owned()) };
    Credentials::new(vec![Credential::new(registry, login)])
}

/// Returns the header that a login by password is sent in.
pub(crate) fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

/// Returns an error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Reads a file of a layer.
pub(crate) fn read(image: &Image, layer: usize) -> Vec<u8> {
    fs::read(image.layers[layer].join(layer.to_string())).unwrap()
}
