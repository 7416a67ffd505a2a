//! Directories of a pod's volumes: below `pods` on the disk, by network, then by pod.
//!
//! The name of the network is in the job's record before anything is made, so what a killed call
//! left is found by that.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use super::parts::Pod;
use super::volumes::{Backing, Create, File};
use crate::container::Engine;
use crate::container_hook::error::HookError;
use crate::sys::fs::{PathContext as _, PathError, make_private};
use crate::sys::mount;

/// The group that volumes belong to.
type Group = Option<u32>;

/// Returns where the volumes of a pod are.
pub fn directory(engine: &Engine, network: &str, pod: &str) -> PathBuf {
    engine.disk.join("pods").join(network).join(pod)
}

/// Makes the volumes of a pod in its directory.
pub fn make(pod: &Pod, directory: &Path) -> Result<(), HookError> {
    let group = pod.fields.fs_group();
    for (volume, backing) in pod.volumes.iter() {
        let path = directory.join(volume);
        match backing {
            Backing::Empty { is_memory, size_bytes } => {
                make_private(directory)?;
                fs::create_dir(&path).at("make the directory", &path)?;
                if *is_memory {
                    mount::memory(&path, 0o777, *size_bytes)?;
                }
                let set_group_id = if group.is_some() { 0o2000 } else { 0 };
                set(&path, 0o777 | set_group_id, group)?;
            }
            Backing::Files(files) => {
                make_private(directory)?;
                fs::create_dir(&path).at("make the directory", &path)?;
                set(&path, 0o755, group)?;
                for file in files {
                    write(&path, file, group)?;
                }
            }
            Backing::Host { path, create: Create::Directory } => {
                fs::create_dir_all(path).at("make the directory", path)?;
            }
            Backing::Host { path, create: Create::File } => {
                let file = OpenOptions::new().append(true).create(true).mode(0o644).open(path);
                file.at("make", path)?;
            }
            Backing::Host { create: Create::Nothing, .. } => {}
        }
    }
    Ok(())
}

fn write(top: &Path, file: &File, group: Group) -> Result<(), PathError> {
    let path = top.join(&file.path);
    let mut above = top.to_owned();
    for part in file.path.parent().into_iter().flat_map(Path::components) {
        above.push(part);
        match fs::create_dir(&above) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => {
                made.at("make the directory", &above)?;
                set(&above, 0o755, group)?;
            }
        }
    }
    // A later source of a projected volume takes the place of an earlier one.
    let mut open = OpenOptions::new();
    let open = open.write(true).create(true).truncate(true).mode(0o600).open(&path);
    let mut opened = open.at("make", &path)?;
    opened.write_all(&file.content).at("write", &path)?;
    // The group is there to read it.
    set(&path, file.mode | if group.is_some() { 0o440 } else { 0 }, group)
}

/// Sets mode and group, in the order that keeps the first as it is said.
fn set(path: &Path, mode: u32, group: Group) -> Result<(), PathError> {
    if group.is_some() {
        chown(path, None, group).at("set the group of", path)?;
    }
    fs::set_permissions(path, Permissions::from_mode(mode)).at("change the mode of", path)
}

/// Removes the volumes of all pods of a network, or those of one pod.
pub fn remove(engine: &Engine, network: &str, pod: Option<&str>) -> Result<(), PathError> {
    let all = engine.disk.join("pods").join(network);
    match pod {
        Some(pod) => {
            remove_pod(engine, &all.join(pod))?;
            // The last one takes the directory along.
            let _ = fs::remove_dir(&all);
            Ok(())
        }
        None => {
            for pod in entries(&all)? {
                remove_pod(engine, &pod)?;
            }
            removed(&all, fs::remove_dir(&all))
        }
    }
}

/// Returns the networks whose pods have volumes.
pub fn list(engine: &Engine) -> Result<Vec<String>, PathError> {
    let all = entries(&engine.disk.join("pods"))?;
    let names = all.iter().filter_map(|path| path.file_name()?.to_str().map(str::to_owned));
    Ok(names.collect())
}

fn remove_pod(engine: &Engine, pod: &Path) -> Result<(), PathError> {
    for volume in entries(pod)? {
        mount::unmount(&volume)?;
    }
    engine.trash().remove(pod)
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>, PathError> {
    match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => Ok(entries.at("list", dir)?.flatten().map(|entry| entry.path()).collect()),
    }
}

fn removed(path: &Path, result: io::Result<()>) -> Result<(), PathError> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.at("remove", path),
    }
}
