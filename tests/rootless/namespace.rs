//! The library as root of the user namespaces of ordinary users, and as root beside them.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use oci_hooks::sys::privilege::Privilege;

use crate::support::program;
use crate::support::world::{Ids, World};

/// The directory of a test that runs in a user namespace.
const DIRECTORY: &str = "OCI_HOOKS_TEST_DIRECTORY";

/// What is beside the directories of all users: a device that is root's alone.
pub(super) const FOREIGN_DEVICE: &str = "of-root-alone";

/// What is mounted below the directory of a test in memory, before there is a user namespace.
pub(super) const MOUNTED_BELOW: &str = "below";

/// Makes what a job has of its own, and becomes the test. On hosts with both versions of cgroups crun
/// insists on mounting the second, which a user namespace does not let it.
const JOB: &str = r#"
mount -t proc proc /proc
if [ -d /sys/fs/cgroup/unified ]; then mount -t tmpfs tmpfs /sys/fs/cgroup/unified; fi
ip link set lo up
exec "$@"
"#;

/// Does the work of a test as root, and as root of user namespaces of users with and without subordinate
/// ids: in a directory of a disk, and in memory that is mounted with all that can be denied. There nobody
/// in the namespace can allow it again.
///
/// The test of this name is run once more for each of them, in another process.
pub(super) fn for_each_privilege(test: &str, work: impl Fn(Privilege, &Path)) {
    if let Some(directory) = env::var_os(DIRECTORY) {
        let directory = PathBuf::from(directory);
        return work(Privilege::of_process().unwrap(), &directory);
    }
    program::require_root();
    let own = program::temporary_directory();
    work(Privilege::Root, own.path());
    let world = World::new();
    let program = env::current_exe().unwrap();
    let (from, to) = (program.display(), world.host().path().join("test"));
    world.host().shell(&format!(
        "touch {to}; mount --bind {from} {to}; mknod -m 600 {path}/{FOREIGN_DEVICE} c 1 5",
        path = world.host().path().display(),
        to = to.display()
    ));
    // At once, or the second gets what the first had.
    let users = [Ids::Ranges, Ids::None].map(|ids| (ids, world.user(ids)));
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
            if *ids == Ids::Ranges {
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
