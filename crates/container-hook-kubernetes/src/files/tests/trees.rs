//! Random trees: grown, changed, compared.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use fastrand::Rng;
use oci_hooks_host::removal::remove_tree;

/// Properties of a file that tests compare: mode, modification time, length and hash of its content or
/// target.
pub type FileSnapshot = (u32, (i64, i64), usize, u64);

/// Returns all files of a directory, by path.
pub fn snapshot(root: &Path) -> BTreeMap<Vec<u8>, FileSnapshot> {
    let mut seen = BTreeMap::new();
    for path in list_files(root) {
        let found = fs::symlink_metadata(&path).unwrap();
        let time = (found.mtime(), found.mtime_nsec());
        let (mode, time, content) = if found.is_dir() {
            (found.mode(), (0, 0), Vec::new())
        } else if found.is_symlink() {
            (0, time, fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec())
        } else {
            (found.mode(), time, fs::read(&path).unwrap())
        };
        let mut hasher = DefaultHasher::new();
        content.hash(&mut hasher);
        let what = (mode, time, content.len(), hasher.finish());
        let path = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
        seen.insert(path, what);
    }
    seen
}

/// Returns the paths of all files below a directory, in a fixed order.
fn list_files(root: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    let mut names: Vec<PathBuf> =
        fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    for path in names {
        let is_dir = fs::symlink_metadata(&path).unwrap().is_dir();
        paths.push(path.clone());
        if is_dir {
            paths.extend(list_files(&path));
        }
    }
    paths
}

fn name(random: &mut Rng) -> Vec<u8> {
    let length = match random.u8(..10) {
        0 => 255,
        1 => 1,
        _ => random.usize(1..20),
    };
    let byte = |random: &mut Rng| loop {
        // Few different letters, so that names have common prefixes, and all special characters.
        let byte =
            if random.u8(..4) == 0 { random.u8(1..) } else { *random.choice(b"ab.-\n ").unwrap() };
        if byte != b'/' && byte != 0 {
            return byte;
        }
    };
    loop {
        let name: Vec<u8> = (0..length).map(|_| byte(random)).collect();
        if !matches!(&name[..], b"." | b"..") {
            return name;
        }
        if length == 1 {
            return vec![b'a'];
        }
    }
}

/// Creates random files in a directory and its new subdirectories.
pub fn grow(dir: &Path, random: &mut Rng, depth: u32) {
    for _ in 0..random.usize(1..12) {
        let path = dir.join(OsStr::from_bytes(&name(random)));
        if fs::symlink_metadata(&path).is_ok() {
            continue;
        }
        match random.u8(..10) {
            0..=2 if depth > 0 => {
                fs::create_dir(&path).unwrap();
                let mode = 0o700 | random.u32(..0o100);
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
                if random.u8(..5) > 0 {
                    grow(&path, random, depth - 1);
                }
            }
            3 => symlink(OsStr::from_bytes(&name(random)), &path).unwrap(),
            _ => write(&path, random),
        }
    }
}

fn write(path: &Path, random: &mut Rng) {
    let length = match random.u8(..10) {
        0 => random.usize(60_000..300_000),
        1 => 64 << 10,
        2 => 0,
        _ => random.usize(..100),
    };
    let content: Vec<u8> = (0..length).map(|_| random.u8(..)).collect();
    fs::write(path, content).unwrap();
    let mode = random.u32(..0o1000) | 0o400;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Changes, replaces, removes and adds files at random.
pub fn change(root: &Path, random: &mut Rng) {
    for path in list_files(root) {
        let Ok(found) = fs::symlink_metadata(&path) else { continue };
        if random.u8(..4) > 0 {
            continue;
        }
        if !found.is_dir() {
            fs::remove_file(&path).unwrap();
        } else if random.u8(..3) > 0 {
            if random.bool() {
                let mode = 0o700 | random.u32(..0o100);
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            }
            grow(&path, random, 1);
            continue;
        } else {
            remove_tree(&path).unwrap();
        }
        match random.u8(..5) {
            0 => {}
            1 => fs::create_dir(&path).unwrap(),
            2 => symlink("elsewhere", &path).unwrap(),
            _ => write(&path, random),
        }
    }
    grow(root, random, 2);
}
