//! Common setup of the tests.

use oci_hooks_testsupport::by_user::UserInstallation;
use oci_hooks_testsupport::github_runner::GithubRunner;
pub(crate) use oci_hooks_testsupport::github_runner::{redis, shell_step};
use oci_hooks_testsupport::hub::{HostRegistry, RegistryName};
use oci_hooks_testsupport::runtime::TestRuntime;
use oci_hooks_testsupport::world::{UserIds, UserWorld};

/// User who runs jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UserKind {
    Root,
    /// A user with subordinate ids.
    Ranges,
    /// A user without subordinate ids.
    Single,
}

impl UserKind {
    pub(crate) const ALL: [Self; 3] = [Self::Root, Self::Ranges, Self::Single];
    /// Users of tests that do not depend on subordinate ids.
    pub(crate) const ROOT_AND_RANGES: [Self; 2] = [Self::Root, Self::Ranges];
    /// All but root.
    pub(crate) const ROOTLESS: [Self; 2] = [Self::Ranges, Self::Single];
}

/// A user's runner.
pub(crate) type UsersRunner<'a> = GithubRunner<'a, UserInstallation<'a>>;

/// Calls a test with a fresh world for each of these users and each runtime, with additional settings; in
/// nextest's `gate` profile, for each user with one runtime.
pub(crate) fn with_each(who: &[UserKind], further: &str, test: impl Fn(&UserInstallation<'_>)) {
    for (index, &who) in who.iter().enumerate() {
        for &runtime in TestRuntime::selected(index) {
            with(who, runtime, further, &test);
        }
    }
}

/// Calls a test with a fresh world for one user and runtime.
pub(crate) fn with(
    who: UserKind,
    runtime: TestRuntime,
    further: &str,
    test: impl Fn(&UserInstallation<'_>),
) {
    let _which = FailureContext(who, runtime);
    let world = UserWorld::new();
    let _hub = HostRegistry::start(world.host(), RegistryName::Hub, None);
    let user = match who {
        UserKind::Root => None,
        UserKind::Ranges => Some(world.user(UserIds::Ranges)),
        UserKind::Single => Some(world.user(UserIds::None)),
    };
    test(&UserInstallation::new(&world, user.as_ref(), runtime, further));
}

/// The user and runtime of a test, printed if it fails.
struct FailureContext(UserKind, TestRuntime);

impl Drop for FailureContext {
    #[expect(clippy::print_stderr, reason = "it stands beside the panic")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("this was {:?} with {}", self.0, self.1);
        }
    }
}
