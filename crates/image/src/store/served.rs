//! Records of served blobs: a stored layer is not for every user.
//!
//! The author of an image writes its configuration, and can name the layers of other images there.
//! So a stored layer only becomes part of an image if a blob of the image has been found to contain
//! the layer, and the registry serves that blob to the user who pulls. A record says that the
//! registry did so, publicly or for one login. For other logins the registry is asked.
//!
//! A registry's answer counts only if it has sent the blob before, in any repository: a malicious
//! registry could confirm every blob to obtain layers that it does not have.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use oci_hooks_files::fs::make_private;
use oci_hooks_host::removal::remove_tree;
use serde::{Deserialize, Serialize};

use super::error::StoreError;
use super::open::{ImageStore, names, read_record, write_record};
use crate::Digest;
use crate::credentials::LoginMethod;

/// Directory of records in a layer's directory.
const DIR: &str = "served";

/// Limit of records for a layer. Logins that are made for one job would fill the disk; without a
/// record the registry is asked again, which takes a moment.
const MAX_RECORDS: usize = 64;

/// Blob that was found to contain the layer, and the repository that served it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ServedRecord {
    blob: Digest,
    registry: String,
    repository: String,
    /// Fingerprint of the login that it was served to; `None` if the blob is public.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    access: Option<String>,
}

/// Blob, its repository, and the login that is required there.
#[derive(Clone, Copy, Debug)]
pub struct ServedBlob<'a> {
    pub blob: &'a Digest,
    pub registry: &'a str,
    pub repository: &'a str,
    pub login: Option<&'a LoginMethod>,
}

/// Evidence that a layer may be used with a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerAccess {
    /// The blob contains the layer, and is served to this login in this repository.
    Granted,
    /// The blob contains the layer, and the registry can be asked about this login.
    MustAsk,
    /// No evidence: the blob has to be fetched.
    Unproven,
}

impl ServedRecord {
    fn grants_access(&self, served: &ServedBlob<'_>) -> bool {
        let may_have = |print: &String| served.login.is_some_and(|it| it.has_fingerprint(print));
        self.repository == served.repository && self.access.as_ref().is_none_or(may_have)
    }
}

impl ImageStore {
    /// Returns the access of a stored layer.
    pub(crate) fn layer_access(
        &self,
        diff_id: &Digest,
        served: &ServedBlob<'_>,
    ) -> Result<LayerAccess, StoreError> {
        let dir = self.layer_dir(diff_id).join(DIR);
        let mut access = LayerAccess::Unproven;
        for name in records(&dir)? {
            // An unreadable record proves nothing.
            let Ok(Some(record)) = read_record::<ServedRecord>(&dir.join(name)) else { continue };
            if record.blob != *served.blob || record.registry != served.registry {
                continue;
            }
            if record.grants_access(served) {
                return Ok(LayerAccess::Granted);
            }
            access = LayerAccess::MustAsk;
        }
        Ok(access)
    }

    /// Records that a blob with a stored layer was served to a login.
    pub(crate) fn note_served(
        &self,
        diff_id: &Digest,
        served: &ServedBlob<'_>,
    ) -> Result<(), StoreError> {
        note(&self.layer_dir(diff_id), served)
    }
}

/// Records in a layer's directory that a blob with the layer was served to a login.
pub fn note(layer: &Path, served: &ServedBlob<'_>) -> Result<(), StoreError> {
    let record = ServedRecord {
        blob: served.blob.clone(),
        registry: served.registry.to_owned(),
        repository: served.repository.to_owned(),
        access: served.login.map(LoginMethod::fingerprint),
    };
    let dir = layer.join(DIR);
    if fs::symlink_metadata(&dir).is_ok_and(|found| !found.is_dir()) {
        remove_tree(&dir)?;
    }
    make_private(&dir)?;
    make_room(&dir)?;
    // Processes that record the same public blob write the same file.
    let access = record.access.as_deref().unwrap_or("");
    let key = format!("{} {} {} {access}", record.blob, record.registry, record.repository);
    write_record(&dir.join(format!("{}.json", Digest::of(key.as_bytes()).hex())), &record)
}

/// Removes the oldest records to make room for one more.
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
