//! The example program, called by root and by ordinary users.

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::PathBuf;
use std::process::Command;

use oci_hooks_testsupport::host::TestHost;
use oci_hooks_testsupport::hub::{HostRegistry, RegistryName};
use oci_hooks_testsupport::leftovers::{InstalledProgram, LeftoverSnapshot};
use oci_hooks_testsupport::program::{self, FinishedCommand};
use oci_hooks_testsupport::runtime::TestRuntime;
use oci_hooks_testsupport::world::{UserIds, UserWorld, WorldUser};

const IMAGE: &str = "docker.io/library/alpine:3.20";

/// A user who calls the example, with one runtime.
struct Caller<'w> {
    world: &'w UserWorld,
    /// `None` for root.
    user: Option<&'w WorldUser>,
    /// Directory of the example and its only runtime.
    programs: PathBuf,
    temporary: PathBuf,
}

impl<'w> Caller<'w> {
    fn new(world: &'w UserWorld, user: Option<&'w WorldUser>, runtime: TestRuntime) -> Self {
        let id = user.map_or(0, |user| user.id);
        let programs = world.host().path().join(format!("programs-{runtime}-{id}"));
        let temporary = world.host().path().join(format!("temporary-{runtime}-{id}"));
        fs::create_dir(&programs).unwrap();
        fs::create_dir(&temporary).unwrap();
        chown(&temporary, Some(id), Some(id)).unwrap();
        program::copy_program(&program::built_program("examples/run"), &programs.join("run"));
        // Root's wrapper of crun requires root.
        let target = match user {
            Some(_) => program::find(&runtime.to_string()),
            None => runtime.command().get_program().into(),
        };
        symlink(target, programs.join(runtime.to_string())).unwrap();
        Caller { world, user, programs, temporary }
    }

    fn call(&self, arguments: &[&str]) -> FinishedCommand {
        let mut command = Command::new(self.programs.join("run"));
        command.args(arguments).env("PATH", &self.programs).env("TMPDIR", &self.temporary);
        match self.user {
            Some(user) => self.world.run_as(user, &mut command),
            None => self.world.host().run(&mut command),
        }
    }
}

impl InstalledProgram for Caller<'_> {
    fn host(&self) -> &TestHost {
        self.world.host()
    }

    fn run_directory(&self) -> PathBuf {
        self.temporary.clone()
    }

    fn store(&self) -> PathBuf {
        self.temporary.clone()
    }
}

#[test]
fn the_example_runs_a_container_and_leaves_nothing() {
    let world = UserWorld::new();
    let _hub = HostRegistry::start(world.host(), RegistryName::Hub, None);
    let (ranges, single) = (world.user(UserIds::Ranges), world.user(UserIds::None));
    for user in [None, Some(&ranges), Some(&single)] {
        for runtime in TestRuntime::ALL {
            let caller = Caller::new(&world, user, runtime);
            let context = format!("{runtime}, {}", user.map_or("root", |user| &user.name));
            let before = LeftoverSnapshot::take(&caller);

            let script = "echo hello >/tmp/file; cat /tmp/file; id -u; echo error >&2; exit 7";
            let ended = caller.call(&[IMAGE, "sh", "-c", script]);
            assert_eq!(ended.status.code(), Some(7), "{context}: {}", ended.stderr);
            assert_eq!((&*ended.stdout, &*ended.stderr), ("hello\n0\n", "error\n"), "{context}");
            before.check(&caller, &context);

            for arguments in [&["docker.io/library/none", "true"][..], &[IMAGE, "no-such-program"]]
            {
                let ended = caller.call(arguments);
                assert_eq!(ended.status.code(), Some(1), "{context}: {}", ended.stderr);
                before.check(&caller, &context);
            }
        }
    }
}
