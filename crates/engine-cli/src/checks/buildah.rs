//! Checks that buildah is installed, and reports advisories for its version.

use std::ffi::OsStr;

use oci_hooks_files::find::{DEFAULT_PATH, find};
use oci_hooks_host::version::ProgramVersion;

use super::{HostCheck, advisories};

const NAME: &str = "buildah";

/// Checks buildah, given its name or path.
pub fn check(program: &OsStr) -> HostCheck {
    let Ok(path) = find(&[program], Some(DEFAULT_PATH.as_ref()), None) else {
        let hint = "apt install buildah, dnf install buildah: actions with a Dockerfile need it";
        return HostCheck::warn(NAME, "not installed", hint);
    };
    let Some(version) = ProgramVersion::of(&path) else {
        let found = format!("{} does not report its version", path.display());
        return HostCheck::warn(NAME, found, "reinstall it, or name another one in [build]");
    };
    let found = format!("{} {}", path.display(), version.text);
    advisories::check(NAME, NAME, &version.number, found)
}
