//! The library run as root of ordinary users' namespaces, and as real root.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use oci_hooks_host::privilege::Privilege;
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::world::{UserIds, UserWorld};

/// Environment variable with the directory of a test in a user namespace.
const DIRECTORY: &str = "OCI_HOOKS_TEST_DIRECTORY";

/// Device node that only real root may use, beside the directories of the users.
pub(super) const FOREIGN_DEVICE: &str = "of-root-alone";

/// Name of a mount below the test's directory in memory, made before the user namespace is created.
pub(super) const MOUNTED_BELOW: &str = "below";

/// Sets up the job's namespaces and executes the test. On hosts with both cgroup versions crun insists on
/// mounting version 2, which is denied in a user namespace.
const JOB: &str = r#"
mount -t proc proc /proc
if [ -d /sys/fs/cgroup/unified ]; then mount -t tmpfs tmpfs /sys/fs/cgroup/unified; fi
ip link set lo up
exec "$@"
"#;

/// Runs a test as root, and as root of user namespaces of users with and without subordinate ids: in a
/// directory on disk, and on a tmpfs with all restrictive mount flags, which are locked in the namespace.
///
/// Each time, the test with this name runs again in another process.
pub(super) fn run_for_each_privilege(test: &str, work: impl Fn(Privilege, &Path)) {
    if let Some(directory) = env::var_os(DIRECTORY) {
        let directory = PathBuf::from(directory);
        return work(Privilege::of_process().unwrap(), &directory);
    }
    program::require_root();
    let own = program::temporary_directory();
    work(Privilege::Root, own.path());
    let world = UserWorld::new();
    let program = env::current_exe().unwrap();
    let (from, to) = (program.display(), world.host().path().join("test"));
    world.host().shell(&format!(
        "touch {to}; mount --bind {from} {to}; mknod -m 600 {path}/{FOREIGN_DEVICE} c 1 5",
        path = world.host().path().display(),
        to = to.display()
    ));
    // Created before the loop: otherwise both users would get the same number.
    let users = [UserIds::Ranges, UserIds::None].map(|ids| (ids, world.user(ids)));
    for (ids, user) in &users {
        let [disk, memory] = ["disk", "memory"].map(|name| user.home.join(name));
        let (id, dirs) = (user.id, format!("{} {}", disk.display(), memory.display()));
        world.host().shell(&format!(
            "install -d -o {id} -g {id} {dirs}
             mount -t tmpfs -o nosuid,nodev,noexec,noatime,mode=755,uid={id},gid={id} tmpfs {memory}
             install -d -o {id} -g {id} {memory}/work
             install -d -o {id} -g {id} {memory}/work/{MOUNTED_BELOW}
             mount -t tmpfs tmpfs {memory}/work/{MOUNTED_BELOW}",
            memory = memory.display()
        ));
        for directory in [disk, memory] {
            let mut command = Command::new("unshare");
            command.args(["--user", "--map-root-user"]);
            if *ids == UserIds::Ranges {
                command.args(["--map-users", "auto", "--map-groups", "auto"]);
            }
            command.args(["--mount", "--pid", "--fork", "--kill-child", "--net", "--ipc"]);
            command.args(["sh", "-ec", JOB, "sh"]).arg(&to).args(["--exact", test, "--nocapture"]);
            command.env(DIRECTORY, &directory);
            let said = world.run_as(user, &mut command).success();
            assert!(said.contains("1 passed"), "{test}: {said}");
        }
    }
}
