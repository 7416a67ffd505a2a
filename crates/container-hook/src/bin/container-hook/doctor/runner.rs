//! Checks the user of the hook, and the runners of this machine.

use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use oci_hooks_engine::runtime::RuntimeKind;
use oci_hooks_engine_cli::checks::{HostCheck, buildah, runtimes};
use oci_hooks_engine_cli::settings_file::LoadedSettings;
use oci_hooks_host::processes::{ProcessSnapshot, is_in_nested_namespace};
use oci_hooks_host::users;

use super::{limits, names};
use crate::settings::HookFileSettings;

/// The runner's program that waits for jobs.
const LISTENER: &str = "Runner.Listener";
/// Variable with the path of the hook.
const VARIABLE: &str = "ACTIONS_RUNNER_CONTAINER_HOOKS";

pub fn user() -> HostCheck {
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        return HostCheck::ok("user", "root");
    }
    let uid = uid.as_raw();
    let name = users::user_by_id(uid)
        .map_or_else(|| uid.to_string(), |user| format!("{} ({uid})", user.name));
    HostCheck::ok("user", format!("{name}: containers run without root"))
}

pub fn settings(loaded: &LoadedSettings<HookFileSettings>) -> HostCheck {
    HostCheck::ok("settings", loaded.files_named().unwrap_or_else(|| "defaults".to_owned()))
}

/// Checks the runners of root, and lists those of other users.
pub fn checks_for_root(settings: &HookFileSettings) -> Vec<HostCheck> {
    let mut checks = vec![buildah::check(settings.build.buildah.as_os_str()), subordinate_ids()];
    checks.extend(checks_of(settings, &listeners()));
    checks
}

/// Checks the runners of this user, and lists those of other users.
pub fn checks_for_user(settings: &HookFileSettings) -> Vec<HostCheck> {
    let mut checks = vec![buildah::check(settings.build.buildah.as_os_str())];
    checks.extend(checks_of(settings, &listeners()));
    checks
}

/// Returns the waiting runners of this user: process id, and name for messages.
pub fn own_listeners() -> Vec<(u32, String)> {
    let uid = rustix::process::geteuid().as_raw();
    let own = listeners().into_iter().filter(|listener| listener.uid == uid);
    own.map(|listener| (listener.pid, format!("the runner (process {})", listener.pid))).collect()
}

fn checks_of(settings: &HookFileSettings, listeners: &[RunnerListener]) -> Vec<HostCheck> {
    let mut checks = Vec::new();
    if listeners.is_empty() {
        checks.push(HostCheck::ok("runners", "no runner is running"));
    }
    checks.extend(listeners.iter().map(runner));
    let own_listeners = || listeners.iter().filter(|listener| listener.is_own());
    checks.extend(
        own_listeners()
            .filter(|listener| listener.script().is_some())
            .map(|listener| names::check(settings, listener.pid)),
    );
    let programs = own_listeners().filter_map(|one| fs::read_link(one.path("exe")).ok());
    checks.extend(
        programs.filter_map(|program| limits::work_directory(&program, &settings.store.root)),
    );
    checks
}

/// Reports the subordinate ids of other users; root's containers need none.
fn subordinate_ids() -> HostCheck {
    let count = |path| fs::read_to_string(path).map_or(0, |text| text.lines().count());
    let (users, groups) = (count("/etc/subuid"), count("/etc/subgid"));
    HostCheck::ok(
        "subordinate ids",
        format!("{users} entries in /etc/subuid, {groups} in /etc/subgid; root needs none"),
    )
}

/// A runner that waits for jobs.
struct RunnerListener {
    pid: u32,
    uid: u32,
    /// `None` without permission to read it.
    environment: Option<HashMap<OsString, OsString>>,
}

impl RunnerListener {
    /// Returns the path of a file in `/proc/PID`.
    fn path(&self, name: &str) -> PathBuf {
        Path::new("/proc").join(self.pid.to_string()).join(name)
    }

    fn script(&self) -> Option<&Path> {
        let script = self.environment.as_ref()?.get(OsStr::new(VARIABLE))?;
        (!script.is_empty()).then_some(Path::new(script))
    }

    /// Returns whether the runner runs as this user.
    fn is_own(&self) -> bool {
        rustix::process::geteuid().as_raw() == self.uid
    }
}

fn listeners() -> Vec<RunnerListener> {
    ProcessSnapshot::ids().filter_map(listener).collect()
}

fn listener(pid: u32) -> Option<RunnerListener> {
    let dir = PathBuf::from(format!("/proc/{pid}"));
    // The kernel truncates names to 15 bytes.
    if fs::read_to_string(dir.join("comm")).ok()?.trim_end() != LISTENER {
        return None;
    }
    // Processes of jobs can have this name, too.
    if is_in_nested_namespace(pid) {
        return None;
    }
    let owner = fs::metadata(&dir).ok()?;
    let environment = ProcessSnapshot::of(pid)?.environment().map(|bytes| variables(&bytes));
    Some(RunnerListener { pid, uid: owner.uid(), environment })
}

fn variables(environment: &[u8]) -> HashMap<OsString, OsString> {
    let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    let variables = environment.split(|&byte| byte == 0).filter_map(|variable| {
        let equals = variable.iter().position(|&byte| byte == b'=')?;
        Some((text(&variable[..equals]), text(&variable[equals + 1..])))
    });
    variables.collect()
}

fn runner(listener: &RunnerListener) -> HostCheck {
    let RunnerListener { pid, uid, .. } = listener;
    let whose = format!("process {pid} of user {uid}");
    if listener.environment.is_none() {
        return HostCheck::ok(
            "runner",
            format!("{whose} was not checked: run doctor as that user"),
        );
    }
    let Some(script) = listener.script() else {
        return HostCheck::warn(
            "runner",
            format!("{whose} has no {VARIABLE} in its environment"),
            "put the line that `container-hook install` prints into the file .env of the runner, and restart the runner",
        );
    };
    let name = script.display();
    if !script.is_file() {
        let hint = "run `container-hook install DIR`, put the printed line into the file .env of the runner, and restart it";
        return HostCheck::fail(
            "runner",
            format!("{whose} calls {name}, which does not exist"),
            hint,
        );
    }
    let found = match listener.is_own() {
        true => format!("{whose} calls {name}"),
        false => format!("{whose} calls {name}, without root: run doctor as that user"),
    };
    HostCheck::ok("runner", found)
}

/// Checks the runtimes of some jobs: those of `[template.runtime-classes]` and `[policy.runtimes]`.
pub fn other_runtimes(settings: &HookFileSettings) -> Vec<HostCheck> {
    programs_of_other_runtimes(settings).into_iter().map(runtimes::check).collect()
}

fn programs_of_other_runtimes(settings: &HookFileSettings) -> BTreeSet<&Path> {
    let of_repositories = settings.policy.runtimes.values().map(Path::new);
    settings
        .template
        .runtime_classes
        .values()
        .map(PathBuf::as_path)
        .chain(of_repositories)
        .collect()
}

/// Starts a container with each runtime of the settings that can run jobs.
pub fn test_containers(settings: &HookFileSettings) -> Vec<HostCheck> {
    let default = settings.host().runtime().into_iter().map(|runtime| runtime.program);
    let others = programs_of_other_runtimes(settings).into_iter().map(Path::to_owned);
    let programs: BTreeSet<_> = default.chain(others).collect();
    let fit = programs.iter().filter(|program| RuntimeKind::of(program).unfit_for_jobs().is_none());
    fit.map(|program| runtimes::start(settings.host(), program)).collect()
}
