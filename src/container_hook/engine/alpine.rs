//! Whether an image is Alpine: the runner then takes the node that is built for it.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::container_hook::alpine::{FILES, MAX_FILE_BYTES, says_alpine};
use crate::sys::beneath::Beneath;

/// Returns whether a root file system calls itself Alpine.
///
/// The reference asks the image's own shell and `grep` for the same; an image may have neither.
pub(super) fn is_alpine(rootfs: &Path) -> bool {
    let Ok(root) = Beneath::new(rootfs) else { return false };
    FILES.iter().filter_map(|file| read(&root, Path::new(file))).any(|text| says_alpine(&text))
}

/// Reads a file of the image, if it is one.
fn read(root: &Beneath, path: &Path) -> Option<String> {
    // Without waiting for somebody to write, if it is a pipe.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(root.open_as_root(path, flags, Mode::empty()).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
