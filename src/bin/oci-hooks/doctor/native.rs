//! podman, buildah and CRI-O, which read hook files themselves.

use std::path::{Path, PathBuf};

use oci_hooks::hooks::consumer::{BUILDAH, CRIO, PODMAN};
use oci_hooks::hooks::directories::{
    ConfiguredDirs, DirectoriesError, read_configured, unread_dirs,
};
use oci_hooks::hooks::{self, Consumer, LoadOptions, PathCheck};
use oci_hooks_cli::check::HostCheck;
use oci_hooks_files::error::chain;
use oci_hooks_files::quantity::format_count;
use serde::Deserialize;

use super::crio::{self, CrioConfig};
use super::host::{DoctorHost, version_in};
use crate::error::Diagnostic;

/// The fields of `podman info` that this program reads.
#[derive(Deserialize)]
struct PodmanInfo {
    host: PodmanHost,
    version: PodmanVersion,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodmanHost {
    #[serde(default)]
    service_is_remote: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PodmanVersion {
    version: String,
}

impl PodmanInfo {
    /// Runs `podman info`. Returns `None` if podman cannot be run or prints unexpected JSON, and its error message if
    /// it fails.
    fn query(podman: &Path, host: &DoctorHost) -> Result<Option<Self>, String> {
        match host.output(podman, &["info", "--format", "json"]) {
            Some(Ok(text)) => Ok(serde_json::from_str(&text).ok()),
            Some(Err(error)) => Err(format!("podman info: {error}")),
            None => Ok(None),
        }
    }
}

/// Returns the consumer for the podman that a shell would run; `None` if there is no podman.
pub fn podman_in_path() -> Option<Result<Consumer, String>> {
    let path = std::env::var_os("PATH")?;
    let programs = std::env::split_paths(&path).filter(|dir| dir.is_absolute());
    let host = DoctorHost::current();
    let podman = programs.map(|dir| dir.join("podman")).find(|program| host.is_program(program))?;
    Some(consumer_of(&podman, &host))
}

/// Returns the consumer for a podman, by the version that it prints, or the reason why that is unknown.
pub fn consumer_of(podman: &Path, host: &DoctorHost) -> Result<Consumer, String> {
    host.version(podman).map(|(major, _)| Consumer::of_podman(major))
}

/// Checks podman, and image builds with podman and buildah.
pub fn podman(host: &DoctorHost) -> Vec<HostCheck> {
    const NAME: &str = "podman";
    let podman = host.program(NAME);
    let mut consumer = PODMAN;
    let mut checks = Vec::new();
    if let Some(podman) = &podman {
        let info = PodmanInfo::query(podman, host);
        let found = info.as_ref().ok().and_then(Option::as_ref);
        let version = found.and_then(|info| version_in(&info.version.version));
        let known = version.map(|(major, _)| Consumer::of_podman(major));
        consumer = known.or_else(|| consumer_of(podman, host).ok()).unwrap_or(PODMAN);
        let configured = host.system(|system| read_configured(&consumer, system));
        match (info, configured) {
            (Ok(Some(info)), _) if info.host.service_is_remote => {
                let found = "runs containers on another machine, as `podman info` reports";
                return vec![HostCheck::warn(NAME, found, "run `oci-hooks doctor` there")];
            }
            (Err(found), Ok(_)) => checks.push(host.unreadable(NAME, NAME, found)),
            (_, configured) => {
                checks.extend(check_directories(NAME, &consumer, configured, host));
            }
        }
    }
    let read = host.system(|system| read_configured(&consumer, system)).map(|found| found.dirs);
    match (podman.is_some(), host.program("buildah").is_some()) {
        (true, true) => checks.extend(builds("podman build, buildah", read.ok(), host)),
        (true, false) => checks.extend(builds("podman build", read.ok(), host)),
        (false, true) => checks.extend(builds("buildah", None, host)),
        (false, false) => {}
    }
    checks
}

/// Checks CRI-O, if it is installed.
pub fn crio(host: &DoctorHost) -> Vec<HostCheck> {
    const NAME: &str = "CRI-O";
    if host.program("crio").is_none() {
        return Vec::new();
    }
    match CrioConfig::query(host) {
        Ok(config) => {
            check_directories(NAME, &CRIO, crio::directories(config.as_ref(), host), host)
        }
        Err(found) => vec![host.unreadable(NAME, "crio", found)],
    }
}

/// Checks the directories that a consumer reads, and hook files that it does not read.
fn check_directories(
    name: &'static str,
    consumer: &Consumer,
    configured: Result<ConfiguredDirs, DirectoriesError>,
    host: &DoctorHost,
) -> Vec<HostCheck> {
    let configured = match configured {
        Ok(configured) => configured,
        Err(error) => return vec![HostCheck::fail(name, chain(&error), error.hint())],
    };
    host.system(|system| {
        let unread = unread_dirs(&configured.dirs, system).into_iter().map(|dir| {
            let files = format_count(dir.files.len(), "hook file");
            let found = format!(
                "does not read {}, which has {files}; it {}",
                dir.path.display(),
                describe_directories(&configured)
            );
            HostCheck::fail(name, found, configured.to_read(&dir.path, consumer, system))
        });
        let mut checks: Vec<_> = unread.collect();
        if configured.dirs.is_empty() {
            let usual = hooks::consumer::OVERRIDE_DIR.as_ref();
            let hint = configured.to_read(usual, consumer, system);
            checks.push(HostCheck::fail(name, describe_directories(&configured), hint));
        } else if checks.is_empty() {
            checks.push(check_hooks_in_force(name, consumer, &configured, host));
        }
        checks
    })
}

/// Describes the directories of a consumer and the source of that setting.
fn describe_directories(configured: &ConfiguredDirs) -> String {
    let dirs: Vec<_> = configured.dirs.iter().map(|dir| dir.display().to_string()).collect();
    let dirs = if dirs.is_empty() { "no hook directory".to_owned() } else { dirs.join(", ") };
    format!("reads {dirs} ({})", configured.source)
}

/// Counts the hooks in force. Fails if a hook file prevents containers from starting, and warns of files that cannot
/// be used.
fn check_hooks_in_force(
    name: &'static str,
    consumer: &Consumer,
    configured: &ConfiguredDirs,
    host: &DoctorHost,
) -> HostCheck {
    let mut options = LoadOptions::for_consumer(consumer);
    options.dirs = configured.dirs.iter().map(|dir| host.root.join(dir)).collect();
    if !host.root.is_host() {
        // `hook.path` is a path in the mounted system, where the loader cannot look it up.
        options.path_check = PathCheck::Skip;
    }
    let loaded = hooks::load(&options);
    let mut lint = format!("oci-hooks lint --as {}", consumer.name);
    if !host.root.is_host() {
        let there = options.dirs.iter().filter(|dir| !loaded.missing_dirs.contains(dir));
        lint += " --content-only";
        lint.extend(there.map(|dir| format!(" --hooks-dir {}", dir.display())));
    }
    let hint = format!("correct the mistakes that `{lint}` reports");
    if let Some(problem) = loaded.problems.iter().find(|problem| problem.fatal) {
        let problem = Diagnostic::of_problem(problem);
        return HostCheck::fail(name, format!("cannot start containers: {problem}"), hint);
    }
    let found = format!(
        "{}: {}",
        describe_directories(configured),
        format_count(loaded.hooks.len(), "hook")
    );
    match loaded.problems.len() {
        0 => HostCheck::ok(name, found),
        skipped => {
            let skipped = format_count(skipped, "file");
            HostCheck::warn(name, format!("{found}, and {skipped} that cannot be used"), hint)
        }
    }
}

/// Checks image builds, to which podman's configuration does not apply.
fn builds(name: &'static str, podman: Option<Vec<PathBuf>>, host: &DoctorHost) -> Vec<HostCheck> {
    let Ok(configured) = host.system(|system| read_configured(&BUILDAH, system)) else {
        return Vec::new();
    };
    let missing = podman.unwrap_or_default();
    let mut missing = missing.iter().filter(|dir| !configured.dirs.contains(dir)).peekable();
    if host.is_rootless() {
        let found = "reads no hook directory, since it is not run by root";
        return vec![HostCheck::fail(name, found, "pass --hooks-dir DIR to each build")];
    }
    if missing.peek().is_some() {
        let missing: Vec<_> = missing.map(|dir| dir.display().to_string()).collect();
        let found = format!(
            "does not read {}; it {}",
            missing.join(", "),
            describe_directories(&configured)
        );
        let all = configured.dirs.iter().map(|dir| dir.display().to_string()).chain(missing);
        let options: Vec<_> = all.map(|dir| format!("--hooks-dir {dir}")).collect();
        return vec![HostCheck::fail(
            name,
            found,
            format!("pass {} to each build", options.join(" ")),
        )];
    }
    vec![check_hooks_in_force(name, &BUILDAH, &configured, host)]
}
