//! Two layers with what layers of images have, and what steps do to them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{XattrFlags, setxattr};

use crate::sys::fs::{PathContext as _, PathError};
use crate::sys::privilege::Privilege;
use crate::sys::removal::remove_tree;

/// A directory that the lower layer alone has.
const LOWER: &str = "lower-only";
/// One that both have, of which the upper hides what the lower has.
const OPAQUE: &str = "opaque";
/// A file in each of them.
const FILE: &str = "file";

/// Writes them.
pub fn write([lower, upper]: &[PathBuf; 2], privilege: Privilege) -> Result<(), PathError> {
    for dir in [lower.join(LOWER), lower.join(OPAQUE), upper.join(OPAQUE)] {
        fs::create_dir(&dir).at("make the directory", &dir)?;
    }
    for dir in [lower.join(LOWER), lower.join(OPAQUE)] {
        let file = dir.join(FILE);
        fs::write(&file, "").at("write", &file)?;
    }
    let opaque = upper.join(OPAQUE);
    let name = privilege.overlay_attributes().opaque();
    setxattr(&opaque, name, b"y", XattrFlags::empty()).at("hide what is below", &opaque)
}

/// Does to the root file system what packages do when they are installed and removed.
pub fn change(merged: &Path) -> Result<(), PathError> {
    let opaque = merged.join(OPAQUE);
    is_empty(&opaque)?;
    let lower = merged.join(LOWER);
    remove_tree(&lower)?;
    fs::create_dir(&lower).at("make anew", &lower)?;
    is_empty(&lower)?;
    let renamed = merged.join("renamed");
    fs::rename(&lower, &renamed).at("rename", &lower)?;
    fs::rename(&renamed, &opaque).at("replace", &opaque)
}

fn is_empty(dir: &Path) -> Result<(), PathError> {
    let found = fs::read_dir(dir).at("list", dir)?.count();
    let error = || io::Error::other("it shows files of a layer below that are hidden or removed");
    if found == 0 { Ok(()) } else { Err(PathError::new("use", dir, error())) }
}
