//! Step files in container images.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oci_hooks_files::fs::{PathContext as _, make_private};
use oci_hooks_files::lock::FileLock;
use oci_hooks_host::removal::remove_tree;
use oci_hooks_host::tree::{self, CopyPurpose};
use oci_hooks_image::{
    CredentialFile, Credentials, Image, ImageReference, ImageStore, LoginMethod, Platform,
    PullError, PullPolicy, PullRequest, RegistryCredential, Secret, SilentProgress, StoreOptions,
    pull,
};

use super::context::{ReferenceContext, RemoteAccess};
use super::error::OciError;
use super::interrupt::Interrupt;

/// Poll interval for a lock of the image cache that another job holds.
const LOCK_INTERVAL: Duration = Duration::from_millis(20);

/// Pulls an image, and returns a directory with its files.
pub fn fetch(
    remote: &RemoteAccess,
    name: &str,
    caller: &ReferenceContext<'_>,
) -> Result<PathBuf, OciError> {
    let reference: ImageReference =
        name.parse().map_err(|source| OciError::Reference { name: name.to_owned(), source })?;
    let dir = remote.cache.join("oci");
    let store = ImageStore::open(StoreOptions::new(dir.join("store"), dir.join("run")))?;
    let request = PullRequest {
        reference: &reference,
        platform: &Platform::host(),
        credentials: &credentials(&remote.credentials, caller, &reference)?,
        // The registry is always asked, as a tag may have moved.
        policy: PullPolicy::Newer,
        progress: &SilentProgress,
    };
    let image = pull(&store, &remote.registries, &request)?;
    files(&dir, &image, caller.interrupt)
}

/// Returns the credentials with which a job pulls or pushes an image.
///
/// In order of precedence, they come from: `own`; `DOCKER_AUTH_CONFIG` in the environment, to which
/// earlier steps may have exported it; `DOCKER_AUTH_CONFIG` in the job's variables; and
/// `CI_REGISTRY_PASSWORD`.
pub fn credentials(
    own: &Credentials,
    caller: &ReferenceContext<'_>,
    reference: &ImageReference,
) -> Result<Credentials, OciError> {
    let mut credentials = own.clone();
    let files = [caller.env, caller.vars].map(|variables| variables.get("DOCKER_AUTH_CONFIG"));
    for text in files.into_iter().flatten().filter(|text| !text.is_empty()) {
        credentials = credentials.with_file(CredentialFile::parse(text)?);
    }
    let found = credentials.find(reference.registry(), reference.repository());
    if found.map_err(|error| PullError::Registry(error.into()))?.is_some() {
        return Ok(credentials);
    }
    let names = ["CI_REGISTRY", "CI_REGISTRY_USER", "CI_REGISTRY_PASSWORD"];
    if let [Some(registry), Some(username), Some(password)] = names.map(|n| caller.variable(n)) {
        let (username, password) = (username.to_owned(), Secret::new(password));
        let login = LoginMethod::Password { username, password };
        credentials = credentials.with_login(RegistryCredential::new(registry, login));
    }
    Ok(credentials)
}

/// Waits for a lock, which another job may hold for a long time. Fails once the interrupt is set.
fn lock(path: &Path, interrupt: &Interrupt) -> Result<FileLock, OciError> {
    loop {
        if let Some(lock) = FileLock::try_exclusive(path)? {
            return Ok(lock);
        }
        interrupt.pause(LOCK_INTERVAL).map_err(|_| OciError::Interrupted)?;
    }
}

/// Returns a directory with the merged layers of an image. It is created once for each image, and
/// shared.
fn files(dir: &Path, image: &Image, interrupt: &Interrupt) -> Result<PathBuf, OciError> {
    let trees = dir.join("trees");
    make_private(&trees)?;
    let digest = image.id.hex();
    let tree = trees.join(digest);
    if tree.exists() {
        return Ok(tree);
    }
    let _lock = lock(&trees.join(format!("{digest}.lock")), interrupt)?;
    if tree.exists() {
        return Ok(tree);
    }
    let partial = trees.join(format!("{digest}.partial"));
    // Left by a crash.
    remove_tree(&partial)?;
    DirBuilder::new().mode(0o755).create(&partial).with_path("make", &partial)?;
    for layer in &image.layers {
        interrupt.check().map_err(|_| OciError::Interrupted)?;
        tree::copy(layer, &partial, CopyPurpose::Layer.into())?;
    }
    fs::rename(&partial, &tree).with_path("rename", &partial)?;
    Ok(tree)
}
