#![allow(missing_docs, clippy::all)]
use super::*;
use std::path::*;
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub struct StoreError;
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub struct PullError;
#[derive(Debug, Clone)]
pub struct Image {
    pub reference: Reference,
    pub digest: Digest,
    pub id: Digest,
    pub config: ImageConfig,
    pub platform: Platform,
    pub layers: Vec<PathBuf>,
}
#[derive(Debug)]
pub struct Store;
impl Store {
    pub fn find(&self, _: &Reference, _: &Platform) -> Result<Option<Image>, StoreError> {
        panic!()
    }
    pub fn lease(&self, _: &str, _: &Image) -> Result<(), StoreError> {
        panic!()
    }
    pub fn release(&self, _: &str) -> Result<(), StoreError> {
        panic!()
    }
    pub fn import(&self, _: &Path, _: &Reference) -> Result<Image, StoreError> {
        panic!()
    }
}
pub trait Progress: Sync {}
#[derive(Clone, Copy, Debug)]
pub enum PullPolicy {
    Always,
    Missing,
    Newer,
    Never,
}
pub struct RegistryClient;
pub struct PullRequest<'a> {
    pub reference: &'a Reference,
    pub platform: &'a Platform,
    pub credential: Option<&'a Credential>,
    pub policy: PullPolicy,
    pub progress: &'a dyn Progress,
}
pub fn pull(_: &Store, _: &RegistryClient, _: &PullRequest<'_>) -> Result<Image, PullError> {
    panic!()
}
