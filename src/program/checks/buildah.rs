//! buildah: whether it is installed, and the advisories about it.

use std::ffi::OsStr;

use super::{Check, advisories};
use crate::runtime::{DEFAULT_PATH, find};
use crate::sys::version::ProgramVersion;

const NAME: &str = "buildah";

/// Looks at buildah, which has this name or path.
pub fn check(program: &OsStr) -> Check {
    let Ok(path) = find(&[program], Some(DEFAULT_PATH.as_ref()), None) else {
        let hint = "apt install buildah, dnf install buildah: actions with a Dockerfile need it";
        return Check::warn(NAME, "not installed", hint);
    };
    let Some(version) = ProgramVersion::of(&path) else {
        let found = format!("{} does not report its version", path.display());
        return Check::warn(NAME, found, "reinstall it, or name another one in [build]");
    };
    let found = format!("{} {}", path.display(), version.text);
    advisories::check(NAME, NAME, &version.number, found)
}
