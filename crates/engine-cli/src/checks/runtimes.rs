//! Checks OCI runtimes: installation, advisories, and a test container.

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use oci_hooks_engine::container::{ContainerRole, ContainerSpec, HostSystem};
use oci_hooks_engine::runtime::{CONFINING, RuntimeKind};
use oci_hooks_files::error::chain;
use oci_hooks_files::find::{DEFAULT_PATH, find};
use oci_hooks_host::version::ProgramVersion;

use super::super::host::HostSections;
use super::super::sections::{RuntimeSection, StoreSection};
use super::storage::{TrialError, run_trial};
use super::{HostCheck, advisories};

/// Checks the runtime of new containers, and lists the others.
pub fn checks(host: HostSections<'_>) -> Vec<HostCheck> {
    let used = match host.runtime() {
        Ok(runtime) => runtime.program,
        Err(error) => {
            let hint = "install runc or crun (apt install runc, dnf install crun)";
            return vec![HostCheck::fail("runtime", chain(&error), hint)];
        }
    };
    let others = CONFINING
        .iter()
        .filter_map(|name| find(&[OsStr::new(name)], Some(DEFAULT_PATH.as_ref()), None).ok());
    let others: Vec<_> = others.filter(|other| *other != used).collect();
    let mut checks = vec![check(&used)];
    if !others.is_empty() {
        let others: Vec<_> = others.iter().map(|other| describe_runtime(other)).collect();
        checks.push(HostCheck::ok("other runtimes", others.join(", ")));
    }
    checks
}

fn describe_runtime(program: &Path) -> String {
    let version = ProgramVersion::of(program);
    let version = version.map_or_else(|| "version unknown".to_owned(), |version| version.text);
    format!("{} {version}", program.display())
}

/// Checks that a runtime can run jobs, and reports advisories for its version.
pub fn check(program: &Path) -> HostCheck {
    let kind = RuntimeKind::of(program);
    if let Some(reason) = kind.unfit_for_jobs() {
        let found = format!("{} ({}) cannot run jobs", program.display(), kind.name());
        return HostCheck::fail("runtime", found, reason);
    }
    let Some(version) = ProgramVersion::of(program) else {
        let found = format!("{} does not report its version", program.display());
        return HostCheck::fail("runtime", found, "reinstall it, or name another one in [runtime]");
    };
    let is_sandbox = kind.capabilities().is_sandbox;
    let kernel = if is_sandbox { " (containers have a kernel of their own)" } else { "" };
    let found = format!("{} {}{kernel}", program.display(), version.text);
    advisories::check("runtime", kind.name(), &version.number, found)
}

/// Exit code of the program in a test container.
const CODE: i32 = 42;

/// Timeout for the test container to end, also on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Starts a container with a runtime, and checks that the exit code of its program arrives.
pub fn start(host: HostSections<'_>, program: &Path) -> HostCheck {
    let name = program.display();
    let hint =
        "run a container with this runtime by hand, update it, or name another one in [runtime]";
    match run_container(host, program) {
        Ok(status) if status.code() == Some(CODE) => {
            HostCheck::ok("test container", format!("{name} ran a container to its end"))
        }
        Ok(status) => {
            let found =
                format!("{name}: the program ended with code {CODE}, but {status} was reported");
            HostCheck::fail("test container", found, hint)
        }
        Err(error) => {
            HostCheck::fail("test container", format!("{name}: {}", chain(&*error)), hint)
        }
    }
}

/// Runs a container that executes programs of this host, with a temporary image store.
fn run_container(host: HostSections<'_>, program: &Path) -> Result<ExitStatus, TrialError> {
    run_trial(host.store, |trial| {
        let mut store = StoreSection {
            root: trial.join("store"),
            run: trial.join("run"),
            ..host.store.clone()
        };
        (store.place.run, store.place.disk) = (None, None);
        let runtime = RuntimeSection { path: Some(program.to_owned()), ..host.runtime.clone() };
        let engine = HostSections { store: &store, runtime: &runtime, ..host }.engine()?;
        let system = HostSystem::find()?;
        let image = system.image(&engine.store)?;
        let mut spec = ContainerSpec::new(ContainerRole::Step, "doctor", &image);
        spec.options.args = vec!["/bin/sh".to_owned(), "-c".to_owned(), format!("exit {CODE}")];
        spec.options.mounts = system.mounts().collect();
        if !engine.privilege.has_own_users() {
            HostSystem::confine(&mut spec.options);
        }
        let prepared = engine.prepare(spec)?;
        Ok(prepared.run_within(TIMEOUT)?.status)
    })
}
