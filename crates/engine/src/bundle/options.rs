//! The request for a container beyond its image: user, mounts, devices, limits, security, namespaces and hooks.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use oci_hooks::cdi::DeviceSelection;
use oci_hooks::hooks::Consumer;
use oci_hooks::hooks::consumer::PODMAN;
use oci_hooks_host::host_file::HostFile;
use oci_hooks_host::privilege::Privilege;
use oci_hooks_host::userns::{OwnerIds, PrivateIds};

use super::BundleError;
use super::devices::{DeviceRule, HostDevice};
use super::resources::{ProcessRlimit, ResourceLimits};

/// Options of a container beyond its image and root file system.
///
/// The defaults are Docker's, but with `no_new_privileges`, without `CAP_MKNOD`, and with a limit of processes.
#[derive(Clone, Debug, Default)]
pub struct BundleOptions {
    /// Replaces the image's entrypoint and clears its command; an empty entrypoint clears both.
    pub entrypoint: Option<Vec<String>>,
    /// Replaces the image's command, unless empty.
    pub args: Vec<String>,
    /// Init of the engine, which runs the command.
    pub init: Option<ContainerInit>,
    /// `NAME=value`, overriding the image's environment; a bare `NAME` unsets the variable.
    pub env: Vec<String>,
    /// Directories put before the container's `PATH`.
    pub prepend_path: Vec<String>,
    /// Working directory; by default the image's, or `/`.
    pub cwd: Option<PathBuf>,
    /// `user|uid[:group|gid]`; by default the image's, or root.
    pub user: Option<String>,
    /// Supplementary groups, by name or number, in addition to the image's groups of the user.
    pub supplementary_groups: Vec<String>,
    /// If set, standard streams are a terminal.
    pub tty: bool,

    /// Mounts, made in order of the depth of their targets, and in this order at equal depth.
    pub mounts: Vec<MountRequest>,
    /// Directory for the volumes that the image declares, one directory each; without it they are plain
    /// directories of the root file system.
    pub volume_root: Option<PathBuf>,
    /// Path that exists as long as the container. Each volume has a list of its containers with
    /// these paths.
    pub record: Option<PathBuf>,
    /// Directory above the root file system, on which the runtime sees only the root file system
    /// and the mount sources; by default the parent of the root file system. With a user namespace,
    /// every user of the host must be able to reach it.
    pub stage: Option<PathBuf>,
    /// If set, the root file system is read-only.
    pub read_only: bool,
    /// Size of `/dev/shm`; by default 64 MiB, with 0 not mounted.
    pub shm_size_bytes: Option<u64>,
    pub devices: Vec<HostDevice>,
    /// CDI devices, without the mounts and groups that [`BundleOptions::add_cdi_devices`] adds to the other
    /// options.
    pub cdi: DeviceSelection,
    /// Rules for the device cgroup, applied after `devices`.
    pub device_rules: Vec<DeviceRule>,

    pub security: ContainerSecurity,
    /// Limits of the container's cgroup.
    pub resources: ResourceLimits,
    /// Limits of each process, clamped to what this process may set.
    pub rlimits: Vec<ProcessRlimit>,
    /// OOM score adjustment, -1000 to 1000; raised to this process's own if that is higher and this
    /// process may not lower it.
    pub oom_score_adj: Option<i32>,
    /// Kernel parameters of the container's own namespaces.
    pub sysctls: BTreeMap<String, String>,
    /// The cgroup, as an absolute path.
    pub cgroups_path: Option<String>,
    /// If set, the container stays in the cgroup of the caller, who may not create any: no cgroup limit is enforced.
    pub keeps_cgroup: bool,
    pub namespaces: ContainerNamespaces,
    /// Pinned user namespace of the container, which maps ids from 0 on to `private_ids`, the owners of the
    /// root file system; `None` for the host's.
    pub user_namespace: Option<PathBuf>,
    /// Host ids reserved for the container.
    pub private_ids: PrivateIds,

    /// Host name; requires the container's own UTS namespace.
    pub hostname: Option<String>,
    pub domainname: Option<String>,
    /// Entries of `/etc/hosts`, after the loopback names; `None` keeps the image's file.
    pub hosts: Option<Vec<HostEntry>>,
    /// `/etc/resolv.conf`; `None` keeps the image's file.
    pub dns: Option<ResolverOptions>,
    /// Privileges of this process, which limit the container's.
    pub privilege: Privilege,
    /// Annotations of the configuration, against which hooks are matched.
    pub annotations: BTreeMap<String, String>,
    /// Hooks to inject; `None` injects none.
    pub hooks: Option<HookOptions>,
}

impl BundleOptions {
    /// Returns the host id of a container id.
    pub(super) fn host_id(&self, id: u32) -> Result<u32, BundleError> {
        if self.user_namespace.is_none() {
            return Ok(id);
        }
        let PrivateIds { count, .. } = self.private_ids;
        self.private_ids.host_id(id).ok_or(BundleError::NoSuchId { id, count })
    }
}

/// A program of the host that runs as the container's first process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerInit {
    /// Static program, mounted read-only at [`ContainerInit::TARGET`].
    pub program: PathBuf,
    /// Arguments before the command of the container.
    pub args: Vec<String>,
    /// If set, the init runs no command, whatever the image says, and only keeps the container alive.
    pub idle_only: bool,
}

impl ContainerInit {
    /// Path in the container.
    pub const TARGET: &str = "/dev/init";
    /// First argument of an init that starts steps.
    pub const STEPS: &str = "steps";

    /// Returns whether the init starts steps for clients of its socket.
    #[must_use]
    pub fn starts_steps(&self) -> bool {
        self.idle_only && self.args.first().is_some_and(|arg| arg == ContainerInit::STEPS)
    }
}

/// A requested mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountRequest {
    /// Absolute path in the container.
    pub target: PathBuf,
    pub source: MountSource,
    /// Path below the source of a bind or volume, mounted instead of the source. Symlinks cannot lead out of
    /// the source; created as a directory if missing.
    pub subpath: Option<PathBuf>,
    pub read_only: bool,
    /// Owner of the files on disk, for binds. If `None`, files have the same ids on disk as in the container.
    pub id_mapping: Option<IdMapping>,
}

/// Source of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountSource {
    /// A file or directory of the host.
    Bind {
        /// Open file or directory, even if another one has its name by now.
        file: HostFile,
        /// Propagation of mounts between host and container.
        propagation: MountPropagation,
        /// If set, submounts are included.
        recursive: bool,
    },
    /// A file or directory of the host that only its administrator can name and replace.
    Trusted {
        /// Absolute path, which must exist.
        path: PathBuf,
        /// Propagation of mounts between host and container.
        propagation: MountPropagation,
        /// If set, submounts are included.
        recursive: bool,
    },
    /// A directory of the host as every user sees it: read-only, without submounts where the kernel permits
    /// that, and without mapped owners, so that root of a user namespace has no more access to its files than
    /// any other user.
    System {
        file: HostFile,
    },
    /// A directory that may outlive the container.
    Volume {
        /// Absolute path, in a directory that only root can change; created if missing.
        path: PathBuf,
        /// If set, an empty volume gets the image's files at the target.
        copy: bool,
        /// If set, the volume outlives the container, and other containers may have it at the same time.
        is_shared: bool,
    },
    Tmpfs(TmpfsMount),
}

/// A file system in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TmpfsMount {
    /// Maximum size; by default half of the memory.
    pub size_bytes: Option<u64>,
    /// Mode of the root directory; by default 1777.
    pub mode: Option<u32>,
    /// Mount options, overriding `noexec,nosuid,nodev`, such as `exec` or `uid=1000`.
    pub options: Vec<String>,
}

/// Propagation of mounts between a bind mount and its source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MountPropagation {
    #[default]
    Private,
    /// Mounts on the host appear in the container too.
    Slave,
    Shared,
}

/// Owners on disk of the files of an idmapped mount. Files of other users of the host belong to the overflow user
/// in the container, which can neither create nor change such files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdMapping {
    /// Maps one user of the host to one user of the container.
    ///
    /// Files that the container creates in a mounted directory belong to the user who runs the job, root or not:
    /// the container sees files of the host's user as its own user's. Files of other users of the container have
    /// private ids on disk.
    User {
        host_uid: u32,
        /// Group on disk for the primary group of the container's user.
        host_gid: u32,
        /// User and group in the container; by default those that the container runs as.
        user: Option<OwnerIds>,
        /// If set, a file system that cannot map owners is not mounted. Otherwise it is mounted unmapped where that
        /// gives the container no access to files of other users: read-only in a user namespace, and in a privileged
        /// container whose user is root of the host.
        is_required: bool,
    },
    /// Maps [`PrivateIds::STORED`] to the container's ids from 0 on. No user of the host has these
    /// ids on disk, so a set-user-ID file that a job leaves gives no user's rights.
    Stored,
}

/// Privileges and restrictions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerSecurity {
    /// All privileges of the host's root, devices included; with a user namespace, all privileges of root in
    /// that namespace, without devices.
    pub privileged: bool,
    /// If set, set-user-ID programs such as `sudo` have no effect.
    pub no_new_privileges: bool,
    /// If set, the container must not run as root.
    pub non_root: bool,
    /// Kubernetes' "restricted": no capability, no root user, no new privileges.
    pub restricted: bool,
    /// Capabilities to add, with or without `CAP_`; `ALL` adds all.
    pub cap_add: Vec<String>,
    /// Capabilities to drop, with or without `CAP_`; `ALL` drops all but the added ones.
    pub cap_drop: Vec<String>,
    pub seccomp: Seccomp,
    /// If set, no path in `/proc` and `/sys` is masked, and none in `/proc` is read-only.
    pub unmask: bool,
    /// If set, programs may create user namespaces and be root in them, to run nested containers: the system
    /// calls for that are permitted, and `/proc` and `/sys` are not masked, because otherwise the kernel does
    /// not permit mounting new ones. Only for a container whose root has an unused id on the host.
    pub nesting: bool,
    pub apparmor_profile: Option<String>,
    /// SELinux label of the process.
    pub selinux_label: Option<String>,
}

impl Default for ContainerSecurity {
    fn default() -> Self {
        ContainerSecurity {
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

/// Permitted system calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Seccomp {
    /// Docker's default profile, but device nodes only with `CAP_MKNOD`.
    #[default]
    Default,
    Unconfined,
    /// A `linux.seccomp` object of the runtime specification.
    Profile(serde_json::Value),
}

/// Namespaces of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerNamespaces {
    /// Network namespace; a private one has only a loopback interface that is down.
    pub network: NamespaceSource,
    pub pid: NamespaceSource,
    /// Namespace of System V IPC and POSIX message queues.
    pub ipc: NamespaceSource,
    pub uts: NamespaceSource,
    /// Cgroup namespace: the container's view of the cgroup tree.
    pub cgroup: NamespaceSource,
}

/// Origin of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NamespaceSource {
    /// A new namespace, made by the runtime.
    #[default]
    Private,
    Host,
    /// A namespace pinned at this path.
    Path(PathBuf),
}

/// A line of `/etc/hosts`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostEntry {
    pub address: IpAddr,
    pub names: Vec<String>,
}

/// Resolvers of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolverOptions {
    /// Files of the host to start from: the first one with a reachable resolver is used.
    pub host_files: Vec<PathBuf>,
    /// If set, resolvers on the host's loopback are reachable: the container is in the host's
    /// network namespace.
    pub loopback_works: bool,
    /// If set, the following lists are appended to the host's instead of replacing them.
    pub append: bool,
    /// Replaces the host's resolvers, unless empty.
    pub servers: Vec<IpAddr>,
    /// Resolver to use if no other one is left.
    pub fallback: Option<IpAddr>,
    /// Replaces the host's search list, unless empty; a single `.` clears it.
    pub search: Vec<String>,
    /// Replaces the host's options, unless empty.
    pub options: Vec<String>,
}

impl Default for ResolverOptions {
    fn default() -> Self {
        ResolverOptions {
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

/// Options of injecting hooks of hooks.d.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookOptions {
    /// Directories of hook files, in order of increasing precedence; `None` for those of
    /// `consumer`.
    pub dirs: Option<Vec<PathBuf>>,
    /// Program whose rules for directories and matching apply, such as Podman.
    pub consumer: Consumer,
    /// If set, hooks writable by users other than root and this user are rejected, and hooks without an
    /// environment get an empty one.
    pub strict: bool,
    /// If set, a bad hook file is only reported as a problem.
    pub skip_bad_files: bool,
    /// If set, `precreate` hooks run, and may change the configuration.
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

/// Returns the host's files of DNS resolvers. The first may name only systemd's stub resolver on
/// loopback; the second names the resolvers that the stub uses.
fn default_host_files() -> Vec<PathBuf> {
    ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"].map(PathBuf::from).to_vec()
}
