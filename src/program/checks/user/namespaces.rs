//! Why an ordinary user cannot have namespaces, found out by making them.

use std::error::Error as _;
use std::fs;
use std::io;
use std::path::Path;

use super::super::Check;
use crate::sys::error::chain;
use crate::sys::privilege::{Holder, Map, NewHolder, PrivilegeError, Side, missing_in_container};

const NAME: &str = "user namespaces";

/// The profile of AppArmor that lets a program make user namespaces.
const PROFILE: &str = include_str!("../../../../contrib/apparmor/container-hook");

/// The path of the program in it.
const PROFILE_PATH: &str = "/usr/bin/container-hook";

/// Who stands in the way, as the kernel and its settings say.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Obstacle {
    /// There may be none: `user.max_user_namespaces`.
    Maximum,
    /// Those of root alone: `kernel.unprivileged_userns_clone` of Debian.
    Unprivileged,
    /// Those of programs with a profile: `kernel.apparmor_restrict_unprivileged_userns` of Ubuntu.
    AppArmor,
    /// The filter of system calls of a container around this process.
    Seccomp,
    /// What maps ids: `newuidmap` and `newgidmap`, or the ranges that they know.
    Mapping,
    /// Parts of `/proc` that a container around this process hides.
    MaskedProc,
    Unknown,
}

impl Obstacle {
    /// Returns whether a container around this process may be it, and not the kernel's settings.
    fn is_of_container(&self) -> bool {
        match self {
            Obstacle::Maximum | Obstacle::Unprivileged | Obstacle::AppArmor => false,
            Obstacle::Seccomp | Obstacle::Mapping | Obstacle::MaskedProc | Obstacle::Unknown => {
                true
            }
        }
    }
}

/// What the system says about user namespaces.
#[derive(Clone, Copy, Debug, Default)]
struct System {
    max_is_zero: bool,
    unprivileged_are_denied: bool,
    apparmor_restricts: bool,
    has_seccomp: bool,
}

impl System {
    fn of_this_machine() -> Self {
        let is = |path: &str, value: &str| {
            fs::read_to_string(path).is_ok_and(|text| text.trim() == value)
        };
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        System {
            max_is_zero: is("/proc/sys/user/max_user_namespaces", "0"),
            unprivileged_are_denied: is("/proc/sys/kernel/unprivileged_userns_clone", "0"),
            apparmor_restricts: is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
            has_seccomp: status.lines().any(|line| line.split_whitespace().eq(["Seccomp:", "2"])),
        }
    }
}

/// Reports that namespaces were made, with `/proc` mounted and the ids mapped.
pub fn made() -> Check {
    Check::ok(NAME, "made one, with mounts, processes and a network of its own")
}

/// Reports why they were not. `program` is the path of this program.
pub fn not_made(error: &PrivilegeError, program: &Path) -> Check {
    let obstacle = obstacle(error, System::of_this_machine());
    let found = match error {
        // Its own message names this command.
        PrivilegeError::Namespace { source, .. } => format!("cannot be made: {source}"),
        error => chain(error),
    };
    let lacks = obstacle.is_of_container().then(missing_in_container).flatten();
    Check::fail(NAME, found, lacks.unwrap_or_else(|| hint(&obstacle, program)))
}

fn obstacle(error: &PrivilegeError, system: System) -> Obstacle {
    let is_denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    let is_of_clone = matches!(error, PrivilegeError::Namespace { .. });
    match source {
        _ if matches!(error, PrivilegeError::NoProgram { .. } | PrivilegeError::Refused { .. }) => {
            Obstacle::Mapping
        }
        _ if system.max_is_zero => Obstacle::Maximum,
        Some(source) if is_of_clone && source.raw_os_error() == Some(libc::ENOSPC) => {
            Obstacle::Maximum
        }
        Some(source) if is_denied(source) => {
            if system.unprivileged_are_denied {
                Obstacle::Unprivileged
            } else if system.apparmor_restricts {
                Obstacle::AppArmor
            } else if system.has_seccomp && is_of_clone {
                Obstacle::Seccomp
            } else if matches!(error, PrivilegeError::Inside { action, .. } if action.contains("/proc"))
            {
                Obstacle::MaskedProc
            } else {
                Obstacle::Unknown
            }
        }
        _ => Obstacle::Unknown,
    }
}

fn hint(obstacle: &Obstacle, program: &Path) -> String {
    let sysctl = |setting: &str| {
        format!("echo {setting} | sudo tee /etc/sysctl.d/90-oci-hooks.conf\nsudo sysctl --system")
    };
    match obstacle {
        Obstacle::Maximum => sysctl("user.max_user_namespaces=28633"),
        Obstacle::Unprivileged => sysctl("kernel.unprivileged_userns_clone=1"),
        Obstacle::AppArmor => format!(
            "sudo tee /etc/apparmor.d/container-hook <<'END'\n{}\nEND\n\
             sudo apparmor_parser --replace /etc/apparmor.d/container-hook",
            profile(program).trim_end()
        ),
        Obstacle::Seccomp => "the container around this needs a seccomp profile that allows clone, unshare, \
                              setns and mount; in a pod see /usr/share/doc/container-hook/container-hook-rootless.md"
            .to_owned(),
        Obstacle::Mapping => {
            "see what is said of newuidmap and the id ranges; in a container the programs need file capabilities"
                .to_owned()
        }
        Obstacle::MaskedProc => "the container around this hides parts of /proc: procMount: Unmasked in a pod, \
                                 --security-opt unmask=ALL for podman, systempaths=unconfined for docker"
            .to_owned(),
        Obstacle::Unknown => "see user_namespaces(7); in a chroot there are none".to_owned(),
    }
}

/// Returns the profile of AppArmor for a program.
pub fn profile(program: &Path) -> String {
    PROFILE.replace(PROFILE_PATH, &program.display().to_string())
}

/// Goes on in a holder like those of jobs and instances, which ends with this command.
pub fn enter(map: &Map) -> Result<(Side, NewHolder), PrivilegeError> {
    let holder = Holder::make(map, None, None)?;
    Ok((holder.holder().enter()?, holder))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clone(errno: i32) -> PrivilegeError {
        PrivilegeError::Namespace { uid: 7, source: io::Error::from_raw_os_error(errno) }
    }

    fn inside(action: &str, errno: i32) -> PrivilegeError {
        let source = io::Error::from_raw_os_error(errno);
        PrivilegeError::Inside { uid: 7, action: action.to_owned(), source }
    }

    #[test]
    fn who_stands_in_the_way_is_found() {
        let none = System::default();
        let restricts = System { apparmor_restricts: true, ..none };
        let denied = System { unprivileged_are_denied: true, ..none };
        let zero = System { max_is_zero: true, ..none };
        let filtered = System { has_seccomp: true, ..none };
        for (error, system, expected) in [
            (clone(libc::ENOSPC), zero, Obstacle::Maximum),
            (clone(libc::ENOSPC), none, Obstacle::Maximum),
            (clone(libc::EPERM), denied, Obstacle::Unprivileged),
            (inside("mount /proc", libc::EACCES), restricts, Obstacle::AppArmor),
            (clone(libc::EPERM), filtered, Obstacle::Seccomp),
            (inside("mount /proc", libc::EPERM), filtered, Obstacle::MaskedProc),
            (PrivilegeError::NoProgram { uid: 7, name: "newuidmap" }, zero, Obstacle::Mapping),
            (clone(libc::EINVAL), restricts, Obstacle::Unknown),
            (inside("make mounts private", libc::EPERM), none, Obstacle::Unknown),
        ] {
            assert_eq!(obstacle(&error, system), expected, "{error}");
        }
    }

    #[test]
    fn the_profile_is_that_of_this_program() {
        assert!(PROFILE.contains(PROFILE_PATH));
        let hint = hint(&Obstacle::AppArmor, Path::new("/opt/bin/container-hook"));
        assert!(hint.contains(" /opt/bin/container-hook "), "{hint}");
        assert!(!hint.contains(PROFILE_PATH) && hint.contains("userns,"), "{hint}");
    }
}
