//! Runners that were downloaded, each kept as a layer.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, syncfs, utimensat};
use serde::{Deserialize, Serialize};

use super::choose::{forge_of, name_of};
use super::download::{Download, DownloadEvent};
use super::error::RunnerError;
use super::unpack::{HOME, Unpacking, names};
use crate::container::Engine;
use crate::garm::boot::Forge;
use crate::garm::bootstrap::Tool;
use crate::garm::http::{Http, Retry, shown};
use crate::image::{Digest, Limits, Pace};
use crate::sys::error::has_timed_out;
use crate::sys::fs::{
    Durability, FileAt, PathContext as _, PathError, ReplaceOptions, Symlinks, make_private,
    random_u64, read_if_there,
};
use crate::sys::lock::FileLock;
use crate::sys::record::{decode, encode};
use crate::sys::removal::remove_tree;
use crate::sys::trash::Trash;

/// What is written about a runner beside its layer. Its time is when the runner was last wanted.
const RECORD: &str = "runner.json";
const LONGEST_RECORD: u64 = 64 << 10;

const TREE: &str = "tree";
const LOCKS: &str = "locks";
/// What the names of directories start with that are being made, or removed.
const UNFINISHED: &str = ".new-";
const GONE: &str = ".gone-";

/// Limits and tries of downloads.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RunnerOptions {
    /// The most an archive may be.
    pub archive_bytes: u64,
    /// The most that may come out of it.
    pub limits: Limits,
    /// How often it is tried after nothing came.
    pub retry: Retry,
    /// How long a download may take.
    pub timeout: Duration,
    /// How fast it has to be.
    pub pace: Pace,
    /// How long a call waits for another one that downloads the same, or is stopped meanwhile, until it does so itself.
    pub overtake_after: Duration,
}

/// The cache of runners that were downloaded, each a layer.
#[derive(Clone, Debug)]
pub struct Runners {
    dir: PathBuf,
    options: RunnerOptions,
    trash: Trash,
}

/// A runner as a layer over those of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunnerLayer {
    /// The directory of the layer.
    pub path: PathBuf,
    /// Where the runner is in an instance.
    pub dir: PathBuf,
    pub program: PathBuf,
    pub forge: Forge,
    /// What the layer is called by: name it as in use while there is an instance with it.
    pub key: String,
}

/// A downloaded runner in the cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CachedRunner {
    /// What it is called by.
    pub key: String,
    /// The name of its archive.
    pub name: String,
    /// Where it came from, without what may be secret.
    pub url: String,
    pub forge: Forge,
    /// The numbers of its user and group.
    pub owner: (u32, u32),
    /// About how much of the disk it takes.
    pub size_bytes: u64,
    /// When it was last wanted.
    pub used: SystemTime,
}

/// What a prune of the cache removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrunedRunners {
    pub count: usize,
    /// About how much of the disk became free.
    pub freed_bytes: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    name: String,
    url: String,
    forge: Forge,
    owner: (u32, u32),
    size_bytes: u64,
}

impl Default for RunnerOptions {
    fn default() -> Self {
        RunnerOptions {
            archive_bytes: 2 << 30,
            limits: Limits { bytes: 8 << 30, entries: 500_000, ..Limits::default() },
            retry: Retry { attempts: 5, pause: Duration::from_secs(2) },
            timeout: Duration::from_secs(600),
            pace: Pace::default(),
            overtake_after: Duration::from_secs(60),
        }
    }
}

impl Runners {
    /// Returns what is kept in a directory, which is made when there is something to keep.
    ///
    /// What cannot be removed is set aside in the trash.
    pub fn new(dir: PathBuf, options: RunnerOptions, trash: Trash) -> Self {
        Runners { dir, options, trash }
    }

    /// Returns those that are where an engine's images are.
    pub fn of(engine: &Engine) -> Self {
        let store = &engine.store;
        let dir = store.options().root.join("runners");
        Runners::new(dir, RunnerOptions::default(), store.trash().clone())
    }

    /// Returns the layer with a runner whose files are a user's and a group's, downloaded if it is
    /// not there yet. Of several who want the same at once, one downloads and the others wait; one that takes too long
    /// is overtaken.
    pub fn prepare(
        &self,
        tool: &Tool,
        owner: (u32, u32),
        http: &Http,
        listener: &(dyn Fn(DownloadEvent) + Sync),
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
            let lock = FileLock::exclusive(&self.lock(&name), self.options.overtake_after);
            // Whoever has the lock keeps a layer that is there from being removed.
            if let Some(layer) = self.used(&key)? {
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
            // Of somebody who was killed.
            self.trash.remove(&new)?;
            let made = self.make(&new, tool, owner, || {
                Download::new(tool, expected.as_ref(), http, &self.options, listener)
            });
            if let Err(error) = made.and_then(|()| self.keep(&new, &key)) {
                // What cannot be removed now is removed by the next one who tries.
                let _ = remove_tree(&new);
                return Err(error);
            }
        }
    }

    /// Makes a finished directory the layer, unless another call has overtaken this one.
    fn keep(&self, new: &Path, key: &str) -> Result<(), RunnerError> {
        const IN_THE_WAY: [ErrorKind; 2] = [ErrorKind::DirectoryNotEmpty, ErrorKind::NotADirectory];
        let layer = self.dir.join(key);
        match fs::rename(new, &layer) {
            Err(error) if IN_THE_WAY.contains(&error.kind()) => {}
            renamed => return Ok(renamed.at("rename", new)?),
        }
        if self.used(key)?.is_some() {
            return Ok(self.trash.remove(new)?);
        }
        // One without a record that can be read.
        self.trash.remove(&layer)?;
        Ok(fs::rename(new, &layer).at("rename", new)?)
    }

    fn make<'a>(
        &self,
        new: &Path,
        tool: &Tool,
        owner: (u32, u32),
        download: impl FnOnce() -> Download<'a>,
    ) -> Result<(), RunnerError> {
        DirBuilder::new().mode(0o700).create(new).at("make the directory", new)?;
        let forge = forge_of(tool);
        let tree = &new.join(TREE);
        let unpacking = Unpacking { forge, owner, limits: &self.options.limits, tree };
        let size_bytes = unpacking.run(download())?;
        let (name, url) = (name_of(tool), shown(&tool.download_url));
        let record = Record { name, url, forge, owner, size_bytes };
        let text = encode(&record);
        let options =
            ReplaceOptions { durability: Durability::Unsynced, ..ReplaceOptions::default() };
        FileAt::open(&new.join(RECORD), Symlinks::Refuse)?.replace(&text, &options)?;
        // The name stands for whole files, after a power cut too.
        syncfs(File::open(new).at("open", new)?).at("sync", new)?;
        Ok(())
    }

    /// Returns the runners that are there.
    pub fn list(&self) -> Result<Vec<CachedRunner>, RunnerError> {
        let mut kept = Vec::new();
        for key in names_in(&self.dir)? {
            if is_key(&key)
                && let Some((record, used)) = self.read_known(&key)?
            {
                let Record { name, url, forge, owner, size_bytes } = record;
                kept.push(CachedRunner { key, name, url, forge, owner, size_bytes, used });
            }
        }
        Ok(kept)
    }

    /// Removes the runners that nobody wanted for some time, but those in use, by their keys. What
    /// killed processes left goes too.
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
                // Whose it is only that version knows.
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
            fs::rename(&layer, &gone).at("rename", &layer)?;
            drop(lock);
            self.trash.remove(&gone)?;
            pruned.count += 1;
            pruned.freed_bytes += record.map_or(0, |(record, _)| record.size_bytes);
        }
        Ok(pruned)
    }

    /// Returns a layer if it is there, and takes note that somebody wanted it.
    fn used(&self, key: &str) -> Result<Option<RunnerLayer>, RunnerError> {
        let Some((record, _)) = self.read(key)? else { return Ok(None) };
        let path = self.dir.join(key).join(RECORD);
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        utimensat(CWD, &path, &times, AtFlags::empty()).at("touch", &path)?;
        let (name, program) = names(record.forge);
        let dir = Path::new("/").join(HOME).join(name);
        Ok(Some(RunnerLayer {
            path: self.dir.join(key).join(TREE),
            program: dir.join(program),
            dir,
            forge: record.forge,
            key: key.to_owned(),
        }))
    }

    /// Returns the record of a layer and when that was last wanted; none if it cannot be read, as
    /// after a power cut.
    fn read(&self, key: &str) -> Result<Option<(Record, SystemTime)>, RunnerError> {
        let path = self.dir.join(key).join(RECORD);
        let text = match read_if_there(&path, LONGEST_RECORD) {
            Err(error) if error.is_of_the_file() => None,
            text => text?,
        };
        let Some(text) = text else { return Ok(None) };
        let record = match decode(&path, &text) {
            Ok(record) => record,
            Err(error) if error.is_newer() => return Err(RunnerError::Newer(error)),
            Err(_) => return Ok(None),
        };
        let used = fs::metadata(&path).and_then(|file| file.modified());
        Ok(Some((record, used.at("look at", &path)?)))
    }

    /// Returns the same, and none if a newer version of this program made it.
    fn read_known(&self, key: &str) -> Result<Option<(Record, SystemTime)>, RunnerError> {
        match self.read(key) {
            Err(RunnerError::Newer(_)) => Ok(None),
            read => read,
        }
    }

    fn lock(&self, key: &str) -> PathBuf {
        self.dir.join(LOCKS).join(key)
    }
}

/// Returns the digest that the archive has to have, if GARM says one.
fn digest_of(tool: &Tool) -> Result<Option<Digest>, RunnerError> {
    let Some(text) = tool.sha256.as_deref().filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let digest = format!("sha256:{}", text.to_ascii_lowercase());
    let digest = digest.parse().map_err(|_| RunnerError::Checksum { text: text.to_owned() })?;
    Ok(Some(digest))
}

/// Returns what a runner is called by: the digest of its archive, or if nobody says that, of its
/// address; and its owner.
fn key(tool: &Tool, expected: Option<&Digest>, (uid, gid): (u32, u32)) -> String {
    match expected {
        Some(digest) => format!("sha256-{}-{uid}-{gid}", digest.hex()),
        None => format!("url-{}-{uid}-{gid}", Digest::of(tool.download_url.as_bytes()).hex()),
    }
}

fn is_key(name: &str) -> bool {
    name.starts_with("sha256-") || name.starts_with("url-")
}

fn names_in(dir: &Path) -> Result<Vec<String>, PathError> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.at("list", dir)?,
    };
    let mut names: Vec<_> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    Ok(names)
}
