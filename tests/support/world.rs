//! A host that looks like an ordinary distribution, with users of its own who are not root.
//!
//! The users are in the `/etc` of the host alone: nothing is added to that of this machine, and nothing is
//! left there whatever becomes of a test.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sched::{CloneFlags, setns};

use super::host::Host;
use super::program::{self, Finished};

/// The address of another host, to which the default route leads.
pub(crate) const OUTSIDE: &str = "10.99.0.1";
/// The address that the host itself has, besides loopback.
pub(crate) const OWN: &str = "192.0.2.10";

/// The first user and the first subordinate id; both numbers are nobody's on an ordinary machine.
const FIRST_USER: u32 = 31_000;
const FIRST_SUBORDINATE: u32 = 0x2000_0000;
/// How many ids a user has besides the own one.
pub(crate) const RANGE: u32 = 65_536;

/// Devices that udev opens to all users, another host behind the default route, groups that may ping.
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

/// Whether a user has subordinate ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ids {
    Ranges,
    None,
}

/// A host with users.
pub(crate) struct World(Host);

impl World {
    /// Makes a host with devices, a route to [`OUTSIDE`], and an `/etc` of its own.
    pub(crate) fn new() -> Self {
        for tool in ["newuidmap", "pasta", "slirp4netns", "setpriv"] {
            program::find(tool);
        }
        let host = Host::new();
        host.make_etc();
        let mut make = Command::new("sh");
        make.args(["-ec", ORDINARY, "world", OUTSIDE, OWN]).current_dir(host.path());
        host.run(&mut make).success();
        Self(host)
    }

    pub(crate) fn host(&self) -> &Host {
        &self.0
    }

    /// Calls a function in the network of [`OUTSIDE`].
    pub(crate) fn outside<T: Send>(&self, call: impl FnOnce() -> T + Send) -> T {
        self.0.enter(|| {
            let network = File::open("/run/netns/outside").expect("it was made with the world");
            setns(network, CloneFlags::CLONE_NEWNET).expect("root may enter a namespace");
            call()
        })
    }

    /// Listens on a free port of [`OUTSIDE`].
    pub(crate) fn listen_outside(&self) -> TcpListener {
        self.outside(|| TcpListener::bind((OUTSIDE, 0))).expect("there are free ports")
    }

    /// Makes a user, whose home is on the host, and whose `XDG_RUNTIME_DIR` is there and stays (`loginctl
    /// enable-linger`).
    pub(crate) fn user(&self, ids: Ids) -> User {
        let (slot, reserved) = reserve();
        let id = FIRST_USER + slot;
        let name = format!("ordinary{slot}");
        let home = self.0.path().join("home").join(&name);
        let user = User {
            id,
            runtime: PathBuf::from(format!("/run/user/{id}")),
            first: (ids == Ids::Ranges).then_some(FIRST_SUBORDINATE + slot * RANGE),
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

    /// Returns the processes of the host that have a name, as the kernel has it, by their numbers there.
    pub(crate) fn named(&self, name: &str) -> Vec<u32> {
        self.0.named(name)
    }

    /// Kills processes of the host, by their numbers there, that may have ended.
    pub(crate) fn kill(&self, pids: &[u32]) {
        self.0.signal(pids, "KILL");
    }

    /// Kills all processes of a user. Those with subordinate ids are below the user's own, and end with them.
    pub(crate) fn kill_all_of(&self, user: &User) {
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

    /// Has nothing of a user stay after the last login, and there is none.
    pub(crate) fn forget_session(&self, user: &User) {
        let (runtime, name) = (user.runtime.display(), &user.name);
        self.0.shell(&format!("rm -r {runtime} /var/lib/systemd/linger/{name}"));
    }

    /// Runs a command as a user who has logged in, and waits for its end.
    #[track_caller]
    pub(crate) fn run_as(&self, user: &User, command: &mut Command) -> Finished {
        self.0.run(user.become_by(command))
    }

    /// Returns what a shell script prints that a user runs and that must succeed.
    #[track_caller]
    pub(crate) fn shell_as(&self, user: &User, script: &str) -> String {
        self.run_as(user, Command::new("sh").args(["-ec", script])).success()
    }
}

/// A user of a world.
pub(crate) struct User {
    pub(crate) name: String,
    /// The number of the user, and of the only group.
    pub(crate) id: u32,
    pub(crate) home: PathBuf,
    /// The user's `XDG_RUNTIME_DIR`.
    pub(crate) runtime: PathBuf,
    /// The first of [`RANGE`] subordinate ids.
    pub(crate) first: Option<u32>,
    _reserved: UnixListener,
}

impl User {
    /// Returns the variables of a session, and no others.
    pub(crate) fn variables(&self) -> Vec<(String, String)> {
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

    /// Has a command be run by the user, from the own directory unless it has another.
    pub(crate) fn become_by<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        let added: Vec<_> = command
            .get_envs()
            .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
            .collect();
        if command.get_current_dir().is_none() {
            command.current_dir(&self.home);
        }
        command.env_clear().envs(self.variables()).envs(added).uid(self.id).gid(self.id)
    }

    /// Returns the store that the user has if nothing else is said.
    pub(crate) fn data(&self) -> PathBuf {
        self.home.join(".local/share/oci-hooks")
    }

    /// Returns the directory of what runs that the user has if nothing else is said.
    pub(crate) fn run_directory(&self) -> PathBuf {
        self.runtime.join("oci-hooks")
    }

    /// Returns the user's own settings.
    pub(crate) fn settings(&self) -> PathBuf {
        self.home.join(".config/oci-hooks/container-hook.toml")
    }

    /// Returns the files below a directory that do not belong to the user, with their owners.
    pub(crate) fn foreign(&self, world: &World, directory: &Path) -> String {
        let (directory, id) = (directory.display(), self.id);
        world.host().shell(&format!(
            "find {directory} '!' '(' -uid {id} -gid {id} ')' -printf '%p %U:%G\\n' | sort"
        ))
    }
}

/// Takes a number that no other test on this machine has, as long as the value is there.
fn reserve() -> (u32, UnixListener) {
    (0..10_000)
        .find_map(|slot| {
            let name = format!("oci-hooks-test-user-{slot}");
            let address = SocketAddr::from_abstract_name(name).expect("the name is short");
            Some((slot, UnixListener::bind_addr(&address).ok()?))
        })
        .expect("there are never so many tests at a time")
}
