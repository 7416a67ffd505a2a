//! Writes the files of a commit. Names, links and sizes in it are not trusted.

use std::ffi::CString;
use std::fs::{self, DirBuilder, File};
use std::io::{BufRead, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use gix_hash::{Kind, ObjectId, Prefix};
use gix_object::bstr::BStr;
use gix_object::tree::EntryKind;
use gix_object::{CommitRefIter, TagRefIter, TreeRefIter};
use gix_pack::Bundle;
use gix_pack::bundle::write::Options as PackOptions;
use gix_pack::cache::Never;
use gix_utils::progress::Discard;
use gix_validate::path::component::{Mode as NameMode, Options as NameOptions};
use gix_zlib::Inflate;
use oci_hooks_files::fs::PathContext as _;
use oci_hooks_host::removal::remove_tree;
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat, symlinkat};

use super::transfer::{GitTransfer, TransferError, malformed_error};

/// Limits of all files of a commit: a few objects can stand for any number of files.
const MAX_FILES: u64 = 1_000_000;
const MAX_TOTAL_BYTES: u64 = 8 << 30;
const MAX_DEPTH: usize = 256;

/// Size limit of the target of a link, which is the kernel's.
const MAX_LINK_BYTES: usize = 4095;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Creates a new file, even if a name occurs twice in a tree, and follows no link.
const NEW_FILE: OFlags = OFlags::WRONLY
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Writes a tree to a scratch directory, and renames it to the target when it is complete.
pub fn check_out(
    pack: &mut Pack,
    root: ObjectId,
    scratch: &Path,
    target: &Path,
    transfer: &GitTransfer,
) -> Result<(), TransferError> {
    // Left by a crash.
    remove_tree(scratch)?;
    DirBuilder::new().mode(0o700).create(scratch).with_path("make", scratch)?;
    let mut checkout = Checkout { pack, scratch, transfer, files: 0, bytes: 0 };
    let written = checkout.write_all(root);
    if written.is_err() {
        // The first error is reported.
        let _ = remove_tree(scratch);
    }
    written?;
    Ok(fs::rename(scratch, target).with_path("rename", scratch)?)
}

struct Checkout<'a> {
    pack: &'a mut Pack,
    scratch: &'a Path,
    transfer: &'a GitTransfer,
    files: u64,
    bytes: u64,
}

/// An open directory with its remaining entries, the first entry last.
struct CheckoutLevel {
    dir: OwnedFd,
    path: PathBuf,
    entries: Vec<CheckoutEntry>,
}

struct CheckoutEntry {
    name: CString,
    kind: EntryKind,
    id: ObjectId,
}

impl Checkout<'_> {
    fn write_all(&mut self, root: ObjectId) -> Result<(), TransferError> {
        let dir =
            openat(CWD, self.scratch, DIRECTORY, Mode::empty()).with_path("open", self.scratch)?;
        let entries = self.entries(&root)?;
        let mut levels = vec![CheckoutLevel { dir, path: self.scratch.to_owned(), entries }];
        while let Some(level) = levels.last_mut() {
            let Some(entry) = level.entries.pop() else {
                levels.pop();
                continue;
            };
            self.transfer.check()?;
            let path = level.path.join(name(&entry));
            match entry.kind {
                // The directory of a submodule stays empty.
                EntryKind::Commit => {
                    mkdirat(&level.dir, &entry.name, Mode::from(0o777)).with_path("make", &path)?;
                }
                EntryKind::Tree => {
                    mkdirat(&level.dir, &entry.name, Mode::from(0o777)).with_path("make", &path)?;
                    let dir = openat(&level.dir, &entry.name, DIRECTORY, Mode::empty());
                    let (dir, entries) = (dir.with_path("open", &path)?, self.entries(&entry.id)?);
                    levels.push(CheckoutLevel { dir, path, entries });
                    if levels.len() > MAX_DEPTH {
                        return Err(limit_error(MAX_DEPTH as u64, "nested directories"));
                    }
                }
                EntryKind::Blob | EntryKind::BlobExecutable | EntryKind::Link => {
                    self.write(&level.dir, &entry, &path)?;
                }
            }
        }
        Ok(())
    }

    fn write(
        &mut self,
        dir: &OwnedFd,
        entry: &CheckoutEntry,
        path: &Path,
    ) -> Result<(), TransferError> {
        let mut buffer = Vec::new();
        let content = match self.pack.object(&entry.id, &mut buffer)? {
            Some((gix_object::Kind::Blob, content)) => content,
            _ => return Err(missing(&entry.id)),
        };
        self.bytes = self.bytes.saturating_add(content.len() as u64);
        if self.bytes > MAX_TOTAL_BYTES {
            return Err(limit_error(MAX_TOTAL_BYTES, "bytes of files"));
        }
        if entry.kind == EntryKind::Link {
            if content.len() > MAX_LINK_BYTES {
                return Err(limit_error(MAX_LINK_BYTES as u64, "bytes in a link"));
            }
            let target = CString::new(content).map_err(malformed_error)?;
            symlinkat(&target, dir, &entry.name).with_path("make the link", path)?;
            return Ok(());
        }
        let mode = if entry.kind == EntryKind::Blob { 0o666 } else { 0o777 };
        let file =
            openat(dir.as_fd(), &entry.name, NEW_FILE, Mode::from(mode)).with_path("make", path)?;
        Ok(File::from(file).write_all(content).with_path("write", path)?)
    }

    /// Returns the entries of a tree, the first entry last.
    fn entries(&mut self, id: &ObjectId) -> Result<Vec<CheckoutEntry>, TransferError> {
        let mut buffer = Vec::new();
        let data = match self.pack.object(id, &mut buffer)? {
            Some((gix_object::Kind::Tree, data)) => data,
            _ => return Err(missing(id)),
        };
        let mut entries = Vec::new();
        for entry in TreeRefIter::from_bytes(data, id.kind()) {
            let entry = entry.map_err(malformed_error)?;
            self.files += 1;
            if self.files > MAX_FILES {
                return Err(limit_error(MAX_FILES, "files"));
            }
            let kind = entry.mode.kind();
            entries.push(CheckoutEntry {
                name: checked(entry.filename, kind)?,
                kind,
                id: entry.oid.to_owned(),
            });
        }
        entries.reverse();
        Ok(entries)
    }
}

/// Returns the name of an entry, checked: no path, and no file of git.
fn checked(name: &BStr, kind: EntryKind) -> Result<CString, TransferError> {
    let options = NameOptions { protect_windows: false, protect_hfs: true, protect_ntfs: true };
    let mode = (kind == EntryKind::Link).then_some(NameMode::Symlink);
    let wrong = |reason: &dyn ToString| {
        malformed_error(format!("invalid file name {name:?}: {}", reason.to_string()))
    };
    gix_validate::path::component(name, mode, options).map_err(|error| wrong(&error))?;
    CString::new(name.to_vec()).map_err(|error| wrong(&error))
}

fn name(entry: &CheckoutEntry) -> PathBuf {
    use std::os::unix::ffi::OsStrExt as _;
    PathBuf::from(std::ffi::OsStr::from_bytes(entry.name.as_bytes()))
}

fn missing(id: &ObjectId) -> TransferError {
    TransferError::Message(format!("the server sends no object {id}"))
}

fn limit_error(limit: u64, what: &str) -> TransferError {
    TransferError::Message(format!("the commit has more than {limit} {what}"))
}

/// Size limit of one object in memory, which may be much smaller in the pack.
const MAX_OBJECT_BYTES: usize = 256 << 20;

/// Maximum number of nested annotated tags.
const MAX_TAGS: usize = 16;

/// The objects of a pack.
pub struct Pack {
    /// `None` for a pack without objects.
    bundle: Option<Bundle>,
    inflate: Inflate,
}

/// Kind and content of an object.
type GitObject<'a> = (gix_object::Kind, &'a [u8]);

impl Pack {
    /// Writes a pack to a directory, which is created anew. Fails if an object is larger than `max_bytes`.
    /// All objects are hashed to verify their ids.
    pub fn receive(
        input: &mut dyn BufRead,
        dir: &Path,
        hash: Kind,
        transfer: &GitTransfer,
        max_bytes: u64,
    ) -> Result<Self, TransferError> {
        // Left by a crash, or from an earlier pack.
        remove_tree(dir)?;
        DirBuilder::new().mode(0o700).create(dir).with_path("make", dir)?;
        let limit = usize::try_from(max_bytes).unwrap_or(usize::MAX).min(MAX_OBJECT_BYTES);
        let options = PackOptions {
            thread_limit: Some(1),
            alloc_limit_bytes: Some(limit),
            ..PackOptions::default()
        };
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
        let mut bundle = written.to_bundle().transpose().map_err(malformed_error)?;
        if let Some(bundle) = &mut bundle {
            bundle.pack.alloc_limit_bytes = Some(limit);
        }
        Ok(Pack { bundle, inflate: Inflate::default() })
    }

    /// Reads an object into a buffer, if it exists.
    fn object<'b>(
        &mut self,
        id: &ObjectId,
        buffer: &'b mut Vec<u8>,
    ) -> Result<Option<GitObject<'b>>, TransferError> {
        let Some(bundle) = &self.bundle else { return Ok(None) };
        let found =
            bundle.find(id, buffer, &mut self.inflate, &mut Never).map_err(malformed_error)?;
        Ok(found.map(|(object, _)| (object.kind, object.data)))
    }

    /// Returns the commit that an id or an annotated tag names, and its tree.
    pub fn commit(&mut self, id: &ObjectId) -> Result<Option<(ObjectId, ObjectId)>, TransferError> {
        let (mut id, mut buffer) = (*id, Vec::new());
        for _ in 0..MAX_TAGS {
            let hash = id.kind();
            match self.object(&id, &mut buffer)? {
                Some((gix_object::Kind::Commit, data)) => {
                    let tree =
                        CommitRefIter::from_bytes(data, hash).tree_id().map_err(malformed_error)?;
                    return Ok(Some((id, tree)));
                }
                Some((gix_object::Kind::Tag, data)) => {
                    id = TagRefIter::from_bytes(data, hash).target_id().map_err(malformed_error)?;
                }
                _ => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Returns the commit whose id begins with these digits, if exactly one does.
    pub fn find_abbreviated(&mut self, digits: &str) -> Result<Option<ObjectId>, TransferError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_names_cannot_be_paths_or_git_directories() {
        let check = |name: &str, kind| checked(name.into(), kind).is_ok();
        for name in ["a", "..a", "a b", ".gitignore", ".gitmodules", "é", "a\\b", "con", "-x"] {
            assert!(check(name, EntryKind::Blob), "{name}");
        }
        for name in ["", ".", "..", "a/b", "/", ".git", ".GIT", "git~1", ".git ", "a\0b"] {
            assert!(!check(name, EntryKind::Blob), "{name:?}");
            assert!(!check(name, EntryKind::Tree), "{name:?}");
        }
        assert!(!check(".gitmodules", EntryKind::Link));
        assert!(!check(".g\u{200c}it", EntryKind::Tree));
    }
}
