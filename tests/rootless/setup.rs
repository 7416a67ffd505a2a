//! What the tests begin with.

use crate::support::by_user::ByUser;
use crate::support::github_runner::Runner;
pub(crate) use crate::support::github_runner::{redis, shell_step};
use crate::support::hub::{Name, Registry};
use crate::support::runtime::Runtime;
use crate::support::world::{Ids, World};

/// Who runs jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Root,
    /// A user with subordinate ids.
    Ranges,
    /// A user without.
    Single,
}

impl Who {
    pub(crate) const ALL: [Self; 3] = [Self::Root, Self::Ranges, Self::Single];
    /// Those who are not root.
    pub(crate) const ROOTLESS: [Self; 2] = [Self::Ranges, Self::Single];
}

/// A user's runner.
pub(crate) type UsersRunner<'a> = Runner<'a, ByUser<'a>>;

/// Calls a test with a fresh world for each of these users and each runtime, with further settings.
pub(crate) fn with_each(who: &[Who], further: &str, test: impl Fn(&ByUser<'_>)) {
    for runtime in Runtime::ALL {
        for &who in who {
            with(who, runtime, further, &test);
        }
    }
}

/// Calls a test with a fresh world for one of them.
pub(crate) fn with(who: Who, runtime: Runtime, further: &str, test: impl Fn(&ByUser<'_>)) {
    let _which = Which(who, runtime);
    let world = World::new();
    let _hub = Registry::start(world.host(), Name::Hub, None);
    let user = match who {
        Who::Root => None,
        Who::Ranges => Some(world.user(Ids::Ranges)),
        Who::Single => Some(world.user(Ids::None)),
    };
    test(&ByUser::new(&world, user.as_ref(), runtime, further));
}

/// Says with whom a test fails.
struct Which(Who, Runtime);

impl Drop for Which {
    #[expect(clippy::print_stderr, reason = "it stands beside the panic")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("this was {:?} with {}", self.0, self.1);
        }
    }
}
