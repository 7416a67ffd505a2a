//! Shared parts of the programs' `prune` commands: options for images and records, and the trash.

use clap::Args;
use oci_hooks_engine::container::Engine;
use oci_hooks_files::error::chain;
use oci_hooks_files::fs::PathError;
use oci_hooks_files::quantity::{Age, ByteSize};
use oci_hooks_files::record::NewerRecords;
use oci_hooks_image::PrunePolicy;

use super::sections::StoreSection;

/// Options of a `prune` command that select images and records.
#[derive(Debug, Args)]
pub struct PruneOptions {
    /// Remove images unused for this long, e.g. 7d
    #[arg(long, conflicts_with = "all")]
    pub age: Option<Age>,

    /// Remove least recently used images until the store is at most this size, e.g. 20GB
    #[arg(long, conflicts_with = "all")]
    pub size: Option<ByteSize>,

    /// Remove all images that no container uses
    #[arg(long)]
    pub all: bool,

    /// Also remove unused records of a newer version of this program, e.g. after a downgrade
    #[arg(long)]
    pub newer: bool,
}

impl PruneOptions {
    /// Returns the treatment of records of a newer version.
    pub fn newer_records(&self) -> NewerRecords {
        if self.newer { NewerRecords::Remove } else { NewerRecords::Keep }
    }

    /// Returns the policy for images: from the options, or from the settings if no option is given.
    pub fn policy(&self, store: &StoreSection) -> PrunePolicy {
        let is_given = self.age.is_some() || self.size.is_some();
        let (age, size) = match is_given {
            true => (self.age, self.size),
            false if self.all => (None, Some(ByteSize(0))),
            false => (store.keep_age, store.keep_size),
        };
        let mut policy = PrunePolicy::new(age.map(|age| age.0), size.map(|size| size.0));
        policy.newer = self.newer_records();
        policy
    }
}

/// Empties the trash, and returns the errors of files that could not be removed.
pub fn empty_all_trash(engine: &Engine) -> Result<Vec<String>, PathError> {
    let left = engine.empty_trash()?.left;
    Ok(left.iter().map(|error| chain(error)).collect())
}
