//! Locks on layers: one process unpacks a layer, and others wait for it.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use oci_hooks_files::fs::{PathContext as _, PathError, create_if_missing, remove_if_there};
use oci_hooks_host::removal::remove_tree;
use oci_hooks_host::trash::Trash;
use rustix::fs::OFlags;

use super::error::StoreError;
use super::layers::Layer;
use super::open::{ImageStore, names};
use crate::Digest;
use crate::min_rate::{MinRate, RateMeter};

/// Prefix of the directories in which layers are unpacked.
pub const PREFIX: &str = ".tmp-";

/// Sparse file in the directory of a layer that is being unpacked. Its length is the number of
/// bytes read so far.
const RECEIVED: &str = "received";

/// Interval at which waiting processes check the lock.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Interval at which the number of bytes read is published.
const REPORT_INTERVAL: Duration = Duration::from_millis(250);

/// Request for a layer.
///
/// Processes with the same request wait for each other. An image can name the layers of other
/// images, so the source is part of the request: a process waits only for a server that it would
/// ask itself.
#[derive(Clone, Copy, Debug)]
pub struct LayerRequest<'a> {
    pub diff_id: &'a Digest,
    /// The digest of the blob, if it is known.
    pub blob: Option<&'a Digest>,
    /// Registry and repository of the blob, if any.
    pub source: &'a str,
    /// Minimum rate of another process to be worth waiting for.
    pub min_rate: MinRate,
}

impl LayerRequest<'_> {
    /// Returns the name of the directory to lock after overtaking this many processes.
    fn lock_name(&self, overtaken: usize) -> String {
        let blob = self.blob.map_or("", Digest::as_str);
        let key = format!("{} {blob} {} {overtaken}", self.diff_id, self.source);
        format!("{PREFIX}{}", Digest::of(key.as_bytes()).hex())
    }
}

/// Stored layer, or the lock to unpack a missing one.
pub enum LockedLayer {
    Present(Layer),
    Missing(UnpackLock),
}

/// Directory in which a layer is unpacked, with a lock that stays on the directory when it is
/// renamed. Dropping it removes the directory.
pub struct UnpackLock {
    pub path: PathBuf,
    _dir: File,
}

impl ImageStore {
    /// Returns a stored layer, or locks a missing one to unpack it.
    ///
    /// If another process unpacks the same layer, this waits as long as that one is not slower
    /// than the minimum rate. A slower one is overtaken: both unpack the layer, and the first to
    /// finish wins. Of several waiting processes, one overtakes and the others wait for it.
    pub(crate) fn lock_layer(&self, wanted: &LayerRequest<'_>) -> Result<LockedLayer, StoreError> {
        let mut overtaken = 0;
        let mut holder = LockHolder::new(wanted.min_rate);
        loop {
            let path = self.layers_dir().join(wanted.lock_name(overtaken));
            if let Some(layer) = self.layer(wanted.diff_id)? {
                return Ok(LockedLayer::Present(layer));
            }
            create_if_missing(&path, 0o700)?;
            let Some(lock) = UnpackLock::take(&path)? else {
                if holder.is_stuck(&path) {
                    overtaken += 1;
                } else {
                    thread::sleep(POLL_INTERVAL);
                }
                continue;
            };
            // The layer may have been published before the lock was taken.
            if let Some(layer) = self.layer(wanted.diff_id)? {
                return Ok(LockedLayer::Present(layer));
            }
            match lock.clear() {
                Ok(()) => return Ok(LockedLayer::Missing(lock)),
                // Leftovers that cannot be removed must not block the layer forever.
                Err(_) => lock.discard(self.trash())?,
            }
        }
    }
}

impl UnpackLock {
    /// Locks the directory. Returns `None` if it is gone, was replaced, or is locked by another
    /// process.
    pub fn take(path: &Path) -> Result<Option<Self>, PathError> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let mut options = File::options();
        let options = options.read(true).custom_flags(flags.bits().cast_signed());
        let dir = match options.open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            // A file is not ours, and is no lock.
            Err(error) if error.kind() == ErrorKind::NotADirectory => {
                return remove_tree(path).map(|()| None);
            }
            result => result.with_path("open", path)?,
        };
        match dir.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(PathError::new("lock", path, error)),
        }
        let ours = dir.metadata().with_path("read", path)?;
        match fs::symlink_metadata(path) {
            Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => {
                Ok(Some(UnpackLock { path: path.to_owned(), _dir: dir }))
            }
            Ok(_) => Ok(None),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(PathError::new("read", path, error)),
        }
    }

    /// Publishes the number of bytes read to waiting processes.
    pub fn watch<R>(&self, reader: R) -> Result<WatchedReader<R>, PathError> {
        let path = self.path.join(RECEIVED);
        let file = File::create(&path).with_path("create", &path)?;
        Ok(WatchedReader { reader, file, bytes: 0, reported: Instant::now() })
    }

    /// Renames the directory to the layer. Returns the lock if the name is taken.
    pub fn publish(mut self, layer: &Path) -> Result<Option<Self>, PathError> {
        remove_if_there(&self.path.join(RECEIVED))?;
        match fs::rename(&self.path, layer) {
            Ok(()) => {
                self.path.clear();
                Ok(None)
            }
            Err(error) if is_in_the_way(&error) => Ok(Some(self)),
            Err(error) => Err(PathError::new("rename", &self.path, error)),
        }
    }

    /// Removes the directory, or moves it to the trash if that fails.
    pub fn discard(mut self, trash: &Trash) -> Result<(), PathError> {
        let path = std::mem::take(&mut self.path);
        trash.remove(&path)
    }

    /// Removes leftovers of a process that died.
    fn clear(&self) -> Result<(), PathError> {
        for name in names(&self.path)? {
            remove_tree(&self.path.join(name))?;
        }
        Ok(())
    }
}

/// Returns whether a directory could not be renamed because a file or a non-empty directory has the
/// name.
fn is_in_the_way(error: &io::Error) -> bool {
    let there = [ErrorKind::DirectoryNotEmpty, ErrorKind::AlreadyExists, ErrorKind::NotADirectory];
    there.contains(&error.kind())
}

impl Drop for UnpackLock {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            // Leftovers are swept later.
            drop(remove_tree(&self.path));
        }
    }
}

/// Reader that publishes the number of bytes read.
pub struct WatchedReader<R> {
    reader: R,
    file: File,
    bytes: u64,
    reported: Instant,
}

impl<R: Read> Read for WatchedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.bytes += count as u64;
        if self.reported.elapsed() >= REPORT_INTERVAL {
            self.reported = Instant::now();
            // A process that misses the update overtakes this one, which only costs time.
            drop(self.file.set_len(self.bytes));
        }
        Ok(count)
    }
}

/// Process that unpacks the requested layer.
struct LockHolder {
    meter: RateMeter,
    /// The last check: inode of the process's directory, bytes read so far, and time of the check.
    seen: Option<(u64, u64, Instant)>,
    min_rate: MinRate,
}

impl LockHolder {
    fn new(min_rate: MinRate) -> Self {
        LockHolder { meter: RateMeter::new(min_rate), seen: None, min_rate }
    }

    /// Checks the holder's progress, and returns whether waiting is pointless.
    fn is_stuck(&mut self, path: &Path) -> bool {
        let now = Instant::now();
        let Ok(dir) = fs::symlink_metadata(path) else { return false };
        let received = fs::symlink_metadata(path.join(RECEIVED)).map_or(0, |file| file.len());
        match self.seen.replace((dir.ino(), received, now)) {
            Some((ino, before, at)) if ino == dir.ino() => {
                self.meter.add(received.saturating_sub(before), now - at).is_err()
            }
            // Another process has the lock now.
            _ => {
                self.meter = RateMeter::new(self.min_rate);
                false
            }
        }
    }
}
