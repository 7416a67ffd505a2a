//! Directories of pod volumes: `pods/NETWORK/POD/VOLUME` on the disk.
//!
//! The job record names the network before any directory is created, so leftovers of a killed call are found.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use container_hook_job::HookError;
use oci_hooks_engine::container::Engine;
use oci_hooks_files::fs::{
    PathContext as _, PathError, create_if_missing, entries_in, make_private, names_in,
};
use oci_hooks_host::mount;

use super::parts::TemplatePod;
use super::volumes::{CreateIfMissing, VolumeBacking, VolumeFile};

/// Group of a pod's volumes, if the template sets `fsGroup`.
type VolumeGroup = Option<u32>;

/// Returns the directory of a pod's volumes.
pub fn directory(engine: &Engine, network: &str, pod: &str) -> PathBuf {
    engine.disk.join("pods").join(network).join(pod)
}

/// Creates the volumes of a pod in its directory.
pub fn make(pod: &TemplatePod, directory: &Path) -> Result<(), HookError> {
    let group = pod.fields.fs_group();
    for (volume, backing) in &pod.fields.backings {
        let path = directory.join(volume);
        match backing {
            VolumeBacking::Empty { is_memory, size_bytes } => {
                make_private(directory)?;
                fs::create_dir(&path).with_path("create the directory", &path)?;
                if *is_memory {
                    mount::mount_tmpfs(&path, 0o777, *size_bytes)?;
                }
                let set_group_id = if group.is_some() { 0o2000 } else { 0 };
                set(&path, 0o777 | set_group_id, group)?;
            }
            VolumeBacking::Files(files) => {
                make_private(directory)?;
                fs::create_dir(&path).with_path("create the directory", &path)?;
                set(&path, 0o755, group)?;
                for file in files {
                    write(&path, file, group)?;
                }
            }
            VolumeBacking::Host { path, create: CreateIfMissing::Directory } => {
                fs::create_dir_all(path).with_path("create the directory", path)?;
            }
            VolumeBacking::Host { path, create: CreateIfMissing::File } => {
                let file = OpenOptions::new().append(true).create(true).mode(0o644).open(path);
                file.with_path("make", path)?;
            }
            VolumeBacking::Host { create: CreateIfMissing::Nothing, .. } => {}
        }
    }
    Ok(())
}

fn write(top: &Path, file: &VolumeFile, group: VolumeGroup) -> Result<(), PathError> {
    let path = top.join(&file.path);
    let mut above = top.to_owned();
    for part in file.path.parent().into_iter().flat_map(Path::components) {
        above.push(part);
        if create_if_missing(&above, 0o777)? {
            set(&above, 0o755, group)?;
        }
    }
    // A later source of a projected volume overwrites the file of an earlier one.
    let mut open = OpenOptions::new();
    let open = open.write(true).create(true).truncate(true).mode(0o600).open(&path);
    let mut opened = open.with_path("make", &path)?;
    opened.write_all(&file.content).with_path("write", &path)?;
    // The group of `fsGroup` needs read permission.
    set(&path, file.mode | if group.is_some() { 0o440 } else { 0 }, group)
}

/// Sets group and mode, in this order, because changing the group may clear bits of the mode.
fn set(path: &Path, mode: u32, group: VolumeGroup) -> Result<(), PathError> {
    if group.is_some() {
        chown(path, None, group).with_path("set the group of", path)?;
    }
    fs::set_permissions(path, Permissions::from_mode(mode)).with_path("change the mode of", path)
}

/// Removes the volumes of a pod, or of all pods of a network.
pub fn remove(engine: &Engine, network: &str, pod: Option<&str>) -> Result<(), PathError> {
    let all = engine.disk.join("pods").join(network);
    match pod {
        Some(pod) => {
            remove_pod(engine, &all.join(pod))?;
            // Fails as long as the network has another pod.
            let _ = fs::remove_dir(&all);
            Ok(())
        }
        None => {
            for pod in entries_in(&all)? {
                remove_pod(engine, &pod.path())?;
            }
            accept_missing(&all, fs::remove_dir(&all))
        }
    }
}

/// Returns the networks whose pods have volumes.
pub fn list(engine: &Engine) -> Result<Vec<String>, PathError> {
    names_in(&engine.disk.join("pods"))
}

fn remove_pod(engine: &Engine, pod: &Path) -> Result<(), PathError> {
    for volume in entries_in(pod)? {
        mount::unmount(&volume.path())?;
    }
    engine.trash().remove(pod)
}

fn accept_missing(path: &Path, result: io::Result<()>) -> Result<(), PathError> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.with_path("remove", path),
    }
}
