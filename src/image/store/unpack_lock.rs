//! Locks on layers: one process unpacks a layer, and the others wait for it.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use super::error::StoreError;
use super::layers::Layer;
use super::open::{Store, names, remove_file};
use crate::image::Digest;
use crate::image::pace::{Meter, Pace};
use crate::sys::fs::{PathContext as _, PathError};
use crate::sys::removal::remove_tree;
use crate::sys::trash::Trash;

/// What the names of directories begin with in which layers are unpacked.
pub const PREFIX: &str = ".tmp-";

/// A file in such a directory that is as long as what was read so far. It has no content.
const RECEIVED: &str = "received";

/// How often those who wait look.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// How often those who wait can see what was read so far.
const REPORT_INTERVAL: Duration = Duration::from_millis(250);

/// A layer as somebody wants it.
///
/// Who wants the same waits for who unpacks it. All of this comes from images, and whoever makes
/// one may name the layer of another: so the source is a part of it, and nobody waits for a server
/// other than the one that they were going to ask themselves.
#[derive(Clone, Copy, Debug)]
pub struct LayerRequest<'a> {
    pub diff_id: &'a Digest,
    /// The digest of the blob, if it is known.
    pub blob: Option<&'a Digest>,
    /// Where the blob comes from.
    pub source: &'a str,
    /// What whoever unpacks it must bring to be worth waiting for.
    pub pace: Pace,
}

impl LayerRequest<'_> {
    /// Returns the name of the directory of those who come first, or overtook others so many times.
    fn lock_name(&self, overtaken: usize) -> String {
        let blob = self.blob.map_or("", Digest::as_str);
        let key = format!("{} {blob} {} {overtaken}", self.diff_id, self.source);
        format!("{PREFIX}{}", Digest::of(key.as_bytes()).hex())
    }
}

/// A layer, or the right to unpack it.
pub enum LockedLayer {
    Present(Layer),
    Missing(UnpackLock),
}

/// A directory that a layer is unpacked in, with a lock on the directory itself: it goes where
/// the directory goes. Dropping it removes the directory.
pub struct UnpackLock {
    pub path: PathBuf,
    _dir: File,
}

impl Store {
    /// Locks a layer that is missing to unpack it; returns the layer if it is there.
    ///
    /// If somebody unpacks the same, this waits as long as they keep up the pace. After that they are
    /// overtaken: both unpack it, and who is done first wins. Of many who wait one overtakes, and the
    /// others wait for that one.
    pub(in crate::image) fn lock_layer(
        &self,
        wanted: &LayerRequest<'_>,
    ) -> Result<LockedLayer, StoreError> {
        let mut overtaken = 0;
        let mut holder = Holder::new(wanted.pace);
        loop {
            let path = self.layers_dir().join(wanted.lock_name(overtaken));
            if let Some(layer) = self.layer(wanted.diff_id)? {
                return Ok(LockedLayer::Present(layer));
            }
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                result => result.at("make", &path)?,
            }
            let Some(lock) = UnpackLock::take(&path)? else {
                if holder.is_stuck(&path) {
                    overtaken += 1;
                } else {
                    thread::sleep(POLL_INTERVAL);
                }
                continue;
            };
            // It may have been made between the look above and the lock.
            if let Some(layer) = self.layer(wanted.diff_id)? {
                return Ok(LockedLayer::Present(layer));
            }
            match lock.clear() {
                Ok(()) => return Ok(LockedLayer::Missing(lock)),
                // What cannot be removed must not be in the way for ever.
                Err(_) => lock.discard(self.trash())?,
            }
        }
    }
}

impl UnpackLock {
    /// Locks the directory. Returns none if it is gone, or another one stands there by then, or
    /// somebody else has the lock.
    pub fn take(path: &Path) -> Result<Option<Self>, PathError> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let mut options = File::options();
        let options = options.read(true).custom_flags(flags.bits().cast_signed());
        let dir = match options.open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            // Nobody of us made it, and nobody can have it.
            Err(error) if error.kind() == ErrorKind::NotADirectory => {
                return remove_tree(path).map(|()| None);
            }
            result => result.at("open", path)?,
        };
        match dir.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(PathError::new("lock", path, error)),
        }
        let ours = dir.metadata().at("read", path)?;
        match fs::symlink_metadata(path) {
            Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => {
                Ok(Some(UnpackLock { path: path.to_owned(), _dir: dir }))
            }
            Ok(_) => Ok(None),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(PathError::new("read", path, error)),
        }
    }

    /// Has those who wait see how much of a blob was read.
    pub fn watch<R>(&self, reader: R) -> Result<Watched<R>, PathError> {
        let path = self.path.join(RECEIVED);
        let file = File::create(&path).at("make", &path)?;
        Ok(Watched { reader, file, bytes: 0, reported: Instant::now() })
    }

    /// Makes the directory the layer. Returns it again if something stands there.
    pub fn finish(mut self, layer: &Path) -> Result<Option<Self>, PathError> {
        remove_file(&self.path.join(RECEIVED))?;
        match fs::rename(&self.path, layer) {
            Ok(()) => {
                self.path.clear();
                Ok(None)
            }
            Err(error) if is_in_the_way(&error) => Ok(Some(self)),
            Err(error) => Err(PathError::new("rename", &self.path, error)),
        }
    }

    /// Removes the directory, or sets aside what cannot be removed of it.
    pub fn discard(mut self, trash: &Trash) -> Result<(), PathError> {
        let path = std::mem::take(&mut self.path);
        trash.remove(&path)
    }

    /// Removes what a process left here that died.
    fn clear(&self) -> Result<(), PathError> {
        for name in names(&self.path)? {
            remove_tree(&self.path.join(name))?;
        }
        Ok(())
    }
}

/// Returns whether a directory could not be renamed since a file, or another one with content, has the name.
fn is_in_the_way(error: &io::Error) -> bool {
    let there = [ErrorKind::DirectoryNotEmpty, ErrorKind::AlreadyExists, ErrorKind::NotADirectory];
    there.contains(&error.kind())
}

impl Drop for UnpackLock {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            // What cannot be removed now is swept later.
            drop(remove_tree(&self.path));
        }
    }
}

/// A reader that shows those who wait how much was read.
pub struct Watched<R> {
    reader: R,
    file: File,
    bytes: u64,
    reported: Instant,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.bytes += count as u64;
        if self.reported.elapsed() >= REPORT_INTERVAL {
            self.reported = Instant::now();
            // Who does not see it overtakes us, which only costs time.
            drop(self.file.set_len(self.bytes));
        }
        Ok(count)
    }
}

/// Somebody who unpacks what we wait for.
struct Holder {
    meter: Meter,
    /// Which directory they have, how much they had read, and when that was.
    seen: Option<(u64, u64, Instant)>,
    pace: Pace,
}

impl Holder {
    fn new(pace: Pace) -> Self {
        Holder { meter: Meter::new(pace), seen: None, pace }
    }

    /// Looks how they get on, and returns whether it makes no sense to wait for them.
    fn is_stuck(&mut self, path: &Path) -> bool {
        let now = Instant::now();
        let Ok(dir) = fs::symlink_metadata(path) else { return false };
        let received = fs::symlink_metadata(path.join(RECEIVED)).map_or(0, |file| file.len());
        match self.seen.replace((dir.ino(), received, now)) {
            Some((ino, before, at)) if ino == dir.ino() => {
                self.meter.add(received.saturating_sub(before), now - at).is_err()
            }
            // Somebody else's turn has come.
            _ => {
                self.meter = Meter::new(self.pace);
                false
            }
        }
    }
}
