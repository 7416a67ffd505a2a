//! Images of a Dockerfile that are pulled before the build. Those that need a login, which is in memory so
//! that nothing that a Dockerfile runs is there at the same time; and all of them where what it runs is not in
//! the host's network, which registries are reached by.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;

use super::BuildError;
use super::program::Buildah;
use crate::container_hook::dockerfile::auth_file;
use crate::image::{Credentials, PullPolicy, Reference, RegistryClient};
use crate::sys::fs::PathContext as _;
use crate::sys::privilege::outside;
use crate::sys::spawn::memory_file;

/// The most images of a Dockerfile that are pulled before the build.
const MAX_PULLS: usize = 16;

/// Pulls the images that the build could not. One that does not come is not always needed: the build says
/// so if it is.
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
        let logins = auth_file(client, credentials, image)?;
        if logins.is_none() && !buildah.privilege.has_own_network() {
            continue;
        }
        pulled += 1;
        if pulled > MAX_PULLS {
            break;
        }
        let image = image.to_string();
        let mut arguments = vec!["pull", "--policy", policy];
        let mut input = Stdio::null();
        if let Some(logins) = logins {
            let logins =
                memory_file("logins", &logins).at("make in memory", Path::new("logins"))?;
            arguments.extend(["--authfile", "/proc/self/fd/0"]);
            input = logins.into();
        }
        arguments.push(&image);
        let arguments: Vec<&OsStr> = arguments.into_iter().map(OsStr::new).collect();
        match outside::run(|| buildah.run("pull", &arguments, input)) {
            Err(BuildError::Failed { .. }) => {}
            ran => ran?,
        }
    }
    Ok(())
}
