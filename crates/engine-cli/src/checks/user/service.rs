//! The service of a rootless user's runner: delegated cgroup and confinement.

use std::fs;
use std::path::{Path, PathBuf};

use oci_hooks_host::privilege::DelegatedCgroup;

use super::super::HostCheck;
use super::super::host::CgroupVersions;
use super::ids::has_no_new_privileges;
use super::nesting::{is_in_container, unit_options_hiding_proc};

/// Cgroup controllers that common limits of containers need.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

/// Drop-in for systemd that delegates a service's cgroup.
const DROP_IN: &str = include_str!("../../../systemd/oci-hooks-delegate.conf");

const LOST: &str = "--memory, --cpus and --pids-limit of workflows and the limits of the settings are not enforced";

/// The process whose cgroup and service are checked: the runner, or this process.
#[derive(Clone, Copy, Debug)]
pub struct CheckedProcess<'a> {
    pub pid: u32,
    pub name: &'a str,
}

/// Checks the delegated cgroup of a process.
pub fn limits(process: CheckedProcess<'_>) -> HostCheck {
    const NAME: &str = "limits in force";
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    if CgroupVersions::of(&mounts) != CgroupVersions::Unified {
        return HostCheck::warn(
            NAME,
            format!("none: rootless limits need cgroups v2; {LOST}"),
            "boot with systemd.unified_cgroup_hierarchy=1",
        );
    }
    let name = process.name;
    let own = cgroup(process.pid);
    let Some(delegated) = DelegatedCgroup::of_process(process.pid) else {
        let own = own.unwrap_or_default();
        return HostCheck::warn(
            NAME,
            format!("none: the cgroup {own} of {name} is not delegated to this user; {LOST}"),
            delegate(unit(&own)),
        );
    };
    let has = delegated.controllers();
    let missing: Vec<_> = CONTROLLERS.into_iter().filter(|name| !has.contains(name)).collect();
    if missing.is_empty() {
        return HostCheck::ok(NAME, format!("{}, delegated to {name}", has.join(", ")));
    }
    let found =
        format!("not delegated to {name}: {}; these limits are not enforced", missing.join(", "));
    HostCheck::warn(NAME, found, delegate(unit(&own.unwrap_or_default())))
}

/// Returns the path of a process's cgroup v2.
fn cgroup(pid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

/// Returns the systemd unit of a cgroup, if it is a system service.
fn unit(cgroup: &str) -> Option<&str> {
    if cgroup.contains("/user.slice/") {
        return None;
    }
    cgroup.split('/').rfind(|part| part.ends_with(".service"))
}

/// Returns the commands that delegate a service's cgroup.
fn delegate(unit: Option<&str>) -> String {
    let unit = unit.unwrap_or("UNIT");
    let dir = format!("/etc/systemd/system/{unit}.d");
    let lines = DROP_IN.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let text = lines.fold(String::new(), |text, line| text + line + "\\n");
    format!(
        "sudo mkdir -p {dir}\n\
         printf '{text}' | sudo tee {dir}/oci-hooks-delegate.conf\n\
         sudo systemctl daemon-reload\n\
         sudo systemctl restart {unit}"
    )
}

/// Checks the service of a runner for options that break jobs. `run` is the run directory of jobs; `needs_ids` is set
/// if newuidmap maps ids.
pub fn confinement(process: CheckedProcess<'_>, run: &Path, needs_ids: bool) -> Vec<HostCheck> {
    const NAME: &str = "service";
    let dir = PathBuf::from(format!("/proc/{}", process.pid));
    let name = process.name;
    let mut checks = Vec::new();
    if needs_ids && has_no_new_privileges(&dir.join("status")) {
        checks.push(HostCheck::fail(
            NAME,
            format!("{name} may not gain privileges, and newuidmap needs them"),
            "NoNewPrivileges=no in the unit of the service; RestrictSUIDSGID=, SystemCallFilter= and the like \
             also set it",
        ));
    }
    let namespace = |dir: &Path| fs::read_link(dir.join("ns/mnt")).ok();
    let (own, theirs) = (namespace(Path::new("/proc/self")), namespace(&dir));
    let is_apart = own.is_some() && theirs.is_some() && own != theirs;
    // In this process's mount namespace, the check of user namespaces names the cause.
    let is_same = own.is_some() && own == theirs;
    if !is_same && !is_in_container() {
        let mounts = fs::read_to_string(dir.join("mountinfo")).unwrap_or_default();
        checks.extend(hidden_proc_hint(&mounts).map(|hint| {
            let found = format!(
                "{name} sees parts of /proc read-only or not at all, so its containers cannot mount theirs"
            );
            HostCheck::fail(NAME, found, hint)
        }));
    }
    if is_apart && run.starts_with("/tmp") {
        checks.push(HostCheck::warn(
            NAME,
            format!(
                "{name} has a private /tmp: ps, logs and prune do not see its jobs, whose records are in {}",
                run.display()
            ),
            "PrivateTmp=no in the unit of the service, or name another directory as `run` under [store]",
        ));
    }
    if cgroup(process.pid).is_some_and(|path| path.contains("/session-")) {
        checks.push(HostCheck::warn(
            NAME,
            format!("{name} runs in a login session, and ends with it"),
            "install it as a service: sudo ./svc.sh install USER in the runner's directory",
        ));
    }
    checks
}

/// Returns a hint if options of this process's systemd unit hide parts of `/proc`.
pub fn missing_in_unit() -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let hint = hidden_proc_hint(&mounts)?;
    Some(format!("parts of /proc are read-only or hidden: {hint}"))
}

/// Returns a hint with the unit options to turn off if they hide parts of `/proc`, given the
/// `mountinfo` of a process of the unit.
fn hidden_proc_hint(mounts: &str) -> Option<String> {
    let options = unit_options_hiding_proc(mounts);
    let off: Vec<_> = options.iter().map(|option| format!("{option}no")).collect();
    (!off.is_empty()).then(|| format!("{} in the unit of the service", off.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_name_matches_the_system() {
        let name = "actions.runner.a-b.c.service";
        assert_eq!(unit(&format!("/system.slice/{name}")), Some(name));
        assert_eq!(unit(&format!("/system.slice/{name}/runner")), Some(name));
        assert_eq!(unit("/user.slice/user-7.slice/session-1.scope"), None);
        assert_eq!(unit("/user.slice/user-7.slice/user@7.service/app.slice/a.service"), None);
        assert!(
            delegate(Some(name)).contains("'[Service]\\nDelegate=yes\\n"),
            "{}",
            delegate(None)
        );
        assert!(delegate(Some(name)).ends_with(&format!("sudo systemctl restart {name}")));
    }

    #[test]
    fn options_that_hide_proc_are_turned_off() {
        let whole = "9 2 0:5 / /proc rw - proc proc rw\n";
        assert_eq!(hidden_proc_hint(whole), None);
        let hint = hidden_proc_hint(&format!("{whole}8 9 0:5 /sys /proc/sys ro - proc proc rw\n"));
        assert_eq!(hint.unwrap(), "ProtectKernelTunables=no in the unit of the service");
    }

    #[test]
    fn own_process_is_inspected_like_any_other() {
        let process = CheckedProcess { pid: std::process::id(), name: "this test" };
        // The run directory is reported only if it is in a private /tmp.
        let found =
            serde_json::to_string(&confinement(process, Path::new("/elsewhere"), false)).unwrap();
        assert!(!found.contains("/elsewhere"), "{found}");
        assert!(serde_json::to_value(limits(process)).unwrap()["name"] == "limits in force");
    }
}
