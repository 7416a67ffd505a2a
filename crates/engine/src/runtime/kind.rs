//! Implementations of the runtime command line, and their capabilities.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use oci_hooks_files::process::{ChildProgram, OutputLimit};
use serde::{Deserialize, Serialize};

/// Timeout of `--version`.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Implementation of the runtime command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuntimeKind {
    /// opencontainers/runc, and wrappers that execute runc or crun.
    Runc,
    Crun,
    Youki,
    /// gVisor.
    Runsc,
    /// A program whose file name and version line name none of the others.
    Other,
}

/// Abilities of a runtime that an engine depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuntimeCapabilities {
    /// Containers can join an existing user namespace.
    pub joins_user_namespaces: bool,
    /// Containers inherit descriptors of the runtime's caller.
    pub passes_descriptors: bool,
    /// Processes that `exec` starts are confined like the first process.
    pub confines_exec: bool,
    /// Containers cannot change their own limits.
    pub protects_cgroups: bool,
    /// Containers have a kernel of their own, so that the host sees neither their processes nor their sockets.
    pub is_sandbox: bool,
}

/// Words that the names of runtimes and wrappers contain. `runsc` comes first, since its wrappers may be named
/// after runc too.
const NAMES: [(&str, RuntimeKind); 6] = [
    ("runsc", RuntimeKind::Runsc),
    ("crun", RuntimeKind::Crun),
    ("youki", RuntimeKind::Youki),
    ("runc", RuntimeKind::Runc),
    ("nvidia-container-runtime", RuntimeKind::Runc),
    ("oci-hooks-runtime", RuntimeKind::Runc),
];

impl RuntimeKind {
    /// Returns the kind of a program: by its file name, or by the first line that `--version` prints.
    pub fn of(program: &Path) -> Self {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        let named = |text: &str| NAMES.iter().find(|(name, _)| text.contains(name));
        let kind = named(&name).or_else(|| named(&version_line(program)?));
        kind.map_or(RuntimeKind::Other, |(_, kind)| *kind)
    }

    /// Returns the name of the implementation.
    pub fn name(self) -> &'static str {
        match self {
            RuntimeKind::Runc => "runc",
            RuntimeKind::Crun => "crun",
            RuntimeKind::Youki => "youki",
            RuntimeKind::Runsc => "runsc",
            RuntimeKind::Other => "unknown",
        }
    }

    /// Returns the capabilities of the implementation.
    pub fn capabilities(self) -> RuntimeCapabilities {
        match self {
            RuntimeKind::Runc | RuntimeKind::Crun => RuntimeCapabilities {
                joins_user_namespaces: true,
                passes_descriptors: true,
                confines_exec: true,
                protects_cgroups: true,
                is_sandbox: false,
            },
            // Observed with 0.7.0.
            RuntimeKind::Youki => RuntimeCapabilities {
                joins_user_namespaces: true,
                passes_descriptors: false,
                confines_exec: false,
                protects_cgroups: false,
                is_sandbox: false,
            },
            RuntimeKind::Runsc => RuntimeCapabilities {
                joins_user_namespaces: false,
                passes_descriptors: false,
                confines_exec: true,
                protects_cgroups: true,
                is_sandbox: true,
            },
            RuntimeKind::Other => RuntimeCapabilities {
                joins_user_namespaces: false,
                passes_descriptors: false,
                confines_exec: false,
                protects_cgroups: false,
                is_sandbox: false,
            },
        }
    }

    /// Returns the reason for which the runtime cannot run hostile jobs, and a remedy.
    pub fn unfit_for_jobs(self) -> Option<&'static str> {
        let RuntimeCapabilities { confines_exec, protects_cgroups, .. } = self.capabilities();
        match self {
            RuntimeKind::Other => Some(
                "its file name and its --version name none of runc, crun and runsc: use one of them",
            ),
            _ if !confines_exec => Some(
                "steps run without the seccomp profile, and cgroups of version 1 are writable in containers: \
                 use runc or crun",
            ),
            _ if !protects_cgroups => Some("cgroups are writable in containers: use runc or crun"),
            _ => None,
        }
    }
}

fn version_line(program: &Path) -> Option<String> {
    let mut call = ChildProgram::new(program, Path::new("/"));
    call.argv = vec![program.as_os_str(), OsStr::new("--version")];
    call.timeout = Some(TIMEOUT);
    call.stdout = OutputLimit::Truncate(4096);
    let output = call.run().ok()?.stdout;
    String::from_utf8_lossy(&output).lines().next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_runtime_is_known_by_its_name_or_its_version() {
        for (path, kind) in [
            ("/usr/bin/runc", RuntimeKind::Runc),
            ("/usr/bin/crun", RuntimeKind::Crun),
            ("/usr/local/bin/crun.sh", RuntimeKind::Crun),
            ("/usr/bin/runsc", RuntimeKind::Runsc),
            ("/opt/runsc-ptrace", RuntimeKind::Runsc),
            ("/usr/bin/youki", RuntimeKind::Youki),
            ("/usr/bin/nvidia-container-runtime", RuntimeKind::Runc),
            ("/nonexistent/kata", RuntimeKind::Other),
        ] {
            assert_eq!(RuntimeKind::of(Path::new(path)), kind, "{path}");
        }
        let dir = tempfile::tempdir().unwrap();
        for (at, line, kind) in [
            ("a", "runsc version release-20260101.0", RuntimeKind::Runsc),
            ("b", "youki version: 0.7.0", RuntimeKind::Youki),
            ("c", "something else", RuntimeKind::Other),
        ] {
            let path = dir.path().join(at);
            fs::write(&path, format!("#!/bin/sh\necho '{line}'\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            assert_eq!(RuntimeKind::of(&path), kind, "{line}");
        }
    }

    #[test]
    fn only_runtimes_that_confine_jobs_are_fit_for_them() {
        for (kind, is_fit) in [
            (RuntimeKind::Runc, true),
            (RuntimeKind::Crun, true),
            (RuntimeKind::Runsc, true),
            (RuntimeKind::Youki, false),
            (RuntimeKind::Other, false),
        ] {
            assert_eq!(kind.unfit_for_jobs().is_none(), is_fit, "{kind:?}");
        }
    }
}
