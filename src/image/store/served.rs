//! Who gave which blob to whom: a layer that is in the store is not for everybody.
//!
//! Whoever makes an image writes its configuration, and can name the layers of others there. So a
//! layer of the store only becomes part of an image if a blob that the image names has been found
//! to hold the layer, and its registry gives that blob to who wants the image. A record says that
//! it was so once: for anybody, or for one login. Who shows another login has the registry asked.
//!
//! A registry's word counts only if it has sent the blob before, in whatever repository: another
//! one might say yes to everything, to be given what it does not have.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::StoreError;
use super::open::{Store, names, read_record, write_record};
use crate::image::Digest;
use crate::image::credentials::Login;
use crate::sys::fs::PathContext as _;
use crate::sys::removal::remove_tree;

/// The directory of records in that of a layer.
const DIR: &str = "served";

/// The most records of a layer. Logins that are made for one job would fill the disk; without a
/// record a registry is asked again, which takes a moment.
const MAX_RECORDS: usize = 64;

/// A blob that was found to hold the layer, and who gave it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    blob: Digest,
    registry: String,
    repository: String,
    /// The fingerprint of the login that it was given to; none if anybody may have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    access: Option<String>,
}

/// A blob, where it is asked for, and the login that has to be shown there.
#[derive(Clone, Copy, Debug)]
pub struct Served<'a> {
    pub blob: &'a Digest,
    pub registry: &'a str,
    pub repository: &'a str,
    pub login: Option<&'a Login>,
}

/// What is known of a layer and a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The blob holds the layer, and is given to this login in this repository.
    Given,
    /// The blob holds the layer, and the registry can be asked who may have it.
    Askable,
    /// Nothing that counts: the blob has to be fetched.
    Unknown,
}

impl Record {
    fn is_given(&self, served: &Served<'_>) -> bool {
        let may_have = |print: &String| served.login.is_some_and(|it| it.has_fingerprint(print));
        self.repository == served.repository && self.access.as_ref().is_none_or(may_have)
    }
}

impl Store {
    /// Returns what is known of a layer that is there.
    pub(in crate::image) fn standing(
        &self,
        diff_id: &Digest,
        served: &Served<'_>,
    ) -> Result<Standing, StoreError> {
        let dir = self.layer_dir(diff_id).join(DIR);
        let mut standing = Standing::Unknown;
        for name in records(&dir)? {
            // What cannot be read proves nothing.
            let Ok(Some(record)) = read_record::<Record>(&dir.join(name)) else { continue };
            if record.blob != *served.blob || record.registry != served.registry {
                continue;
            }
            if record.is_given(served) {
                return Ok(Standing::Given);
            }
            standing = Standing::Askable;
        }
        Ok(standing)
    }

    /// Notes that a blob, which holds a layer that is there, was given to a login.
    pub(in crate::image) fn note_served(
        &self,
        diff_id: &Digest,
        served: &Served<'_>,
    ) -> Result<(), StoreError> {
        note(&self.layer_dir(diff_id), served)
    }
}

/// Notes in the directory of a layer that a blob which holds it was given to a login.
pub fn note(layer: &Path, served: &Served<'_>) -> Result<(), StoreError> {
    let record = Record {
        blob: served.blob.clone(),
        registry: served.registry.to_owned(),
        repository: served.repository.to_owned(),
        access: served.login.map(Login::fingerprint),
    };
    let dir = layer.join(DIR);
    if fs::symlink_metadata(&dir).is_ok_and(|found| !found.is_dir()) {
        remove_tree(&dir)?;
    }
    DirBuilder::new().recursive(true).mode(0o700).create(&dir).at("make", &dir)?;
    make_room(&dir)?;
    // Processes that note the same for anybody write the same file.
    let access = record.access.as_deref().unwrap_or("");
    let key = format!("{} {} {} {access}", record.blob, record.registry, record.repository);
    write_record(&dir.join(format!("{}.json", Digest::of(key.as_bytes()).hex())), &record)
}

/// Removes the oldest records, until there may be one more.
fn make_room(dir: &Path) -> Result<(), StoreError> {
    let names = records(dir)?;
    if names.len() < MAX_RECORDS {
        return Ok(());
    }
    let written =
        |name: &String| fs::metadata(dir.join(name)).and_then(|data| data.modified()).ok();
    let mut aged: Vec<_> = names.iter().map(|name| (written(name), name)).collect();
    aged.sort();
    for (_, name) in aged.iter().take(names.len() + 1 - MAX_RECORDS) {
        remove_tree(&dir.join(name))?;
    }
    Ok(())
}

/// Returns the names of the records in a directory that may be missing: imported layers have none.
fn records(dir: &Path) -> Result<Vec<String>, StoreError> {
    let mut names = match names(dir) {
        Err(error)
            if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.source.kind()) =>
        {
            return Ok(Vec::new());
        }
        names => names?,
    };
    names.retain(|name| name.ends_with(".json") && !name.starts_with('.'));
    Ok(names)
}
