//! Checks that a rootless user can create namespaces, by creating them, and diagnoses failures.

use std::error::Error as _;
use std::path::Path;
use std::{fs, io};

use oci_hooks_files::error::chain;
use oci_hooks_host::privilege::{ForkSide, IdMaps, NewPauseProcess, PauseProcess, PrivilegeError};

use super::super::HostCheck;
use super::nesting::missing_in_container;
use super::service::missing_in_unit;

const NAME: &str = "user namespaces";

/// AppArmor profile that lets a program create user namespaces.
const PROFILE: &str = include_str!("../../../apparmor/container-hook");

/// Path of the program in [`PROFILE`], replaced by that of the running program.
const PROFILE_PATH: &str = "/usr/bin/container-hook";

/// Reasons why namespaces cannot be created, by the kernel's error and settings.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NamespaceObstacle {
    /// The limit `user.max_user_namespaces` is reached or 0.
    Maximum,
    /// Only root may create namespaces: `kernel.unprivileged_userns_clone` of Debian.
    Unprivileged,
    /// Only programs with a profile may create namespaces:
    /// `kernel.apparmor_restrict_unprivileged_userns` of Ubuntu.
    AppArmor,
    /// A seccomp filter of the container that this process runs in.
    Seccomp,
    /// `newuidmap` or `newgidmap` failed or is missing, or the user has no subordinate ids.
    Mapping,
    /// Paths in `/proc` are masked by the container or service that this process runs in.
    MaskedProc,
    Unknown,
}

impl NamespaceObstacle {
    /// Returns whether a container around this process may be the cause, instead of the kernel's settings.
    fn is_of_container(&self) -> bool {
        match self {
            NamespaceObstacle::Maximum
            | NamespaceObstacle::Unprivileged
            | NamespaceObstacle::AppArmor => false,
            NamespaceObstacle::Seccomp
            | NamespaceObstacle::Mapping
            | NamespaceObstacle::MaskedProc
            | NamespaceObstacle::Unknown => true,
        }
    }
}

/// Kernel settings for user namespaces.
#[derive(Clone, Copy, Debug, Default)]
struct UsernsSettings {
    max_is_zero: bool,
    unprivileged_are_denied: bool,
    apparmor_restricts: bool,
    has_seccomp: bool,
}

impl UsernsSettings {
    fn of_this_machine() -> Self {
        let is = |path: &str, value: &str| {
            fs::read_to_string(path).is_ok_and(|text| text.trim() == value)
        };
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        UsernsSettings {
            max_is_zero: is("/proc/sys/user/max_user_namespaces", "0"),
            unprivileged_are_denied: is("/proc/sys/kernel/unprivileged_userns_clone", "0"),
            apparmor_restricts: is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
            has_seccomp: status.lines().any(|line| line.split_whitespace().eq(["Seccomp:", "2"])),
        }
    }
}

/// Reports that a user namespace was created, with its own mount, PID and network namespaces.
pub fn report_namespaces() -> HostCheck {
    HostCheck::ok(NAME, "created one, with its own mount, PID and network namespaces")
}

/// Reports the reason of an error in creating namespaces. `program` is the path of this program.
pub fn report_namespace_error(error: &PrivilegeError, program: &Path) -> HostCheck {
    let obstacle = obstacle(error, UsernsSettings::of_this_machine());
    let found = match error {
        // The full message of this variant refers to `doctor`.
        PrivilegeError::Namespace { source, .. } => format!("cannot be created: {source}"),
        error => chain(error),
    };
    let lacks = match obstacle {
        NamespaceObstacle::MaskedProc => missing_in_container().or_else(missing_in_unit),
        _ if obstacle.is_of_container() => missing_in_container(),
        _ => None,
    };
    HostCheck::fail(NAME, found, lacks.unwrap_or_else(|| hint(&obstacle, program)))
}

fn obstacle(error: &PrivilegeError, system: UsernsSettings) -> NamespaceObstacle {
    let is_denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    let is_of_clone = matches!(error, PrivilegeError::Namespace { .. });
    match source {
        _ if matches!(error, PrivilegeError::NoProgram { .. } | PrivilegeError::Refused { .. }) => {
            NamespaceObstacle::Mapping
        }
        _ if system.max_is_zero => NamespaceObstacle::Maximum,
        Some(source) if is_of_clone && source.raw_os_error() == Some(libc::ENOSPC) => {
            NamespaceObstacle::Maximum
        }
        Some(source) if is_denied(source) => {
            if system.unprivileged_are_denied {
                NamespaceObstacle::Unprivileged
            } else if system.apparmor_restricts {
                NamespaceObstacle::AppArmor
            } else if system.has_seccomp && is_of_clone {
                NamespaceObstacle::Seccomp
            } else if matches!(error, PrivilegeError::Setup { action, .. } if action.contains("/proc"))
            {
                NamespaceObstacle::MaskedProc
            } else {
                NamespaceObstacle::Unknown
            }
        }
        _ => NamespaceObstacle::Unknown,
    }
}

fn hint(obstacle: &NamespaceObstacle, program: &Path) -> String {
    let sysctl = |setting: &str| {
        format!("echo {setting} | sudo tee /etc/sysctl.d/90-oci-hooks.conf\nsudo sysctl --system")
    };
    match obstacle {
        NamespaceObstacle::Maximum => sysctl("user.max_user_namespaces=28633"),
        NamespaceObstacle::Unprivileged => sysctl("kernel.unprivileged_userns_clone=1"),
        NamespaceObstacle::AppArmor => format!(
            "sudo tee /etc/apparmor.d/container-hook <<'END'\n{}\nEND\n\
             sudo apparmor_parser --replace /etc/apparmor.d/container-hook",
            profile(program).trim_end()
        ),
        NamespaceObstacle::Seccomp => "the outer container needs a seccomp profile that allows clone, unshare, \
                              setns and mount; in a pod see /usr/share/doc/container-hook/container-hook-rootless.md"
            .to_owned(),
        NamespaceObstacle::Mapping => {
            "see the checks newuidmap and id ranges; in a container the programs need file capabilities"
                .to_owned()
        }
        NamespaceObstacle::MaskedProc => "the outer container hides parts of /proc: procMount: Unmasked in a pod, \
                                 --security-opt unmask=ALL for podman, systempaths=unconfined for docker"
            .to_owned(),
        NamespaceObstacle::Unknown => "see user_namespaces(7); they cannot be created in a chroot".to_owned(),
    }
}

/// Returns the AppArmor profile for a program.
pub fn profile(program: &Path) -> String {
    PROFILE.replace(PROFILE_PATH, &program.display().to_string())
}

/// Starts a pause process with namespaces like those of a job, and enters them in a copy of this
/// process. The pause process exits with this command.
pub fn enter(map: &IdMaps) -> Result<(ForkSide, NewPauseProcess), PrivilegeError> {
    let pause_process = PauseProcess::make(map, None, None)?;
    Ok((pause_process.pause_process().enter()?, pause_process))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clone(errno: i32) -> PrivilegeError {
        PrivilegeError::Namespace { uid: 7, source: io::Error::from_raw_os_error(errno) }
    }

    fn inside(action: &str, errno: i32) -> PrivilegeError {
        let source = io::Error::from_raw_os_error(errno);
        PrivilegeError::Setup { uid: 7, action: action.to_owned(), source }
    }

    #[test]
    fn reason_for_denied_namespaces_is_found() {
        let none = UsernsSettings::default();
        let restricts = UsernsSettings { apparmor_restricts: true, ..none };
        let denied = UsernsSettings { unprivileged_are_denied: true, ..none };
        let zero = UsernsSettings { max_is_zero: true, ..none };
        let filtered = UsernsSettings { has_seccomp: true, ..none };
        for (error, system, expected) in [
            (clone(libc::ENOSPC), zero, NamespaceObstacle::Maximum),
            (clone(libc::ENOSPC), none, NamespaceObstacle::Maximum),
            (clone(libc::EPERM), denied, NamespaceObstacle::Unprivileged),
            (inside("mount /proc", libc::EACCES), restricts, NamespaceObstacle::AppArmor),
            (clone(libc::EPERM), filtered, NamespaceObstacle::Seccomp),
            (inside("mount /proc", libc::EPERM), filtered, NamespaceObstacle::MaskedProc),
            (
                PrivilegeError::NoProgram { uid: 7, name: "newuidmap" },
                zero,
                NamespaceObstacle::Mapping,
            ),
            (clone(libc::EINVAL), restricts, NamespaceObstacle::Unknown),
            (inside("make mounts private", libc::EPERM), none, NamespaceObstacle::Unknown),
        ] {
            assert_eq!(obstacle(&error, system), expected, "{error}");
        }
    }

    #[test]
    fn apparmor_profile_is_for_this_program() {
        assert!(PROFILE.contains(PROFILE_PATH));
        let hint = hint(&NamespaceObstacle::AppArmor, Path::new("/opt/bin/container-hook"));
        assert!(hint.contains(" /opt/bin/container-hook "), "{hint}");
        assert!(!hint.contains(PROFILE_PATH) && hint.contains("userns,"), "{hint}");
    }
}
