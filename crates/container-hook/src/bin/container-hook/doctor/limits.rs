//! Checks for resources that jobs can use without a limit.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use oci_hooks_engine_cli::checks::HostCheck;
use serde::Deserialize;

use crate::settings::HookFileSettings;

/// The settings file of a runner.
const RUNNER_SETTINGS: &str = ".runner";

/// Reports limits that are not set, and resources that cannot be limited. Only root can limit disks.
pub fn report_missing_limits(settings: &HookFileSettings, by_root: bool) -> HostCheck {
    let (limits, max) = (&settings.limits, &settings.policy.max);
    let has_memory = limits.memory.or(max.memory).or(max.job.memory).is_some();
    let has_pids =
        limits.pids.is_none_or(|limit| limit >= 0) || max.pids.or(max.job.pids).is_some();
    let missing = join_names(&[
        (!has_memory, "memory"),
        (!has_pids, "processes of a container"),
        (by_root && limits.disk.is_none(), "root file systems"),
        (by_root && limits.volumes.is_none(), "named volumes"),
    ]);
    let never = join_names(&[
        (settings.runtime.systemd_cgroup, "processes of all containers"),
        (!by_root, "root file systems"),
        (!by_root, "named volumes"),
        (settings.template.file.is_some(), "volumes of the pod template"),
        (true, "work directories"),
        (true, "layers of Dockerfile actions"),
    ]);
    if missing.is_empty() {
        return HostCheck::ok("limits", format!("set; cannot be set for {never}"));
    }
    let keys = if by_root { "memory, pids, disk and volumes" } else { "memory and pids" };
    HostCheck::warn(
        "limits",
        format!("not set for {missing}; cannot be set for {never}"),
        format!(
            "set {keys} under [limits] of the settings: otherwise a job can use all resources of this machine"
        ),
    )
}

fn join_names(all: &[(bool, &str)]) -> String {
    let names: Vec<_> = all.iter().filter_map(|(is, name)| is.then_some(*name)).collect();
    names.join(", ")
}

/// Reports limits that only root can enforce.
pub fn report_root_limits(settings: &HookFileSettings) -> Option<HostCheck> {
    let limits = &settings.limits;
    let names: Vec<_> = [("disk", limits.disk), ("volumes", limits.volumes)]
        .into_iter()
        .filter_map(|(name, limit)| limit.map(|_| name))
        .collect();
    (!names.is_empty()).then(|| {
        HostCheck::fail(
            "limited disks",
            format!(
                "{} under [limits]: only root can mount disks of a limited size",
                names.join(" and ")
            ),
            "remove these keys, or limit the user's files by a quota of the file system",
        )
    })
}

/// Warns if the work directory, whose size is not limited, is on the file system of `/` or the store.
/// `program` is the runner's listener.
pub fn work_directory(program: &Path, store: &Path) -> Option<HostCheck> {
    let work = work(program.parent()?.parent()?)?;
    let device =
        |path: &Path| path.ancestors().find_map(|path| path.metadata().ok()).map(|m| m.dev());
    let shared = [Path::new("/"), store].into_iter().find(|other| device(other) == device(&work));
    let work = work.display();
    Some(match shared {
        None => HostCheck::ok("work directory", format!("{work} is on its own file system")),
        Some(other) => HostCheck::warn(
            "work directory",
            format!("a job can fill the file system of {} through {work}", other.display()),
            "put the work directory on its own file system",
        ),
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RunnerSettings {
    work_folder: PathBuf,
}

/// Returns the work directory of the runner installed in `home`, if there is one.
fn work(home: &Path) -> Option<PathBuf> {
    let text = fs::read_to_string(home.join(RUNNER_SETTINGS)).ok()?;
    // The runner writes a byte order mark.
    let text = text.trim_start_matches('\u{feff}');
    let settings: RunnerSettings = serde_json::from_str(text).ok()?;
    Some(home.join(settings.work_folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_limits_are_named() {
        let mut settings = HookFileSettings::default();
        let never = "cannot be set for work directories, layers of Dockerfile actions";
        let check = report_missing_limits(&settings, true);
        assert!(check.is_warning() && check.hint().contains("disk and volumes"), "{check:?}");
        let expected = format!("not set for memory, root file systems, named volumes; {never}");
        assert_eq!(check.finding(), expected);
        let check = report_missing_limits(&settings, false);
        assert!(check.is_warning() && check.hint().starts_with("set memory and pids under"));
        assert_eq!(
            check.finding(),
            "not set for memory; cannot be set for root file systems, named volumes, work \
             directories, layers of Dockerfile actions"
        );
        settings.limits =
            toml::from_str("disk = \"1GiB\"\nvolumes = \"1GiB\"\npids = -1\n").unwrap();
        let expected = format!("not set for memory, processes of a container; {never}");
        assert_eq!(report_missing_limits(&settings, true).finding(), expected);
        settings.limits.memory = settings.limits.disk;
        settings.limits.pids = Some(100);
        let check = report_missing_limits(&settings, true);
        assert!(!check.is_warning(), "{check:?}");
        assert_eq!(check.finding(), format!("set; {never}"));
    }

    #[test]
    fn work_directory_outside_the_store_is_named() {
        let home = tempfile::tempdir().unwrap();
        let program = home.path().join("bin/Runner.Listener");
        assert!(work_directory(&program, home.path()).is_none());
        let text = "\u{feff}{\"workFolder\": \"_work\", \"agentName\": \"a\"}";
        fs::write(home.path().join(".runner"), text).unwrap();
        let check = work_directory(&program, home.path()).unwrap();
        assert!(check.is_warning(), "{check:?}");
        let said = check.finding();
        assert!(said.starts_with("a job can fill the file system of /"), "{said}");
        assert!(said.ends_with("/_work"), "{said}");
        // /proc is a file system of its own.
        let check = work_directory(&program, Path::new("/proc")).unwrap();
        assert!(!check.finding().contains("/proc"), "{check:?}");
    }
}
