//! `oci-hooks-runtime`, which applies hook files where an engine does not.

use std::path::{Path, PathBuf};

use oci_hooks::hooks::Consumer;
use oci_hooks::hooks::consumer::PODMAN;
use oci_hooks_cli::check::HostCheck;

use super::config_file::ConfigFile;
use super::host::DoctorHost;

const NAME: &str = "oci-hooks-runtime";

/// The settings file of the wrapper.
const SETTINGS: &str = "/etc/oci-hooks/runtime.toml";

/// Size limit of scripts that call the wrapper.
const MAX_SCRIPT_BYTES: usize = 64 << 10;

/// Returns the path of the wrapper, or its usual path if it is not installed.
pub fn path(host: &DoctorHost) -> PathBuf {
    host.program(NAME).unwrap_or_else(|| Path::new("/usr/bin").join(NAME))
}

/// Returns whether a runtime is the wrapper: by its name, or as a script that calls it.
pub fn is_wrapper(runtime: &str, host: &DoctorHost) -> bool {
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

/// The wrapper's consumer and hook directories.
pub struct WrapperConfig {
    pub consumer: Consumer,
    /// In order of increasing precedence.
    pub dirs: Vec<PathBuf>,
    pub dirs_source: String,
}

/// Reads the wrapper's settings. Its environment variables are not known here: they are set for the engine.
pub fn config(host: &DoctorHost) -> WrapperConfig {
    let settings = ConfigFile::read(Path::new(SETTINGS), host).ok().flatten();
    let settings = settings.as_ref();
    let name = settings.and_then(|settings| settings.string(&["as"]));
    let consumer = name.and_then(|name| Consumer::from_name(&name.value)).unwrap_or(PODMAN);
    let (dirs, dirs_source) = match settings.and_then(|settings| settings.strings(&["hooks-dirs"]))
    {
        Some(found) => (found.value, found.at.to_string()),
        None => {
            let dirs = consumer.dirs.iter().map(|dir| (*dir).to_owned());
            (dirs.collect(), "the built-in default".to_owned())
        }
    };
    let dirs = dirs.into_iter().map(PathBuf::from).collect();
    WrapperConfig { consumer, dirs, dirs_source }
}

/// Checks that the wrapper which an engine calls exists.
pub fn check(name: &'static str, runtime: &str, by: &str, host: &DoctorHost) -> HostCheck {
    let exists = match runtime.starts_with('/') {
        true => host.is_program(Path::new(runtime)),
        false => host.program(runtime).is_some(),
    };
    if !exists {
        let found =
            format!("calls {runtime}, by {by}, which is not installed: no container starts");
        return HostCheck::fail(name, found, format!("install {NAME} as {runtime}"));
    }
    let config = config(host);
    let dirs: Vec<_> = config.dirs.iter().map(|dir| dir.display().to_string()).collect();
    let (dirs, by_setting) = (dirs.join(", "), config.dirs_source);
    let found = format!("calls {NAME}, by {by}, which reads {dirs}, by {by_setting}");
    HostCheck::ok(name, found)
}

/// Returns a hint that names the wrapper, after the hint to install it.
pub fn advise(hint: &str, host: &DoctorHost) -> String {
    match host.program(NAME) {
        Some(_) => hint.to_owned(),
        None => format!("install {NAME}, then {hint}"),
    }
}
