//! Containers in a container: what they take.
//!
//! buildah and podman make a user namespace, are root of that, and mount in it.

use std::path::Path;

use rustix::fs::{Access as FileAccess, access};

use crate::bundle::{self, Access, Device};
use crate::sys::fs::PathError;
use crate::sys::host_file::HostFile;

/// What overlays in user space and networks in user space are made with.
const DEVICES: [&str; 2] = ["/dev/fuse", "/dev/net/tun"];

/// Gives a container what it takes to run others in it. Its root must be nobody on the host: what is
/// hidden from others in `/proc` is what root of the host could change there.
pub fn allow_nesting(options: &mut bundle::Options) -> Result<(), PathError> {
    options.security.nesting = true;
    for path in DEVICES.map(Path::new) {
        let is_given = options.devices.iter().any(|device| device.container == path);
        // Without one there are other ways, which programs find by themselves.
        if is_given || access(path, FileAccess::READ_OK | FileAccess::WRITE_OK).is_err() {
            continue;
        }
        let host = HostFile::open_trusted(path)?;
        options.devices.push(Device { host, container: path.into(), access: Access::all() });
    }
    Ok(())
}
