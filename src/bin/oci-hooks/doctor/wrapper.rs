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
    name.starts_with(NAME) || calling_line(runtime, host).is_some()
}

/// Returns the line that names the wrapper, if the runtime is a script.
fn calling_line(runtime: &str, host: &DoctorHost) -> Option<String> {
    let path = match runtime.starts_with('/') {
        true => Some(PathBuf::from(runtime)),
        false => host.program(runtime),
    };
    let text = path.and_then(|path| host.read(&path).ok().flatten())?;
    let is_script = text.len() <= MAX_SCRIPT_BYTES && text.starts_with("#!");
    let is_call = |line: &&str| line.contains(NAME) && !line.trim_start().starts_with('#');
    text.lines().find(is_call).filter(|_| is_script).map(str::to_owned)
}

/// Returns the path or name by which a line of a script calls the wrapper; `None` if the path is relative, or the shell
/// has to expand it, as in `$DIR/oci-hooks-runtime`.
fn wrapper_in(line: &str) -> Option<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    let at = line.find(NAME)?;
    let before = line[..at].trim_end_matches(is_part);
    let end = line[at..].find(|c| !is_part(c)).map_or(line.len(), |end| at + end);
    let is_whole =
        before.chars().next_back().is_none_or(|c| c.is_whitespace() || "\"'=".contains(c));
    let word = &line[before.len()..end];
    (is_whole && (word.starts_with('/') || !word.contains('/'))).then_some(word)
}

/// The wrapper's consumer and hook directories.
pub struct WrapperConfig {
    pub consumer: Consumer,
    /// Hook directories, in order of increasing precedence.
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

/// Checks that the wrapper that an engine calls can be run. `by` is the setting that names it.
pub fn check(name: &'static str, runtime: &str, by: &str, host: &DoctorHost) -> HostCheck {
    let line = calling_line(runtime, host);
    let called = line.as_deref().and_then(wrapper_in);
    for program in [Some(runtime), called].into_iter().flatten() {
        let Some((problem, hint)) = find_problem(program, host) else { continue };
        let found = format!("calls {runtime} ({by}): {program} {problem}");
        // The engine may search other directories than those of this process.
        return match program.starts_with('/') {
            true => HostCheck::fail(name, format!("{found}, so no container starts"), hint),
            false => HostCheck::warn(name, found, hint),
        };
    }
    let config = config(host);
    let dirs: Vec<_> = config.dirs.iter().map(|dir| dir.display().to_string()).collect();
    let (dirs, by_setting) = (dirs.join(", "), config.dirs_source);
    let found = format!("calls {NAME} ({by}), which reads {dirs} ({by_setting})");
    HostCheck::ok(name, found)
}

/// Returns the reason why a program cannot be run, and a hint; `None` if it can be run, or if that is unknown.
fn find_problem(program: &str, host: &DoctorHost) -> Option<(&'static str, String)> {
    if !program.starts_with('/') {
        let hint = format!("install {NAME}, or write its absolute path in that setting");
        return host.program(program).is_none().then_some(("is not in PATH", hint));
    }
    let path = Path::new(program);
    match host.exists(path)? {
        false => Some(("does not exist", format!("install {NAME} as {program}"))),
        true if host.is_program(path) => None,
        true => Some(("is not executable", format!("chmod +x {}", host.root.join(path).display()))),
    }
}

/// Returns a hint that names the wrapper, after the hint to install it.
pub fn with_install_hint(hint: &str, host: &DoctorHost) -> String {
    match host.program(NAME) {
        Some(_) => hint.to_owned(),
        None => format!("install {NAME}, then {hint}"),
    }
}

#[test]
fn wrapper_is_found_in_lines_of_scripts() {
    for (line, expected) in [
        ("OCI_HOOKS_DIRS=/a exec oci-hooks-runtime \"$@\"", Some("oci-hooks-runtime")),
        ("exec '/opt/oci-hooks-runtime-1.2' \"$@\"", Some("/opt/oci-hooks-runtime-1.2")),
        ("runtime=/opt/oci-hooks-runtime", Some("/opt/oci-hooks-runtime")),
        ("runtime=$(command -v oci-hooks-runtime)", Some("oci-hooks-runtime")),
        ("exec \"$DIR/oci-hooks-runtime\"", None),
        ("exec ${DIR}/oci-hooks-runtime", None),
        ("exec ~/bin/oci-hooks-runtime", None),
        ("exec ./oci-hooks-runtime", None),
    ] {
        assert_eq!(wrapper_in(line), expected, "{line}");
    }
}
