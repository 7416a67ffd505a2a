//! A host that looks like an ordinary distribution, with ordinary users.
//!
//! The users exist only in the host's `/etc`, so the machine's stays unchanged even if a test fails.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sched::{CloneFlags, setns};

use super::host::TestHost;
use super::program::{self, FinishedCommand};

/// Address of another host, which the default route leads to.
pub const OUTSIDE: &str = "10.99.0.1";
/// Address of the host itself, besides loopback.
pub const OWN: &str = "192.0.2.10";

/// First user id and first subordinate id; both are unassigned on an ordinary machine.
const FIRST_USER: u32 = 31_000;
const FIRST_SUBORDINATE: u32 = 0x2000_0000;
/// Number of subordinate ids of a user.
pub const RANGE: u32 = 65_536;

/// Device nodes with udev's permissions, another host behind the default route, ping for all groups.
const ORDINARY: &str = r#"
umask 022
mkdir -p dev /run/user
mount -t tmpfs -o mode=755 tmpfs dev
mknod -m 666 dev/tun c 10 200
mknod -m 666 dev/fuse c 10 229
mount --bind dev/tun /dev/net/tun
mount --bind dev/fuse /dev/fuse
umount --lazy dev
mkdir var var-work
mount -t overlay -o lowerdir=/var/lib,upperdir=var,workdir=var-work overlay /var/lib
rm -rf /etc/oci-hooks /var/lib/oci-hooks /var/lib/systemd/linger
mkdir -p /var/lib/systemd/linger
: >/etc/subuid
: >/etc/subgid
ip netns add outside
ip link add out type veth peer name in netns outside
ip address add "$2/24" dev out
ip link set out up
ip -n outside address add 192.0.2.1/24 dev in
ip -n outside address add "$1/32" dev lo
ip -n outside link set lo up
ip -n outside link set in up
ip route add default via 192.0.2.1 dev out
echo '0 2147483647' >/proc/sys/net/ipv4/ping_group_range
"#;

/// Kind of subordinate ids of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserIds {
    Ranges,
    None,
}

/// A host with users.
pub struct UserWorld(TestHost);

impl UserWorld {
    /// Creates a host with devices, a route to [`OUTSIDE`], and its own `/etc`.
    #[expect(clippy::new_without_default, reason = "it is made on the machine")]
    pub fn new() -> Self {
        for tool in ["newuidmap", "pasta", "slirp4netns", "setpriv"] {
            program::find(tool);
        }
        let host = TestHost::new();
        host.make_etc();
        let mut make = Command::new("sh");
        make.args(["-ec", ORDINARY, "world", OUTSIDE, OWN]).current_dir(host.path());
        host.run(&mut make).success();
        Self(host)
    }

    pub fn host(&self) -> &TestHost {
        &self.0
    }

    /// Calls a function in the network namespace of [`OUTSIDE`].
    pub fn run_outside<T: Send>(&self, call: impl FnOnce() -> T + Send) -> T {
        self.0.enter(|| {
            let network = File::open("/run/netns/outside").expect("it was made with the world");
            setns(network, CloneFlags::CLONE_NEWNET).expect("root may enter a namespace");
            call()
        })
    }

    /// Listens on a free port of [`OUTSIDE`].
    pub fn listen_outside(&self) -> TcpListener {
        self.run_outside(|| TcpListener::bind((OUTSIDE, 0))).expect("there are free ports")
    }

    /// Creates a user with a home on the host, and with an `XDG_RUNTIME_DIR` that outlives sessions
    /// (`loginctl enable-linger`).
    pub fn user(&self, ids: UserIds) -> WorldUser {
        let (slot, reserved) = reserve();
        let id = FIRST_USER + slot;
        let name = format!("ordinary{slot}");
        let home = self.0.path().join("home").join(&name);
        let user = WorldUser {
            id,
            runtime: PathBuf::from(format!("/run/user/{id}")),
            first: (ids == UserIds::Ranges).then_some(FIRST_SUBORDINATE + slot * RANGE),
            name,
            home,
            _reserved: reserved,
        };
        self.0.shell(&format!(
            "echo {name}:x:{id}:{id}::{home}:/bin/sh >>/etc/passwd; echo {name}:x:{id}: >>/etc/group
             install -d -m 755 {home}/..; install -d -o {id} -g {id} -m 755 {home}
             install -d -o {id} -g {id} -m 700 /run/user/{id}; touch /var/lib/systemd/linger/{name}",
            name = user.name,
            home = user.home.display(),
        ));
        if let Some(first) = user.first {
            let line = format!("{}:{first}:{RANGE}", user.name);
            self.0.shell(&format!("for file in subuid subgid; do echo {line} >>/etc/$file; done"));
        }
        user
    }

    /// Returns the ids, in the host's PID namespace, of the processes with this `comm` name.
    pub fn find_processes(&self, name: &str) -> Vec<u32> {
        self.0.find_processes(name)
    }

    /// Kills processes of the host, which may have ended.
    pub fn kill(&self, pids: &[u32]) {
        self.0.signal(pids, "KILL");
    }

    /// Kills all processes of a user. Processes with subordinate ids are in PID namespaces of the user's own
    /// processes, and die with them.
    pub fn kill_all_of(&self, user: &WorldUser) {
        let uid = format!("\nUid:\t{}\t", user.id);
        let theirs = || {
            let processes = self.0.processes();
            self.0.enter(|| {
                let is_theirs = |pid: &u32| {
                    let status = fs::read_to_string(format!("/proc/{pid}/status"));
                    status.is_ok_and(|status| status.contains(&uid))
                };
                processes.iter().map(|process| process.pid).filter(is_theirs).collect::<Vec<_>>()
            })
        };
        program::wait_until("all processes of a user are dead", || {
            let theirs = theirs();
            self.kill(&theirs);
            theirs.is_empty()
        });
    }

    /// Ends the last session of a user without lingering: removes `XDG_RUNTIME_DIR`.
    pub fn forget_session(&self, user: &WorldUser) {
        let (runtime, name) = (user.runtime.display(), &user.name);
        self.0.shell(&format!("rm -r {runtime} /var/lib/systemd/linger/{name}"));
    }

    /// Runs a command in a user's session, and waits for its exit.
    #[track_caller]
    pub fn run_as(&self, user: &WorldUser, command: &mut Command) -> FinishedCommand {
        self.0.run(user.switch_user(command))
    }

    /// Returns the output of a user's shell script, which must succeed.
    #[track_caller]
    pub fn shell_as(&self, user: &WorldUser, script: &str) -> String {
        self.run_as(user, Command::new("sh").args(["-ec", script])).success()
    }
}

/// A user of a world.
pub struct WorldUser {
    pub name: String,
    /// User id, and id of the user's only group.
    pub id: u32,
    pub home: PathBuf,
    /// `XDG_RUNTIME_DIR` of the user.
    pub runtime: PathBuf,
    /// First of [`RANGE`] subordinate ids.
    pub first: Option<u32>,
    _reserved: UnixListener,
}

impl WorldUser {
    /// Returns the environment variables of a session.
    pub fn variables(&self) -> Vec<(String, String)> {
        let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        [
            ("HOME", self.home.display().to_string()),
            ("USER", self.name.clone()),
            ("LOGNAME", self.name.clone()),
            ("PATH", path.to_owned()),
            ("LANG", "C.UTF-8".to_owned()),
            ("XDG_RUNTIME_DIR", self.runtime.display().to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    /// Makes a command run as the user, in the user's home unless it has a working directory.
    pub fn switch_user<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        let added: Vec<_> = command
            .get_envs()
            .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
            .collect();
        if command.get_current_dir().is_none() {
            command.current_dir(&self.home);
        }
        command.env_clear().envs(self.variables()).envs(added).uid(self.id).gid(self.id)
    }

    /// Returns the user's default store.
    pub fn data(&self) -> PathBuf {
        self.home.join(".local/share/oci-hooks")
    }

    /// Returns the user's default run directory.
    pub fn run_directory(&self) -> PathBuf {
        self.runtime.join("oci-hooks")
    }

    /// Returns the user's settings file.
    pub fn settings(&self) -> PathBuf {
        self.home.join(".config/oci-hooks/container-hook.toml")
    }

    /// Returns the files below a directory that do not belong to the user, with their owners.
    pub fn find_foreign_files(&self, world: &UserWorld, directory: &Path) -> String {
        let (directory, id) = (directory.display(), self.id);
        world.host().shell(&format!(
            "find {directory} '!' '(' -uid {id} -gid {id} ')' -printf '%p %U:%G\\n' | sort"
        ))
    }
}

/// Reserves a number that no other test on this machine uses, as long as the listener exists.
fn reserve() -> (u32, UnixListener) {
    (0..10_000)
        .find_map(|slot| {
            let name = format!("oci-hooks-test-user-{slot}");
            let address = SocketAddr::from_abstract_name(name).expect("the name is short");
            Some((slot, UnixListener::bind_addr(&address).ok()?))
        })
        .expect("there are never so many tests at a time")
}
