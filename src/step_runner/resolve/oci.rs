//! Step files in container images.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::context::{Caller, Remote};
use super::error::OciError;
use super::interrupt::Interrupt;
use crate::image::{
    Credential, CredentialFile, Credentials, Image, Login, Platform, PullError, PullPolicy,
    PullRequest, Reference, Secret, Silent, Store, StoreOptions, pull,
};
use crate::sys::fs::PathContext as _;
use crate::sys::lock::FileLock;
use crate::sys::removal::remove_tree;
use crate::sys::tree::{self, Purpose};

/// How often a lock is tried that another job holds.
const LOCK_INTERVAL: Duration = Duration::from_millis(20);

/// Fetches an image, and returns a directory with its files.
pub fn fetch(remote: &Remote, name: &str, caller: &Caller<'_>) -> Result<PathBuf, OciError> {
    let reference: Reference =
        name.parse().map_err(|source| OciError::Reference { name: name.to_owned(), source })?;
    let dir = remote.cache.join("oci");
    let store = Store::open(StoreOptions::new(dir.join("store"), dir.join("run")))?;
    let request = PullRequest {
        reference: &reference,
        platform: &Platform::host(),
        credentials: &credentials(&remote.credentials, caller, &reference)?,
        // The registry is asked: a tag may have moved.
        policy: PullPolicy::Newer,
        progress: &Silent,
    };
    let image = pull(&store, &remote.registries, &request)?;
    files(&dir, &image, caller.interrupt)
}

/// Returns the credentials for an image of a job.
///
/// `DOCKER_AUTH_CONFIG` comes first, since its author named the registry; and what a step before exported
/// comes before the job's variable.
pub fn credentials(
    own: &Credentials,
    caller: &Caller<'_>,
    reference: &Reference,
) -> Result<Credentials, OciError> {
    let mut credentials = own.clone();
    let files = [caller.env, caller.vars].map(|variables| variables.get("DOCKER_AUTH_CONFIG"));
    for text in files.into_iter().flatten().filter(|text| !text.is_empty()) {
        credentials = credentials.with_file(CredentialFile::parse(text)?);
    }
    let found = credentials.find(reference.registry(), reference.repository());
    if found.map_err(PullError::Helper)?.is_some() {
        return Ok(credentials);
    }
    let names = ["CI_REGISTRY", "CI_REGISTRY_USER", "CI_REGISTRY_PASSWORD"];
    if let [Some(registry), Some(username), Some(password)] = names.map(|n| caller.variable(n)) {
        let (username, password) = (username.to_owned(), Secret::new(password));
        let login = Login::Password { username, password };
        credentials = credentials.with_login(Credential::new(registry, login));
    }
    Ok(credentials)
}

/// Takes a lock, which another job may hold for long.
fn lock(path: &Path, interrupt: &Interrupt) -> Result<FileLock, OciError> {
    loop {
        if let Some(lock) = FileLock::try_exclusive(path)? {
            return Ok(lock);
        }
        interrupt.pause(LOCK_INTERVAL).map_err(|_| OciError::Interrupted)?;
    }
}

/// Merges the layers of an image into a directory, once for each image.
fn files(dir: &Path, image: &Image, interrupt: &Interrupt) -> Result<PathBuf, OciError> {
    let trees = dir.join("trees");
    DirBuilder::new().recursive(true).mode(0o700).create(&trees).at("make", &trees)?;
    let digest = image.id.hex();
    let tree = trees.join(digest);
    if tree.exists() {
        return Ok(tree);
    }
    let _lock = lock(&trees.join(format!("{digest}.lock")), interrupt)?;
    if tree.exists() {
        return Ok(tree);
    }
    let half = trees.join(format!("{digest}.half"));
    // Left by a crash.
    remove_tree(&half)?;
    DirBuilder::new().mode(0o755).create(&half).at("make", &half)?;
    for layer in &image.layers {
        interrupt.check().map_err(|_| OciError::Interrupted)?;
        tree::copy(layer, &half, Purpose::Layer.into())?;
    }
    fs::rename(&half, &tree).at("rename", &half)?;
    Ok(tree)
}
