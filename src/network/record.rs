//! Records of networks: what later processes find them by, and what they must not take as well.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::NetworkError;
use super::job::{NetworkOptions, Published};
use super::netlink;
use crate::sys::fs::{
    Durability, FileAt, PathContext as _, ReplaceOptions, Symlinks, read_bounded,
};
use crate::sys::lock::FileLock;

/// What is known of a network, from before anything of it is made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) id: String,
    pub(super) number: u32,
    pub(super) pool: String,
    pub(super) pool6: String,
    pub(super) host_access: bool,
    pub(super) endpoints: Vec<EndpointRecord>,
    /// How many containers it has had: addresses are not given again.
    pub(super) next: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct EndpointRecord {
    pub(super) name: String,
    pub(super) number: u32,
    pub(super) published: Vec<Published>,
}

pub(super) fn directory(options: &NetworkOptions, id: &str) -> PathBuf {
    options.run.join("network").join(id)
}

pub(super) fn lock(options: &NetworkOptions) -> Result<FileLock, NetworkError> {
    let dir = options.run.join("network");
    make_private(&dir)?;
    Ok(FileLock::exclusive(&options.run.join("network.lock"))?)
}

/// Writes the record of a network with addresses that nobody else has.
pub(super) fn claim(options: &NetworkOptions, id: &str) -> Result<Record, NetworkError> {
    let _lock = lock(options)?;
    let used: BTreeSet<_> = records(options)?.into_iter().map(|record| record.number).collect();
    let routes = netlink::routes().at("read", Path::new("/proc/net/route"))?;
    let routes6 = netlink::routes6().at("read", Path::new("/proc/net/ipv6_route"))?;
    let count = options.pool.count();
    // From the one after the last: the kernel may still be taking that one apart.
    let first = used.last().map_or(0, |last| (last + 1) % count);
    let number = (0..count).map(|at| (first + at) % count).find(|number| {
        !used.contains(number)
            && !options.pool.clashes(*number, &routes)
            && !options.pool6.clashes(*number, &routes6)
    });
    let number =
        number.ok_or_else(|| NetworkError::PoolEmpty { pool: options.pool.to_string(), count })?;
    let record = Record {
        id: id.to_owned(),
        number,
        pool: options.pool.to_string(),
        pool6: options.pool6.to_string(),
        host_access: options.host_access,
        endpoints: Vec::new(),
        next: 0,
    };
    make_private(&directory(options, id))?;
    write(options, &record)?;
    Ok(record)
}

pub(super) fn records(options: &NetworkOptions) -> Result<Vec<Record>, NetworkError> {
    let dir = options.run.join("network");
    let entries = match fs::read_dir(&dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.at("list", &dir)?,
    };
    let paths = entries.flatten().map(|entry| entry.path().join("record.json"));
    paths.filter_map(|path| read(&path).transpose()).collect()
}

pub(super) fn read(path: &Path) -> Result<Option<Record>, NetworkError> {
    if !path.exists() {
        return Ok(None);
    }
    let text = read_bounded(path, 1 << 20)?;
    let invalid = |source| NetworkError::Record { path: path.to_owned(), source };
    serde_json::from_slice(&text).map(Some).map_err(invalid)
}

pub(super) fn write(options: &NetworkOptions, record: &Record) -> Result<(), NetworkError> {
    let text = serde_json::to_vec(record).expect("records are values that JSON has");
    let replace = ReplaceOptions {
        mode: Some(0o600),
        // The run directory does not outlive a boot.
        durability: Durability::Unsynced,
        ..ReplaceOptions::default()
    };
    let path = directory(options, &record.id).join("record.json");
    Ok(FileAt::open(&path, Symlinks::Refuse)?.replace(&text, &replace)?)
}

pub(super) fn make_private(path: &Path) -> Result<(), NetworkError> {
    use std::os::unix::fs::DirBuilderExt as _;

    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    Ok(made.at("make the directory", path)?)
}
