//! What a container may be given beyond its image.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use super::BundleError;
use super::devices::{Device, DeviceRule};
use super::resources::{Resources, Rlimit};
use crate::hooks::Consumer;
use crate::hooks::consumer::PODMAN;
use crate::sys::host_file::HostFile;
use crate::sys::privilege::Privilege;
use crate::sys::userns::{Ids, PrivateIds};

/// Everything a container is given beyond its image and root file system.
///
/// The default is what Docker gives a container, but with `no_new_privileges`.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// Replaces the image's entrypoint, and clears its command; an empty one clears both.
    pub entrypoint: Option<Vec<String>>,
    /// Replaces the image's command; empty leaves it.
    pub args: Vec<String>,
    /// An init of ours that runs the command.
    pub init: Option<Init>,
    /// `NAME=value`, over the image's environment; a bare `NAME` takes the image's away.
    pub env: Vec<String>,
    /// Directories put before the container's `PATH`.
    pub prepend_path: Vec<String>,
    /// The working directory; else the image's, else `/`.
    pub cwd: Option<PathBuf>,
    /// `user|uid[:group|gid]`; else the image's, else root.
    pub user: Option<String>,
    /// Supplementary groups, by name or number, added to those that the image gives the user.
    pub supplementary_groups: Vec<String>,
    /// Whether standard streams are a terminal.
    pub tty: bool,

    /// Mounts, mounted in this order where their depth leaves a choice.
    pub mounts: Vec<Mount>,
    /// Where volumes that the image declares are made, one directory each; without it they are plain
    /// directories of the root file system.
    pub volume_root: Option<PathBuf>,
    /// A path that is there as long as the container is: by it the users of a shared volume are
    /// known.
    pub record: Option<PathBuf>,
    /// The directory, above the root file system, that the runtime sees nothing of but that and what
    /// is mounted into it; else the one the root file system is in. With a user namespace, any user
    /// of the host has to be able to reach it.
    pub stage: Option<PathBuf>,
    /// Whether the root file system is read-only.
    pub read_only: bool,
    /// The size of `/dev/shm`; 64 MiB if not said, and none at all if 0.
    pub shm_size_bytes: Option<u64>,
    pub devices: Vec<Device>,
    /// Rules for the device cgroup, after those of `devices`.
    pub device_rules: Vec<DeviceRule>,

    /// Privileges and what takes them away.
    pub security: Security,
    /// What the container may use.
    pub resources: Resources,
    /// Limits of its processes, clamped to what this process may set.
    pub rlimits: Vec<Rlimit>,
    /// OOM score adjustment, -1000 to 1000; raised to this process's own where that is higher.
    pub oom_score_adj: Option<i32>,
    /// Kernel parameters of the container's own namespaces.
    pub sysctls: BTreeMap<String, String>,
    /// The cgroup, as an absolute path.
    pub cgroups_path: Option<String>,
    /// Whether the container stays in the cgroup of whoever starts it, who may make none: nothing that a
    /// cgroup would limit is limited.
    pub keeps_cgroup: bool,
    /// Which namespaces it has of its own.
    pub namespaces: Namespaces,
    /// The pinned user namespace of the container, in which `private_ids` are those from 0 on, and
    /// the root file system belongs to them; else it is in the host's.
    pub user_namespace: Option<PathBuf>,
    /// Ids of the host that nobody but the container has.
    pub private_ids: PrivateIds,

    /// The host name; the container's own UTS namespace is needed for it.
    pub hostname: Option<String>,
    pub domainname: Option<String>,
    /// `/etc/hosts`, below the names of loopback; `None` leaves the image's.
    pub hosts: Option<Vec<HostEntry>>,
    /// `/etc/resolv.conf`; `None` leaves the image's.
    pub dns: Option<Dns>,
    /// What this process may do, and so the container.
    pub privilege: Privilege,
    /// Annotations of the configuration: what hooks are matched against.
    pub annotations: BTreeMap<String, String>,
    /// Hooks to look for; `None` injects none.
    pub hooks: Option<HookOptions>,
}

impl Options {
    /// Returns the host's id for one of the container.
    pub(super) fn host_id(&self, id: u32) -> Result<u32, BundleError> {
        if self.user_namespace.is_none() {
            return Ok(id);
        }
        let PrivateIds { count, .. } = self.private_ids;
        self.private_ids.on_host(id).ok_or(BundleError::NoSuchId { id, count })
    }
}

/// A program of the host that runs as the container's first process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Init {
    /// The program, static, mounted read-only at [`Init::TARGET`].
    pub program: PathBuf,
    /// Its arguments before the command of the container.
    pub args: Vec<String>,
    /// Whether it runs no command, whatever the image says, and only keeps the container alive.
    pub idle_only: bool,
}

impl Init {
    /// Where it is in the container.
    pub const TARGET: &str = "/dev/init";
    /// Its first argument if it starts steps.
    pub const STEPS: &str = "steps";

    /// Returns whether it starts steps, for those who connect to its socket.
    #[must_use]
    pub fn starts_steps(&self) -> bool {
        self.idle_only && self.args.first().is_some_and(|arg| arg == Init::STEPS)
    }
}

/// A mount that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Where it is in the container: an absolute path.
    pub target: PathBuf,
    pub source: MountSource,
    /// What of a bind or volume is mounted instead of all: a path beneath its top that no symbolic
    /// link leads out of, made as a directory if it is missing.
    pub subpath: Option<PathBuf>,
    pub read_only: bool,
    /// For binds: who owns its files on disk. If nobody is named, they belong on disk to the ids that
    /// they have in the container.
    pub id_mapping: Option<IdMapping>,
}

/// What is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountSource {
    /// A file or directory of the host.
    Bind {
        /// What it is, whatever has its name by now.
        file: HostFile,
        /// How mounts spread between host and container.
        propagation: Propagation,
        /// Whether what is mounted below it comes along.
        recursive: bool,
    },
    /// A file or directory of the host that only its administrator can name and replace.
    Trusted {
        /// Its absolute path; it must exist.
        path: PathBuf,
        /// How mounts spread between host and container.
        propagation: Propagation,
        /// Whether what is mounted below it comes along.
        recursive: bool,
    },
    /// A directory of the host as everybody sees it: read-only, without what is mounted below it as far as the kernel
    /// uncovers that, and with owners that no user namespace maps, so that root of one has no more access to its
    /// files than anybody.
    System {
        file: HostFile,
    },
    /// A directory that outlives the container or not, as its keeper likes.
    Volume {
        /// Its absolute path, where only root can change anything; made if missing.
        path: PathBuf,
        /// Whether an empty one gets what the image has at the target.
        copy: bool,
        /// Whether other containers may have it at the same time.
        is_shared: bool,
    },
    Tmpfs(Tmpfs),
}

/// A file system in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tmpfs {
    /// How much it may hold; half of the memory if not said.
    pub size_bytes: Option<u64>,
    /// The mode of its top directory; 1777 if not said.
    pub mode: Option<u32>,
    /// Mount options over `noexec,nosuid,nodev`, as in `exec` or `uid=1000`.
    pub options: Vec<String>,
}

/// How mounts spread between a bind mount and where it came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Propagation {
    #[default]
    Private,
    /// From the host into the container.
    Slave,
    Shared,
}

/// An idmapped mount: the user and group of the host that a user of the container is on disk.
///
/// So what the container makes in a mounted directory belongs to the user who runs the job, root or
/// not: the container sees files of the host's user as its own user's. Files of other users of the
/// container belong to private ids on disk, and files of other users of the host are nobody's in the
/// container, which can neither make nor change one. Set-user-ID bits and devices have no effect
/// there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdMapping {
    pub host_uid: u32,
    /// The group on disk, for the first group of the container's user.
    pub host_gid: u32,
    /// Which user and group of the container that is, if not the one it runs as.
    pub user: Option<Ids>,
}

/// Privileges, and what takes them away.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Security {
    /// Everything that root of the host has, devices included; in a user namespace of its own, everything that
    /// root of that has, and no devices.
    pub privileged: bool,
    /// Whether set-user-ID programs such as `sudo` have no effect.
    pub no_new_privileges: bool,
    /// Whether the container must not run as root.
    pub non_root: bool,
    /// Kubernetes' "restricted": no capability, no root user, no new privileges.
    pub restricted: bool,
    /// Capabilities to add, with or without `CAP_`; `ALL` adds all.
    pub cap_add: Vec<String>,
    /// Capabilities to take away, with or without `CAP_`; `ALL` takes all but the added ones.
    pub cap_drop: Vec<String>,
    /// Which system calls are allowed.
    pub seccomp: Seccomp,
    /// Whether `/proc` and `/sys` show what the host does not hide by itself.
    pub unmask: bool,
    /// Whether programs in it may make user namespaces and be root of those, to run containers of their
    /// own: the system calls for that are allowed, and `/proc` and `/sys` are not masked, as the kernel lets
    /// nobody mount others otherwise. Only for a container whose root is nobody on the host.
    pub nesting: bool,
    pub apparmor_profile: Option<String>,
    /// The SELinux label of the process.
    pub selinux_label: Option<String>,
}

impl Default for Security {
    fn default() -> Self {
        Security {
            privileged: false,
            no_new_privileges: true,
            non_root: false,
            restricted: false,
            cap_add: Vec::new(),
            cap_drop: Vec::new(),
            seccomp: Seccomp::Default,
            unmask: false,
            nesting: false,
            apparmor_profile: None,
            selinux_label: None,
        }
    }
}

/// Which system calls are allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Seccomp {
    /// Those of Docker's default profile, but device nodes with `CAP_MKNOD` alone.
    #[default]
    Default,
    Unconfined,
    /// What a `linux.seccomp` object of the runtime specification says.
    Profile(serde_json::Value),
}

/// Which namespaces a container has of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Namespaces {
    /// The network; a private one is empty but for a loopback interface that is down.
    pub network: Namespace,
    pub pid: Namespace,
    /// System V IPC and POSIX message queues.
    pub ipc: Namespace,
    pub uts: Namespace,
    /// The view of the cgroup tree.
    pub cgroup: Namespace,
}

/// Where a namespace comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Namespace {
    /// A new one, made by the runtime.
    #[default]
    Private,
    Host,
    /// One that is pinned here.
    Path(PathBuf),
}

/// A line of `/etc/hosts`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostEntry {
    pub address: IpAddr,
    pub names: Vec<String>,
}

/// Where names are looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dns {
    /// The files of the host that it starts from: the first with a resolver that can be reached.
    pub host_files: Vec<PathBuf>,
    /// Whether resolvers on the host's loopback can be reached: only in the host's network.
    pub loopback_works: bool,
    /// Whether what follows comes after what the host has instead of replacing it.
    pub append: bool,
    /// Replaces the host's resolvers, if there are any.
    pub servers: Vec<IpAddr>,
    /// What looks names up if nothing else is left that does.
    pub fallback: Option<IpAddr>,
    /// Replaces the host's search list, if there is any; `.` alone empties it.
    pub search: Vec<String>,
    /// Replaces the host's options, if there are any.
    pub options: Vec<String>,
}

impl Default for Dns {
    fn default() -> Self {
        Dns {
            host_files: default_host_files(),
            loopback_works: false,
            append: false,
            servers: Vec::new(),
            fallback: None,
            search: Vec::new(),
            options: Vec::new(),
        }
    }
}

/// Which hooks.d hooks are injected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HookOptions {
    /// The directories, in order of increasing precedence; else those of the consumer.
    pub dirs: Option<Vec<PathBuf>>,
    /// Whose rules for directories and matching hold.
    pub consumer: Consumer,
    /// Whether hooks writable by others than root and this user are rejected, and those without
    /// an environment get an empty one.
    pub strict: bool,
    /// Whether a bad hook file is a problem to report only.
    pub skip_bad_files: bool,
    /// Whether `precreate` hooks run, which may change the configuration.
    pub precreate: bool,
}

impl Default for HookOptions {
    fn default() -> Self {
        HookOptions {
            dirs: None,
            consumer: PODMAN,
            strict: true,
            skip_bad_files: false,
            precreate: true,
        }
    }
}

/// Returns the files of the host that resolvers are read from: systemd's own stub listens on
/// loopback only, and names the real ones in the second.
fn default_host_files() -> Vec<PathBuf> {
    ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"].map(PathBuf::from).to_vec()
}
