//! podman, buildah and CRI-O, which read hook files themselves.

use std::path::PathBuf;

use oci_hooks::hooks::consumer::{BUILDAH, CRIO, PODMAN, PODMAN_4};
use oci_hooks::hooks::directories::{ConfiguredDirs, configured, unread};
use oci_hooks::hooks::{self, Consumer, LoadOptions, PathCheck};
use oci_hooks::program::check::Check;
use oci_hooks::sys::error::chain;
use oci_hooks::sys::quantity::counted;

use super::host::Host;
use crate::error::Diagnostic;

/// Looks at podman, and at how it and buildah build images.
pub fn podman(host: &Host) -> Vec<Check> {
    let podman = host.program("podman");
    let is_4 = podman.as_ref().and_then(|path| host.version(path)).is_some_and(|v| v < (5, 0));
    let consumer = if is_4 { PODMAN_4 } else { PODMAN };
    let mut checks = match &podman {
        Some(_) => checks("podman", &consumer, host),
        None => Vec::new(),
    };
    let read = host.system(|system| configured(&consumer, system)).map(|found| found.dirs);
    match (podman.is_some(), host.program("buildah").is_some()) {
        (true, true) => checks.extend(builds("podman build, buildah", read.ok(), host)),
        (true, false) => checks.extend(builds("podman build", read.ok(), host)),
        (false, true) => checks.extend(builds("buildah", None, host)),
        (false, false) => {}
    }
    checks
}

/// Looks at CRI-O, if it is installed.
pub fn crio(host: &Host) -> Vec<Check> {
    host.program("crio").map(|_| checks("CRI-O", &CRIO, host)).unwrap_or_default()
}

/// Looks at what a consumer reads, and at hook files that it does not read.
fn checks(name: &'static str, consumer: &Consumer, host: &Host) -> Vec<Check> {
    let configured = match host.system(|system| configured(consumer, system)) {
        Ok(configured) => configured,
        Err(error) => return vec![Check::fail(name, chain(&error), error.hint())],
    };
    host.system(|system| {
        let unread = unread(&configured.dirs, system).into_iter().map(|dir| {
            let files = counted(dir.files.len(), "hook file");
            let found = format!(
                "does not read {}, which has {files}; it {}",
                dir.path.display(),
                reads(&configured)
            );
            Check::fail(name, found, configured.to_read(&dir.path, consumer, system))
        });
        let mut checks: Vec<_> = unread.collect();
        if configured.dirs.is_empty() {
            let usual = hooks::consumer::OVERRIDE_DIR.as_ref();
            let hint = configured.to_read(usual, consumer, system);
            checks.push(Check::fail(name, reads(&configured), hint));
        } else if checks.is_empty() {
            checks.push(in_force(name, consumer, &configured, host));
        }
        checks
    })
}

/// Says which directories are read, and what says so.
fn reads(configured: &ConfiguredDirs) -> String {
    let dirs: Vec<_> = configured.dirs.iter().map(|dir| dir.display().to_string()).collect();
    let dirs = if dirs.is_empty() { "no hook directory".to_owned() } else { dirs.join(", ") };
    format!("reads {dirs}, by {}", configured.source)
}

/// Counts the hooks in force, unless a file keeps containers from starting.
fn in_force(
    name: &'static str,
    consumer: &Consumer,
    configured: &ConfiguredDirs,
    host: &Host,
) -> Check {
    let mut options = LoadOptions::for_consumer(consumer);
    options.dirs = configured.dirs.iter().map(|dir| host.root.join(dir)).collect();
    if !host.root.is_host() {
        // Programs are where the system is not.
        options.path_check = PathCheck::Skip;
    }
    let loaded = hooks::load(&options);
    let hint = format!("fix it: `oci-hooks lint --as {}` finds all mistakes", consumer.name);
    if let Some(problem) = loaded.problems.iter().find(|problem| problem.fatal) {
        let problem = Diagnostic::of_problem(problem);
        return Check::fail(name, format!("cannot start containers: {problem}"), hint);
    }
    let found = format!("{}: {}", reads(configured), counted(loaded.hooks.len(), "hook"));
    match loaded.problems.len() {
        0 => Check::ok(name, found),
        skipped => {
            let skipped = counted(skipped, "file");
            Check::warn(name, format!("{found}, and {skipped} that cannot be used"), hint)
        }
    }
}

/// Looks at containers that build images: podman's configuration says nothing about them.
fn builds(name: &'static str, podman: Option<Vec<PathBuf>>, host: &Host) -> Vec<Check> {
    let Ok(configured) = host.system(|system| configured(&BUILDAH, system)) else {
        return Vec::new();
    };
    let missing = podman.unwrap_or_default();
    let mut missing = missing.iter().filter(|dir| !configured.dirs.contains(dir)).peekable();
    if host.is_rootless() {
        let found = "reads no hook directory, since it is not run by root";
        return vec![Check::fail(name, found, "pass --hooks-dir DIR to each build")];
    }
    if missing.peek().is_some() {
        let missing: Vec<_> = missing.map(|dir| dir.display().to_string()).collect();
        let found = format!("does not read {}; it {}", missing.join(", "), reads(&configured));
        let all = configured.dirs.iter().map(|dir| dir.display().to_string()).chain(missing);
        let options: Vec<_> = all.map(|dir| format!("--hooks-dir {dir}")).collect();
        return vec![Check::fail(name, found, format!("pass {} to each build", options.join(" ")))];
    }
    vec![in_force(name, &BUILDAH, &configured, host)]
}
