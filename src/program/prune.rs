//! What `prune` commands of the programs have in common: the images, and what an earlier call could not remove.

use clap::Args;

use super::sections::Store;
use crate::container::Engine;
use crate::image::PrunePolicy;
use crate::sys::error::chain;
use crate::sys::fs::PathError;
use crate::sys::quantity::{Age, Size};
use crate::sys::record::NewerRecords;

/// Which images and records a `prune` command removes.
#[derive(Debug, Args)]
pub struct PruneOptions {
    /// Remove images unused for this long, e.g. 7d
    #[arg(long, conflicts_with = "all")]
    pub age: Option<Age>,

    /// Remove least recently used images until the store is at most this size, e.g. 20GB
    #[arg(long, conflicts_with = "all")]
    pub size: Option<Size>,

    /// Remove all images that no container uses
    #[arg(long)]
    pub all: bool,

    /// Also remove records of a newer version of this program, unless in use: after a roll-back
    #[arg(long)]
    pub newer: bool,
}

impl PruneOptions {
    /// Returns whether records of a newer version are removed.
    pub fn newer(&self) -> NewerRecords {
        if self.newer { NewerRecords::Remove } else { NewerRecords::Keep }
    }

    /// Returns which images are removed; the settings decide if no option does.
    pub fn policy(&self, store: &Store) -> PrunePolicy {
        let is_given = self.age.is_some() || self.size.is_some();
        let (age, size) = match is_given {
            true => (self.age, self.size),
            false if self.all => (None, Some(Size(0))),
            false => (store.keep_age, store.keep_size),
        };
        let mut policy = PrunePolicy::new(age.map(|age| age.0), size.map(|size| size.0));
        policy.newer = self.newer();
        policy
    }
}

/// Tries again to remove what was set aside, and returns why it could not be removed.
pub fn still_set_aside(engine: &Engine) -> Result<Vec<String>, PathError> {
    let left = engine.empty_trash()?.left;
    Ok(left.iter().map(|error| chain(error)).collect())
}
