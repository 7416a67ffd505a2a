//! Runtimes: which are installed, and the advisories about them.

use std::ffi::OsStr;
use std::path::Path;

use super::super::host::Host;
use super::{Check, advisories};
use crate::runtime::{CONFINING, DEFAULT_PATH, Kind, find};
use crate::sys::version::ProgramVersion;

pub fn checks(host: Host<'_>) -> Vec<Check> {
    let used = match host.runtime() {
        Ok(runtime) => runtime.program,
        Err(error) => {
            let hint = "install runc or crun (apt install runc, dnf install crun)";
            return vec![Check::fail("runtime", error.to_string(), hint)];
        }
    };
    let others = CONFINING
        .iter()
        .filter_map(|name| find(&[OsStr::new(name)], Some(DEFAULT_PATH.as_ref()), None).ok());
    let others: Vec<_> = others.filter(|other| *other != used).collect();
    let mut checks = vec![check(&used)];
    if Kind::of(&used) == Kind::Youki {
        // What jobs were seen to miss with 0.7.0.
        checks.push(Check::fail(
            "youki",
            "steps run without the seccomp profile, and cgroups of version 1 are writable in containers",
            "use runc or crun",
        ));
    }
    if !others.is_empty() {
        let others: Vec<_> = others.iter().map(|other| described(other)).collect();
        checks.push(Check::ok("other runtimes", others.join(", ")));
    }
    checks
}

fn described(program: &Path) -> String {
    let version = ProgramVersion::of(program);
    let version = version.map_or_else(|| "version unknown".to_owned(), |version| version.text);
    format!("{} {version}", program.display())
}

/// Looks at the runtime that containers get.
fn check(program: &Path) -> Check {
    let Some(version) = ProgramVersion::of(program) else {
        let found = format!("{} does not report its version", program.display());
        return Check::fail("runtime", found, "reinstall it, or name another one in [runtime]");
    };
    let found = format!("{} {}", program.display(), version.text);
    let name = match Kind::of(program) {
        Kind::Runc => "runc",
        Kind::Crun => "crun",
        Kind::Youki => "youki",
    };
    advisories::check("runtime", name, &version.number, found)
}
