//! Who runs the hook, and the runners of this machine.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use oci_hooks::program::checks::{Check, buildah};
use oci_hooks::program::settings_file::Loaded;
use oci_hooks::sys::users;

use super::{limits, names};
use crate::settings::Settings;

/// The runner's program that waits for jobs.
const LISTENER: &str = "Runner.Listener";
/// The variable that names the hook.
const VARIABLE: &str = "ACTIONS_RUNNER_CONTAINER_HOOKS";

pub fn user() -> Check {
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        return Check::ok("user", "root");
    }
    let uid = uid.as_raw();
    let name = users::name(uid).map_or_else(|| uid.to_string(), |name| format!("{name} ({uid})"));
    Check::ok("user", format!("{name}, whose containers need no root"))
}

pub fn settings(loaded: &Loaded<Settings>) -> Check {
    Check::ok("settings", loaded.files_named().unwrap_or_else(|| "defaults".to_owned()))
}

/// Looks at the runners of root, and names those of other users.
pub fn checks_for_root(settings: &Settings) -> Vec<Check> {
    let mut checks = vec![buildah::check(settings.build.buildah.as_os_str()), subordinate_ids()];
    checks.extend(checks_of(settings, &listeners()));
    checks
}

/// Looks at the runners of the user who runs this; those of others are said to be there.
pub fn checks_for_user(settings: &Settings) -> Vec<Check> {
    let mut checks = vec![buildah::check(settings.build.buildah.as_os_str())];
    checks.extend(checks_of(settings, &listeners()));
    checks
}

/// Returns the runners of the user who runs this that wait for jobs: the process, and what to call it.
pub fn own_listeners() -> Vec<(u32, String)> {
    let uid = rustix::process::geteuid().as_raw();
    let own = listeners().into_iter().filter(|listener| listener.uid == uid);
    own.map(|listener| (listener.pid, format!("the runner (process {})", listener.pid))).collect()
}

fn checks_of(settings: &Settings, listeners: &[Listener]) -> Vec<Check> {
    let mut checks = Vec::new();
    if listeners.is_empty() {
        checks.push(Check::ok("runners", "none is running"));
    }
    checks.extend(listeners.iter().map(runner));
    let looked_at = || listeners.iter().filter(|listener| listener.is_looked_at());
    checks.extend(
        looked_at()
            .filter(|listener| listener.script().is_some())
            .map(|listener| names::check(settings, listener.pid)),
    );
    let programs = looked_at().filter_map(|one| fs::read_link(one.path("exe")).ok());
    checks.extend(
        programs.filter_map(|program| limits::work_directory(&program, &settings.store.root)),
    );
    checks
}

/// Containers of root do without; they are for those of other users.
fn subordinate_ids() -> Check {
    let count = |path| fs::read_to_string(path).map_or(0, |text| text.lines().count());
    let (users, groups) = (count("/etc/subuid"), count("/etc/subgid"));
    Check::ok("subordinate ids", format!("of {users} users, {groups} groups; not needed for root"))
}

/// A runner that waits for jobs.
struct Listener {
    pid: u32,
    uid: u32,
    /// None if this user may not see it.
    environment: Option<HashMap<OsString, OsString>>,
}

impl Listener {
    /// Returns the path of a file that the kernel has of the process.
    fn path(&self, name: &str) -> PathBuf {
        Path::new("/proc").join(self.pid.to_string()).join(name)
    }

    fn script(&self) -> Option<&Path> {
        let script = self.environment.as_ref()?.get(OsStr::new(VARIABLE))?;
        (!script.is_empty()).then_some(Path::new(script))
    }

    /// Returns whether its jobs are those of whoever runs this: an ordinary user's containers are theirs alone.
    fn is_looked_at(&self) -> bool {
        rustix::process::geteuid().as_raw() == self.uid
    }
}

fn listeners() -> Vec<Listener> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| listener(entry.file_name().to_str()?.parse().ok()?)).collect()
}

fn listener(pid: u32) -> Option<Listener> {
    let dir = PathBuf::from(format!("/proc/{pid}"));
    // The kernel keeps 15 bytes of it.
    if fs::read_to_string(dir.join("comm")).ok()?.trim_end() != LISTENER {
        return None;
    }
    let owner = fs::metadata(&dir).ok()?;
    let environment = fs::read(dir.join("environ")).ok().map(|bytes| variables(&bytes));
    Some(Listener { pid, uid: owner.uid(), environment })
}

fn variables(environment: &[u8]) -> HashMap<OsString, OsString> {
    let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    let variables = environment.split(|&byte| byte == 0).filter_map(|variable| {
        let equals = variable.iter().position(|&byte| byte == b'=')?;
        Some((text(&variable[..equals]), text(&variable[equals + 1..])))
    });
    variables.collect()
}

fn runner(listener: &Listener) -> Check {
    let Listener { pid, uid, .. } = listener;
    let whose = format!("process {pid} of user {uid}");
    if listener.environment.is_none() {
        return Check::ok("runner", format!("{whose} is not looked at: run doctor as that user"));
    }
    let Some(script) = listener.script() else {
        return Check::warn(
            "runner",
            format!("{whose} has no {VARIABLE}"),
            "put the line that `container-hook install` prints into its .env, and restart it",
        );
    };
    let name = script.display();
    if !script.is_file() {
        let hint = "container-hook install DIR, and the line it prints";
        return Check::fail("runner", format!("{whose} calls {name}, which is not there"), hint);
    }
    let found = match listener.is_looked_at() {
        true => format!("{whose} calls {name}"),
        false => format!("{whose} calls {name}, without root: run doctor as that user"),
    };
    Check::ok("runner", found)
}
