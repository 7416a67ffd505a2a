//! Common setup of the tests.

use std::fs;

use oci_hooks_testsupport::externals;
use oci_hooks_testsupport::github_runner::GithubRunner;
pub(crate) use oci_hooks_testsupport::github_runner::{redis, shell_step};
use oci_hooks_testsupport::host::TestHost;
use oci_hooks_testsupport::hub::{HostRegistry, RegistryName};
use oci_hooks_testsupport::installation::HookInstallation;
use oci_hooks_testsupport::leftovers::containers;
use oci_hooks_testsupport::runtime::TestRuntime;

/// Calls a test with a fresh host for each runtime; in nextest's `gate` profile, for one runtime.
pub(crate) fn with_each_runtime(further: &str, test: impl Fn(&HookInstallation<'_>)) {
    with_runtimes(TestRuntime::selected(0), further, test);
}

/// Calls a test of a runtime's own behavior with a fresh host for each runtime.
pub(crate) fn with_both_runtimes(further: &str, test: impl Fn(&HookInstallation<'_>)) {
    with_runtimes(&TestRuntime::ALL, further, test);
}

fn with_runtimes(runtimes: &[TestRuntime], further: &str, test: impl Fn(&HookInstallation<'_>)) {
    for &runtime in runtimes {
        let host = TestHost::new();
        let _hub = HostRegistry::start(&host, RegistryName::Hub, None);
        test(&HookInstallation::new(&host, runtime, further));
    }
}

/// Returns a runner with node in its externals.
pub(crate) fn runner<'a>(installation: &'a HookInstallation<'a>, name: &str) -> GithubRunner<'a> {
    let mut runner = GithubRunner::new(installation, name);
    runner.externals = externals::shared();
    runner
}

/// Returns whether any container's log contains a text. The monitor writes output to the log a moment later.
pub(crate) fn is_logged(installation: &HookInstallation<'_>, text: &str) -> bool {
    let directory = installation.run_directory().join("containers");
    containers(installation).iter().any(|id| {
        let log = fs::read_to_string(directory.join(id).join("log"));
        log.is_ok_and(|log| log.contains(text))
    })
}

/// A directory that containers must not change, the target of the hostile images' links.
pub(crate) struct HostCanary<'a>(&'a TestHost, String);

impl<'a> HostCanary<'a> {
    pub(crate) fn new(host: &'a TestHost) -> Self {
        Self::owned_by(host, 0)
    }

    /// Creates a directory that this host user may change.
    pub(crate) fn owned_by(host: &'a TestHost, id: u32) -> Self {
        host.shell(&format!(
            "mkdir /run/canary; echo untouched >/run/canary/file; chmod 711 /run/canary; \
             chown -R {id}:{id} /run/canary"
        ));
        let seen = Self::read_host(host);
        Self(host, seen)
    }

    #[track_caller]
    pub(crate) fn check(&self, context: &str) {
        assert_eq!(Self::read_host(self.0), self.1, "{context}: the host is changed");
    }

    /// Returns the state of the canary, the host's devices and kernel settings, without size and time of
    /// `/dev`: other tests create loop devices in it.
    fn read_host(host: &TestHost) -> String {
        host.shell(
            "stat -c '%n %f %u:%g %t:%T %s %Y' /run/canary /run/canary/*; \
             stat -c '%n %f %u:%g' /proc /sys; \
             find /dev -maxdepth 1 ! -name 'loop*' -printf '%p %i %y %m %U:%G\\n' | sort; \
             stat -c '%n %f %u:%g %t:%T' /dev/null /dev/console /dev/zero 2>&1 || true; \
             cat /run/canary/file /proc/sys/kernel/core_pattern /proc/sys/kernel/hostname; \
             find /run/canary",
        )
    }
}

/// Writes a file, and creates its parent directories.
pub(crate) fn write(path: impl AsRef<std::path::Path>, text: &str) {
    let path = path.as_ref();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}
