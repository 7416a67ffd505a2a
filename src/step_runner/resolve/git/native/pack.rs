//! The pack that a server sends, and the objects in it.

use std::fs::DirBuilder;
use std::io::BufRead;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use gix_hash::{Kind, ObjectId, Prefix};
use gix_object::{CommitRefIter, TagRefIter};
use gix_pack::Bundle;
use gix_pack::bundle::write::Options;
use gix_pack::cache::Never;
use gix_utils::progress::Discard;
use gix_zlib::Inflate;

use super::failure::{Failure, malformed};
use super::transfer::Transfer;
use crate::sys::fs::PathContext as _;
use crate::sys::removal::remove_tree;

/// Size limit of one object in memory, which may be much smaller in the pack.
const MAX_OBJECT_BYTES: usize = 256 << 20;

/// How many annotated tags may lead to a commit.
const MAX_TAGS: usize = 16;

/// The objects of a pack.
pub(super) struct Pack {
    /// None of a pack without objects.
    bundle: Option<Bundle>,
    inflate: Inflate,
}

/// Kind and content of an object.
type Object<'a> = (gix_object::Kind, &'a [u8]);

impl Pack {
    /// Writes a pack to a directory, which is made anew, if none of its objects is larger than a limit. All
    /// objects are hashed: each is what its name says.
    pub(super) fn receive(
        input: &mut dyn BufRead,
        dir: &Path,
        hash: Kind,
        transfer: &Transfer,
        max_bytes: u64,
    ) -> Result<Self, Failure> {
        // Left by a crash, or from a pack before.
        remove_tree(dir)?;
        DirBuilder::new().mode(0o700).create(dir).at("make", dir)?;
        let limit = usize::try_from(max_bytes).unwrap_or(usize::MAX).min(MAX_OBJECT_BYTES);
        let options =
            Options { thread_limit: Some(1), alloc_limit_bytes: Some(limit), ..Options::default() };
        let written = Bundle::write_to_directory(
            input,
            Some(dir),
            &mut Discard,
            transfer.flag(),
            None::<gix_object::find::Never>,
            hash,
            options,
        );
        let written = written.map_err(|error| transfer.failure(error))?;
        let mut bundle = written.to_bundle().transpose().map_err(malformed)?;
        if let Some(bundle) = &mut bundle {
            bundle.pack.alloc_limit_bytes = Some(limit);
        }
        Ok(Pack { bundle, inflate: Inflate::default() })
    }

    /// Reads an object into a buffer, if it is there.
    pub(super) fn object<'b>(
        &mut self,
        id: &ObjectId,
        buffer: &'b mut Vec<u8>,
    ) -> Result<Option<Object<'b>>, Failure> {
        let Some(bundle) = &self.bundle else { return Ok(None) };
        let found = bundle.find(id, buffer, &mut self.inflate, &mut Never).map_err(malformed)?;
        Ok(found.map(|(object, _)| (object.kind, object.data)))
    }

    /// Returns the commit that an object is, or an annotated tag names, and its tree.
    pub(super) fn commit(
        &mut self,
        id: &ObjectId,
    ) -> Result<Option<(ObjectId, ObjectId)>, Failure> {
        let (mut id, mut buffer) = (*id, Vec::new());
        for _ in 0..MAX_TAGS {
            let hash = id.kind();
            match self.object(&id, &mut buffer)? {
                Some((gix_object::Kind::Commit, data)) => {
                    let tree =
                        CommitRefIter::from_bytes(data, hash).tree_id().map_err(malformed)?;
                    return Ok(Some((id, tree)));
                }
                Some((gix_object::Kind::Tag, data)) => {
                    id = TagRefIter::from_bytes(data, hash).target_id().map_err(malformed)?;
                }
                _ => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Returns the commit whose name begins with these digits, if there is one and no other.
    pub(super) fn abbreviated(&mut self, digits: &str) -> Result<Option<ObjectId>, Failure> {
        let (Some(bundle), Ok(prefix)) = (&self.bundle, Prefix::from_hex(digits)) else {
            return Ok(None);
        };
        let mut candidates = 0..0;
        bundle.index.lookup_prefix(prefix, Some(&mut candidates));
        let ids: Vec<_> =
            candidates.map(|index| bundle.index.oid_at_index(index).to_owned()).collect();
        let (mut found, mut buffer) = (None, Vec::new());
        for id in ids {
            let object = self.object(&id, &mut buffer)?;
            if matches!(object, Some((gix_object::Kind::Commit, _))) && found.replace(id).is_some()
            {
                return Ok(None);
            }
        }
        Ok(found)
    }
}
