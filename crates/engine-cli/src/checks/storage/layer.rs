//! Two layers like those of an image, and changes like those of steps.

use std::path::{Path, PathBuf};
use std::{fs, io};

use oci_hooks_files::fs::{PathContext as _, PathError};
use oci_hooks_host::privilege::Privilege;
use oci_hooks_host::removal::remove_tree;
use rustix::fs::{XattrFlags, setxattr};

/// Directory only in the lower layer.
const LOWER: &str = "lower-only";
/// Directory in both layers, opaque in the upper layer.
const OPAQUE: &str = "opaque";
const FILE: &str = "file";

/// Writes the two layers.
pub fn write([lower, upper]: &[PathBuf; 2], privilege: Privilege) -> Result<(), PathError> {
    for dir in [lower.join(LOWER), lower.join(OPAQUE), upper.join(OPAQUE)] {
        fs::create_dir(&dir).with_path("create the directory", &dir)?;
    }
    for dir in [lower.join(LOWER), lower.join(OPAQUE)] {
        let file = dir.join(FILE);
        fs::write(&file, "").with_path("write", &file)?;
    }
    let opaque = upper.join(OPAQUE);
    let name = privilege.overlay_attributes().opaque_name();
    setxattr(&opaque, name, b"y", XattrFlags::empty())
        .with_path("make opaque the directory", &opaque)
}

/// Changes the root file system as installing and removing packages does.
pub fn change(merged: &Path) -> Result<(), PathError> {
    let opaque = merged.join(OPAQUE);
    is_empty(&opaque)?;
    let lower = merged.join(LOWER);
    remove_tree(&lower)?;
    fs::create_dir(&lower).with_path("create again", &lower)?;
    is_empty(&lower)?;
    let renamed = merged.join("renamed");
    fs::rename(&lower, &renamed).with_path("rename", &lower)?;
    fs::rename(&renamed, &opaque).with_path("replace", &opaque)
}

fn is_empty(dir: &Path) -> Result<(), PathError> {
    let found = fs::read_dir(dir).with_path("list", dir)?.count();
    let error = || io::Error::other("removed or hidden files of the lower layer are still visible");
    if found == 0 {
        Ok(())
    } else {
        Err(PathError::new("hide the files of a lower layer in", dir, error()))
    }
}
