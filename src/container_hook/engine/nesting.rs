//! Containers in a job's containers: what they take, where the policy allows them.
//!
//! buildah and podman make a user namespace, are root of that, and mount in it. All that the kernel lets
//! such a root do was tested less than what it lets others do, so it is the admin's to allow. Nothing of it
//! is for containers whose root is root of the host: what is hidden from them in `/proc` is what they
//! could change there.

use std::path::Path;

use rustix::fs::{Access as FileAccess, access};

use super::backend::EngineBackend;
use crate::bundle::{self, Access, Device};
use crate::container_hook::error::HookError;
use crate::sys::host_file::HostFile;

/// What overlays in user space and networks in user space are made with.
const DEVICES: [&str; 2] = ["/dev/fuse", "/dev/net/tun"];

/// Returns the table of the settings that could allow containers in containers, if none does.
pub(super) fn denied_by(backend: &EngineBackend<'_>) -> Option<String> {
    let policy = &backend.context.settings.policy;
    (!policy.nesting).then(|| policy.section("policy"))
}

/// Gives a container what it takes to run others in it, if the policy allows that.
///
/// `is_apart` says whether its root is nobody on the host.
pub(super) fn allow(
    backend: &EngineBackend<'_>,
    title: &str,
    is_apart: bool,
    options: &mut bundle::Options,
) -> Result<(), HookError> {
    let policy = &backend.context.settings.policy;
    let security = &options.security;
    if !policy.nesting || security.privileged || security.restricted {
        return Ok(());
    }
    if !is_apart {
        backend.context.log.warning(&format!(
            "{title}: `nesting` under {} has no effect: root of this container is root of the machine",
            policy.section("policy")
        ));
        return Ok(());
    }
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
