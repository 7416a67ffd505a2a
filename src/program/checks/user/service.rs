//! The service that an ordinary user's runner is: what it was given, and what is kept from it.

use std::fs;
use std::path::{Path, PathBuf};

use super::super::Check;
use super::super::host::Cgroups;
use super::ids::has_no_new_privileges;
use crate::sys::privilege::cgroup::Delegated;

/// The controllers that limits of containers need most.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

/// What gives a service its cgroup.
const DROP_IN: &str = include_str!("../../../../contrib/systemd/oci-hooks-delegate.conf");

/// What is lost without them.
const LOST: &str =
    "--memory, --cpus and --pids-limit of workflows and the limits of the settings do not hold";

/// A process of the user whose containers are looked at: the runner, or this one.
#[derive(Clone, Copy, Debug)]
pub struct Process<'a> {
    pub pid: u32,
    /// Who it is, in a sentence.
    pub name: &'a str,
}

/// Looks at the cgroup that a process has for what it starts.
pub fn limits(process: Process<'_>) -> Check {
    const NAME: &str = "limits in force";
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    if Cgroups::of(&mounts) != Cgroups::Unified {
        return Check::warn(
            NAME,
            format!("none: users who are not root get no cgroups of version 1; {LOST}"),
            "boot with systemd.unified_cgroup_hierarchy=1",
        );
    }
    let name = process.name;
    let own = cgroup(process.pid);
    let Some(delegated) = Delegated::of_process(process.pid) else {
        let own = own.unwrap_or_default();
        return Check::warn(
            NAME,
            format!("none: the cgroup {own} of {name} was not delegated to this user; {LOST}"),
            delegate(unit(&own)),
        );
    };
    let has = delegated.controllers();
    let missing: Vec<_> = CONTROLLERS.into_iter().filter(|name| !has.contains(name)).collect();
    if missing.is_empty() {
        return Check::ok(NAME, format!("{}, delegated to {name}", has.join(", ")));
    }
    let found =
        format!("{name} was delegated no {}: limits of these do not hold", missing.join(", "));
    Check::warn(NAME, found, delegate(unit(&own.unwrap_or_default())))
}

/// Returns the path of a process's cgroup of version 2.
fn cgroup(pid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

/// Returns the unit of systemd that a cgroup is in, if it is a service of the system.
fn unit(cgroup: &str) -> Option<&str> {
    if cgroup.contains("/user.slice/") {
        return None;
    }
    cgroup.split('/').rfind(|part| part.ends_with(".service"))
}

/// Returns how a service is given its cgroup.
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

/// Looks for what the service of a runner keeps from it: `run` is where jobs have their records, `needs_ids`
/// says whether ids are mapped by programs with more privilege than it.
pub fn confinement(process: Process<'_>, run: &Path, needs_ids: bool) -> Vec<Check> {
    const NAME: &str = "service";
    let dir = PathBuf::from(format!("/proc/{}", process.pid));
    let name = process.name;
    let mut checks = Vec::new();
    if needs_ids && has_no_new_privileges(&dir.join("status")) {
        checks.push(Check::fail(
            NAME,
            format!("{name} may not gain privileges, and newuidmap needs them"),
            "NoNewPrivileges=no in the unit of the service; RestrictSUIDSGID=, SystemCallFilter= and the like \
             turn it on",
        ));
    }
    let namespace = |dir: &Path| fs::read_link(dir.join("ns/mnt")).ok();
    let (own, theirs) = (namespace(Path::new("/proc/self")), namespace(&dir));
    let is_apart = own.is_some() && theirs.is_some() && own != theirs;
    if is_apart && run.starts_with("/tmp") {
        checks.push(Check::warn(
            NAME,
            format!(
                "{name} has a /tmp of its own: ps, logs and prune do not see its jobs, whose records are in {}",
                run.display()
            ),
            "PrivateTmp=no in the unit of the service, or name another directory as `run` under [store]",
        ));
    }
    if cgroup(process.pid).is_some_and(|path| path.contains("/session-")) {
        checks.push(Check::warn(
            NAME,
            format!("{name} is part of a login, and ends with it"),
            "install it as a service: sudo ./svc.sh install USER in the runner's directory",
        ));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_is_that_of_the_system() {
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
    fn this_process_is_looked_at_like_any_other() {
        let process = Process { pid: std::process::id(), name: "this test" };
        // Whatever is found, a path of its own is not lost.
        let found =
            serde_json::to_string(&confinement(process, Path::new("/elsewhere"), false)).unwrap();
        assert!(!found.contains("/elsewhere"), "{found}");
        assert!(serde_json::to_value(limits(process)).unwrap()["name"] == "limits in force");
    }
}
