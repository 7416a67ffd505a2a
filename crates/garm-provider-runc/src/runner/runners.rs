//! Cache of downloaded runners, each a layer.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use oci_hooks_engine::container::Engine;
use oci_hooks_files::error::has_timed_out;
use oci_hooks_files::fs::{
    PathContext as _, make_private, names_in, random_u64, read_if_there, replace_unsynced,
};
use oci_hooks_files::lock::FileLock;
use oci_hooks_files::record::{decode, encode};
use oci_hooks_host::removal::remove_tree;
use oci_hooks_host::trash::Trash;
use oci_hooks_image::{Digest, LayerLimits, MinRate};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, syncfs, utimensat};
use serde::{Deserialize, Serialize};

use super::choose::{forge_of, name_of};
use super::download::RunnerDownload;
use super::error::RunnerError;
use super::locate::LocatedRunner;
use super::unpack::{HOME, RunnerUnpacking, names};
use crate::boot::Forge;
use crate::bootstrap::RunnerArchive;
use crate::http::{HttpClient, HttpRetry, shorten_url};

/// File name of a runner's record, beside its layer. The file's modification time is the time of the runner's last use.
const RECORD: &str = "runner.json";

/// Size limit of a runner's record.
const MAX_RECORD_BYTES: u64 = 64 << 10;

const TREE: &str = "tree";
const LOCKS: &str = "locks";
/// Name prefix of directories that are being created.
const UNFINISHED: &str = ".new-";

/// Name prefix of directories that are being removed.
const GONE: &str = ".gone-";

/// Limits and retries of downloads.
#[derive(Clone, Copy, Debug)]
pub struct RunnerDownloadOptions {
    /// Size limit of an archive.
    pub archive_bytes: u64,
    /// Limits of the unpacked files.
    pub limits: LayerLimits,
    pub retry: HttpRetry,
    pub timeout: Duration,
    pub pace: MinRate,
    /// Maximum wait for another call that downloads the same runner; after that, this call
    /// downloads it too.
    pub overtake_after: Duration,
}

/// Cache of downloaded runners, each a layer.
#[derive(Clone, Debug)]
pub struct RunnerCache {
    dir: PathBuf,
    options: RunnerDownloadOptions,
    trash: Trash,
}

/// A runner as a layer on top of an image's layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnerLayer {
    /// Directory of the layer on the host.
    pub path: PathBuf,
    /// Runner, with its paths in an instance.
    pub runner: LocatedRunner,
    /// Key in the cache, for `in_use` of [`RunnerCache::prune`].
    pub key: String,
}

/// Result of pruning the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrunedRunners {
    pub count: usize,
    /// Approximate size of the removed files.
    pub freed_bytes: u64,
}

/// Content of a runner's record. Name and URL are for admins.
#[derive(Debug, Serialize, Deserialize)]
struct RunnerRecord {
    name: String,
    url: String,
    forge: Forge,
    size_bytes: u64,
}

impl Default for RunnerDownloadOptions {
    fn default() -> Self {
        RunnerDownloadOptions {
            archive_bytes: 2 << 30,
            limits: LayerLimits { bytes: 8 << 30, entries: 500_000, ..LayerLimits::default() },
            retry: HttpRetry { attempts: 5, pause: Duration::from_secs(2) },
            timeout: Duration::from_secs(600),
            pace: MinRate::default(),
            overtake_after: Duration::from_secs(60),
        }
    }
}

impl RunnerCache {
    /// Returns the cache in a directory, which is created on first use.
    ///
    /// Files that cannot be removed are moved to the trash.
    pub fn new(dir: PathBuf, options: RunnerDownloadOptions, trash: Trash) -> Self {
        RunnerCache { dir, options, trash }
    }

    /// Returns the cache in the image store of an engine.
    pub fn of(engine: &Engine) -> Self {
        let store = &engine.store;
        let dir = store.options().root.join("runners");
        RunnerCache::new(dir, RunnerDownloadOptions::default(), store.trash().clone())
    }

    /// Returns the layer with a runner whose files belong to `owner`, and downloads the runner if it is not cached.
    /// Among concurrent calls for a runner, one downloads and the others wait; after a timeout, they download too.
    pub fn prepare(
        &self,
        tool: &RunnerArchive,
        owner: (u32, u32),
        http: &HttpClient,
    ) -> Result<RunnerLayer, RunnerError> {
        let expected = digest_of(tool)?;
        let key = key(tool, expected.as_ref(), owner);
        make_private(&self.dir.join(LOCKS))?;
        let mut overtaken = 0;
        loop {
            let name = match overtaken {
                0 => key.clone(),
                _ => format!("{key}.{overtaken}"),
            };
            let lock = FileLock::acquire_exclusive(&self.lock(&name), self.options.overtake_after);
            // While this call holds the lock, an existing layer is not removed.
            if let Some(layer) = self.use_cached(&key)? {
                return Ok(layer);
            }
            let _alone = match lock {
                Err(error) if has_timed_out(&error) => {
                    overtaken += 1;
                    continue;
                }
                lock => lock?,
            };
            let new = self.dir.join(format!("{UNFINISHED}{name}"));
            // The directory may be left over from a killed process.
            self.trash.remove(&new)?;
            let made = self.make(&new, tool, owner, || {
                RunnerDownload::new(tool, expected.as_ref(), http, &self.options)
            });
            if let Err(error) = made.and_then(|()| self.keep(&new, &key)) {
                // If the removal fails, the next call repeats it.
                let _ = remove_tree(&new);
                return Err(error);
            }
        }
    }

    /// Renames a finished directory to the name of its layer, or removes it if another call has cached the layer
    /// meanwhile.
    fn keep(&self, new: &Path, key: &str) -> Result<(), RunnerError> {
        const IN_THE_WAY: [ErrorKind; 2] = [ErrorKind::DirectoryNotEmpty, ErrorKind::NotADirectory];
        let layer = self.dir.join(key);
        match fs::rename(new, &layer) {
            Err(error) if IN_THE_WAY.contains(&error.kind()) => {}
            renamed => return Ok(renamed.with_path("rename", new)?),
        }
        if self.use_cached(key)?.is_some() {
            return Ok(self.trash.remove(new)?);
        }
        // The existing layer has no readable record.
        self.trash.remove(&layer)?;
        Ok(fs::rename(new, &layer).with_path("rename", new)?)
    }

    fn make<'a>(
        &self,
        new: &Path,
        tool: &RunnerArchive,
        owner: (u32, u32),
        download: impl FnOnce() -> RunnerDownload<'a>,
    ) -> Result<(), RunnerError> {
        DirBuilder::new().mode(0o700).create(new).with_path("create the directory", new)?;
        let forge = forge_of(tool);
        let tree = &new.join(TREE);
        let unpacking = RunnerUnpacking { forge, owner, limits: &self.options.limits, tree };
        let size_bytes = unpacking.run(download())?;
        let (name, url) = (name_of(tool), shorten_url(&tool.download_url));
        let record = RunnerRecord { name, url, forge, size_bytes };
        replace_unsynced(&new.join(RECORD), &encode(&record), 0o644)?;
        // Sync before the rename, so that a layer is complete even after a power failure.
        syncfs(File::open(new).with_path("open", new)?).with_path("sync", new)?;
        Ok(())
    }

    /// Removes runners unused for `older_than`, except those with keys in `in_use`, and leftovers of killed processes.
    pub fn prune(
        &self,
        in_use: &BTreeSet<String>,
        older_than: Duration,
    ) -> Result<PrunedRunners, RunnerError> {
        let mut pruned = PrunedRunners::default();
        for name in names_in(&self.dir)? {
            if name.starts_with(GONE) {
                self.trash.remove(&self.dir.join(&name))?;
                continue;
            }
            let key = name.strip_prefix(UNFINISHED).unwrap_or(&name);
            if !is_key(key) {
                continue;
            }
            let Some(lock) = FileLock::try_exclusive(&self.lock(key))? else { continue };
            if key != name {
                self.trash.remove(&self.dir.join(&name))?;
                continue;
            }
            let record = match self.read(key) {
                // Only the newer version knows whether the runner is in use.
                Err(RunnerError::Newer(_)) => continue,
                record => record?,
            };
            let is_recent = record.as_ref().is_some_and(|(_, used)| {
                SystemTime::now().duration_since(*used).unwrap_or_default() < older_than
            });
            if is_recent || in_use.contains(key) {
                continue;
            }
            let gone = self.dir.join(format!("{GONE}{:016x}", random_u64()));
            let layer = self.dir.join(key);
            fs::rename(&layer, &gone).with_path("rename", &layer)?;
            drop(lock);
            self.trash.remove(&gone)?;
            pruned.count += 1;
            pruned.freed_bytes += record.map_or(0, |(record, _)| record.size_bytes);
        }
        Ok(pruned)
    }

    /// Returns a layer if it is cached, and records the time of use.
    fn use_cached(&self, key: &str) -> Result<Option<RunnerLayer>, RunnerError> {
        let Some((record, _)) = self.read(key)? else { return Ok(None) };
        let path = self.dir.join(key).join(RECORD);
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        utimensat(CWD, &path, &times, AtFlags::empty()).with_path("change the times of", &path)?;
        let (name, program) = names(record.forge);
        let dir = Path::new("/").join(HOME).join(name);
        Ok(Some(RunnerLayer {
            path: self.dir.join(key).join(TREE),
            runner: LocatedRunner { program: dir.join(program), dir, forge: record.forge },
            key: key.to_owned(),
        }))
    }

    /// Returns the record of a layer and the time of its last use; none if the record is unreadable, for example after
    /// a power failure.
    fn read(&self, key: &str) -> Result<Option<(RunnerRecord, SystemTime)>, RunnerError> {
        let path = self.dir.join(key).join(RECORD);
        let text = match read_if_there(&path, MAX_RECORD_BYTES) {
            Err(error) if error.is_file_defect() => None,
            text => text?,
        };
        let Some(text) = text else { return Ok(None) };
        let record = match decode(&path, &text) {
            Ok(record) => record,
            Err(error) if error.is_newer() => return Err(RunnerError::Newer(error)),
            Err(_) => return Ok(None),
        };
        let used = fs::metadata(&path).and_then(|file| file.modified());
        Ok(Some((record, used.with_path("inspect", &path)?)))
    }

    fn lock(&self, key: &str) -> PathBuf {
        self.dir.join(LOCKS).join(key)
    }
}

/// Returns the expected digest of an archive, if GARM sends one.
fn digest_of(tool: &RunnerArchive) -> Result<Option<Digest>, RunnerError> {
    let Some(text) = tool.sha256.as_deref() else { return Ok(None) };
    let digest = format!("sha256:{}", text.to_ascii_lowercase());
    let digest = digest.parse().map_err(|_| RunnerError::Checksum { text: text.to_owned() })?;
    Ok(Some(digest))
}

/// Returns the key of a runner: the digest of its archive, or of its URL if the former is unknown, and its owner.
fn key(tool: &RunnerArchive, expected: Option<&Digest>, (uid, gid): (u32, u32)) -> String {
    match expected {
        Some(digest) => format!("sha256-{}-{uid}-{gid}", digest.hex()),
        None => format!("url-{}-{uid}-{gid}", Digest::of(tool.download_url.as_bytes()).hex()),
    }
}

fn is_key(name: &str) -> bool {
    name.starts_with("sha256-") || name.starts_with("url-")
}
