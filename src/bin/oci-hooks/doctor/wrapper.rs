//! `oci-hooks-runtime`, which applies hook files where an engine does not.

use std::path::{Path, PathBuf};

use oci_hooks::hooks::consumer::PODMAN;

use super::config_file::ConfigFile;
use super::host::Host;

const NAME: &str = "oci-hooks-runtime";

/// The settings of the wrapper.
const SETTINGS: &str = "/etc/oci-hooks/runtime.toml";

/// Scripts that call the wrapper are not longer than this.
const MAX_SCRIPT_BYTES: usize = 64 << 10;

/// Returns the path of the wrapper, or where it would be installed.
pub fn path(host: &Host) -> PathBuf {
    host.program(NAME).unwrap_or_else(|| Path::new("/usr/bin").join(NAME))
}

/// Returns whether a runtime is the wrapper: by its name, or as a script that calls it.
pub fn is_wrapper(runtime: &str, host: &Host) -> bool {
    let name = Path::new(runtime).file_name().unwrap_or_default().to_string_lossy();
    if name.starts_with(NAME) {
        return true;
    }
    let path = match runtime.starts_with('/') {
        true => Some(PathBuf::from(runtime)),
        false => host.program(runtime),
    };
    let script = path.and_then(|path| host.read(&path).ok().flatten());
    script.is_some_and(|text| {
        text.len() <= MAX_SCRIPT_BYTES && text.starts_with("#!") && text.contains(NAME)
    })
}

/// Says which directories the wrapper reads, and what says so.
pub fn reads(host: &Host) -> String {
    let settings = ConfigFile::read(Path::new(SETTINGS), host).ok().flatten();
    let found = settings.as_ref().and_then(|settings| settings.strings(&["hooks-dirs"]));
    match found {
        Some(found) => format!("reads {}, by {}", found.value.join(", "), found.at),
        None => format!("reads {}, by the built-in default", PODMAN.dirs.join(", ")),
    }
}
