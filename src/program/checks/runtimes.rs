//! Runtimes: which are installed, and the advisories about them.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use semver::Version;

use super::super::host::Host;
use super::Check;
use super::version::{ADVISORIES, parse};
use crate::runtime::{CONFINING, DEFAULT_PATH, Kind, find};
use crate::sys::process::{End, Limit, Program};

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
    let version = version_of(program).unwrap_or_else(|| "version unknown".to_owned());
    format!("{} {version}", program.display())
}

/// Looks at the runtime that containers get.
fn check(program: &Path) -> Check {
    let Some((text, version)) = version(program) else {
        let found = format!("{} does not report its version", program.display());
        return Check::fail("runtime", found, "reinstall it, or name another one in [runtime]");
    };
    let found = format!("{} {text}", program.display());
    let name = match Kind::of(program) {
        Kind::Runc => "runc",
        Kind::Crun => "crun",
        Kind::Youki => "youki",
    };
    let own = ADVISORIES.iter().filter(|advisory| advisory.runtime == name);
    let open: Vec<_> = own.filter(|advisory| advisory.affects(&version)).collect();
    let Some(newest) = open.iter().filter_map(|advisory| advisory.fixed_in(&version)).max() else {
        return Check::ok("runtime", found);
    };
    let cves: Vec<_> = open.iter().map(|advisory| advisory.cve).collect();
    let hint = format!(
        "{name} {newest} or later fixes {}; your distribution may have patched this version: \
         see its security tracker",
        cves.join(", ")
    );
    Check::warn("runtime", found, hint)
}

/// Returns the version that a runtime says it has, as it says it.
pub fn version_of(program: &Path) -> Option<String> {
    version(program).map(|(text, _)| text)
}

/// Returns the same, and the version that it is.
fn version(program: &Path) -> Option<(String, Version)> {
    let mut call = Program::new(program, Path::new("/"));
    call.argv = vec![program.as_os_str(), OsStr::new("--version")];
    call.timeout = Some(Duration::from_secs(10));
    call.stdout = Limit::Truncate(4096);
    let finished = call.run().ok().filter(|finished| finished.end == End::Exited(0))?;
    let stdout = String::from_utf8_lossy(&finished.stdout).into_owned();
    // `runc version 1.1.5+ds1`, `crun version 1.8.1`, `youki version: 0.5.7`.
    let line = stdout.lines().find(|line| line.contains("version"))?;
    let text = line.split_whitespace().last()?;
    Some((text.to_owned(), parse(text)?))
}
