//! What the tests begin with.

use std::fs;

use crate::support::externals;
use crate::support::github_runner::Runner;
pub(crate) use crate::support::github_runner::{redis, shell_step};
use crate::support::host::Host;
use crate::support::hub::{Name, Registry};
use crate::support::installation::Installation;
use crate::support::runtime::Runtime;

/// Calls a test with a fresh host for each runtime.
pub(crate) fn with_each_runtime(further: &str, test: impl Fn(&Installation<'_>)) {
    for runtime in Runtime::ALL {
        let host = Host::new();
        let _hub = Registry::start(&host, Name::Hub, None);
        test(&Installation::new(&host, runtime, further));
    }
}

/// Returns a runner that has node.
pub(crate) fn runner<'a>(installation: &'a Installation<'a>, name: &str) -> Runner<'a> {
    let mut runner = Runner::new(installation, name);
    runner.externals = externals::shared();
    runner
}

/// Makes something that nothing in a container may touch, where hostile images point to.
pub(crate) struct Canary<'a>(&'a Host, String);

impl<'a> Canary<'a> {
    pub(crate) fn new(host: &'a Host) -> Self {
        host.shell("mkdir /run/canary; echo untouched >/run/canary/file; chmod 711 /run/canary");
        let seen = Self::look(host);
        Self(host, seen)
    }

    #[track_caller]
    pub(crate) fn check(&self, context: &str) {
        assert_eq!(Self::look(self.0), self.1, "{context}: the host is changed");
    }

    /// The host's own devices and what is set in its kernel are looked at too.
    fn look(host: &Host) -> String {
        host.shell(
            "stat -c '%n %f %u:%g %t:%T %s %Y' /run/canary /run/canary/* /dev /dev/null /proc /sys; \
             stat -c '%n %f %u:%g %t:%T' /dev/console /dev/zero 2>&1 || true; \
             cat /run/canary/file /proc/sys/kernel/core_pattern /proc/sys/kernel/hostname; \
             find /run/canary",
        )
    }
}

/// Writes a file with the directories above it.
pub(crate) fn write(path: impl AsRef<std::path::Path>, text: &str) {
    let path = path.as_ref();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}
