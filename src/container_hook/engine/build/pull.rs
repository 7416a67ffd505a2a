//! Images of a Dockerfile that need a login: pulled before the build, with the login in memory, so that
//! nothing that a Dockerfile runs is there at the same time.

use std::path::Path;
use std::process::Stdio;

use super::BuildError;
use super::program::Buildah;
use crate::container_hook::dockerfile::auth_file;
use crate::image::{Credentials, PullPolicy, Reference, RegistryClient};
use crate::sys::fs::PathContext as _;
use crate::sys::spawn::memory_file;

/// The most images of a Dockerfile that are pulled with a login.
const MAX_LOGINS: usize = 16;

/// Pulls those images that somebody has a login for. One that does not come is not always needed: the
/// build says so if it is.
pub(super) fn pull(
    buildah: &Buildah<'_>,
    client: &RegistryClient,
    credentials: &Credentials,
    policy: PullPolicy,
    images: &[Reference],
) -> Result<(), BuildError> {
    let policy = match policy {
        PullPolicy::Always | PullPolicy::Newer => "always",
        PullPolicy::Missing | PullPolicy::Never => "missing",
    };
    let mut pulled = 0;
    for image in images {
        let Some(logins) = auth_file(client, credentials, image)? else { continue };
        pulled += 1;
        if pulled > MAX_LOGINS {
            break;
        }
        let logins = memory_file("logins", &logins).at("make in memory", Path::new("logins"))?;
        let image = image.to_string();
        let arguments = ["pull", "--policy", policy, "--authfile", "/proc/self/fd/0", &image];
        match buildah.run("pull", &arguments.map(AsRef::as_ref), Stdio::from(logins)) {
            Err(BuildError::Failed { .. }) => {}
            ran => ran?,
        }
    }
    Ok(())
}
