//! Differences between the programs that read hooks.d.
//!
//! This is the only table of differences: other code reads its values and names no consumer.

use std::collections::BTreeMap;
use std::path::Path;

use super::OciStage;

/// Directory for hook files of distributions.
pub const DEFAULT_DIR: &str = "/usr/share/containers/oci/hooks.d";
/// Directory for hook files of administrators; a file here hides one of the same name in [`DEFAULT_DIR`].
pub const OVERRIDE_DIR: &str = "/etc/containers/oci/hooks.d";

/// A program that reads hook files.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Consumer {
    /// The name on the command line.
    pub name: &'static str,
    /// Second name, with the version, such as `podman-6`; `None` without one. It still names this
    /// version when `name` names a newer one.
    pub alias: Option<&'static str>,
    /// One line about the consumer.
    pub about: &'static str,
    /// Directories of its hook files, in order of increasing precedence. The consumer's configuration
    /// decides which ones are read.
    pub dirs: &'static [&'static str],
    /// Configuration that sets the consumer's hook directories.
    pub config: DirsConfig,
    /// Stages that the consumer runs itself.
    pub extension_stages: &'static [&'static str],
    /// Stage at which `prestart` hooks are injected.
    pub prestart: OciStage,
    /// Mounts that count for `hasBindMounts`.
    pub bind_mounts: BindMountRule,
    /// Annotations that the consumer matches, as a phrase for messages.
    pub annotations: &'static str,
    /// Annotations of `config.json` that the consumer matches.
    pub annotation_rule: AnnotationRule,
    /// Containers into which the consumer injects no hooks; `None` if there are none.
    pub exempt: Option<ExemptContainers>,
    /// The effect of a rejected hook file on this consumer.
    pub bad_files: BadFilePolicy,
}

/// Places where a consumer's directories are configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DirsConfig {
    /// `hooks_dir` under `[engine]` of containers.conf(5); the default is [`DEFAULT_DIR`].
    ContainersConf {
        /// Files that this version of podman reads.
        files: ContainersConfFiles,
        /// Directories to read if `hooks_dir` is an empty list.
        empty: EmptyDirsRule,
    },
    /// `hooks_dir` under `[crio.runtime]` of crio.conf(5); the default is [`DEFAULT_DIR`].
    CrioConf,
    /// Command-line options only. Without options, root reads [`Consumer::dirs`] and other users
    /// read no directory.
    RootOnly,
    /// Command-line options only. Without options, every user reads [`Consumer::dirs`].
    Options,
}

/// The containers.conf(5) files that a version of podman reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainersConfFiles {
    /// All main files; those in `/etc` and in the home directory are each followed by their
    /// drop-ins. Root's home directory is not read.
    AllOfRootless,
    /// The files of [`Self::AllOfRootless`], and those in root's home directory.
    All,
    /// Only the main file of the highest precedence, then the drop-ins of all directories, sorted
    /// by name. A later directory masks drop-ins of the same name.
    FirstThenDropIns,
}

/// The hook directories that a consumer reads if `hooks_dir` is an empty list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmptyDirsRule {
    /// The consumer reads no directory.
    None,
    /// Root reads [`DEFAULT_DIR`] and [`OVERRIDE_DIR`] separately: files of one do not mask those
    /// of the other. Other users read no directory.
    Implicit,
}

/// Containers that get no hooks, marked by an annotation of their `config.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExemptContainers {
    /// Key of the annotation.
    pub key: &'static str,
    /// Value of the annotation.
    pub value: &'static str,
    /// Description of the containers for messages.
    pub what: &'static str,
}

/// Annotations of `config.json` that a consumer matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnnotationRule {
    /// All annotations of the configuration.
    #[default]
    All,
    /// Annotations that Kubernetes passes to CRI-O. Annotations that CRI-O adds do not count, among
    /// them the labels that the kubelet sets.
    OfKubernetes,
    /// All annotations of `config.json`. The consumer also matches annotations that only the engine
    /// knows, such as those of the pod.
    OfEngine,
}

/// Mounts that a consumer counts for `hasBindMounts`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindMountRule {
    /// Every mount at a destination where engines mount nothing themselves, volumes and tmpfs included.
    AnyUserMount,
    /// Every mount the user requested, volumes and tmpfs included, at any destination.
    AnyUserMountOfPodman,
    /// The mounts of [`Self::AnyUserMountOfPodman`], and the tmpfs at `/var/tmp` that podman adds
    /// to a read-only root.
    AnyUserMountOfPodmanOrVarTmp,
    /// Every mount that the kubelet requests, including the mounts for `/etc/hosts` and the service
    /// account.
    AnyMountOfKubelet,
    /// Every mount, including those that engines add to every container.
    AnyMount,
}

/// An entry of `mounts` in `config.json`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConfigMount<'a> {
    pub destination: &'a str,
    /// The type; empty if there is none.
    pub kind: &'a str,
    /// The source; empty if there is none.
    pub source: &'a str,
    pub options: &'a [&'a str],
}

/// The origin of a mount of `config.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountOrigin {
    User,
    Engine,
    /// The mount looks like one of the engine's own, but may be the user's.
    Unclear,
    /// The mount looks like a user's, but may be the kubelet's or one that podman does not count: of
    /// another container (`--volumes-from`), or for a volume of the image.
    ProbablyUser,
}

impl MountOrigin {
    /// Returns whether the mount counts as the user's. [`Self::ProbablyUser`] does, because a hook
    /// that guards against mounts would otherwise not run; [`Self::Unclear`] does not.
    pub fn counts(self) -> bool {
        matches!(self, MountOrigin::User | MountOrigin::ProbablyUser)
    }
}

/// Reaction of a consumer to a hook file that it rejects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BadFilePolicy {
    /// No container starts.
    #[default]
    NoContainers,
    /// The consumer does not start, and containers start without hooks.
    NoHooks,
    /// The consumer leaves the file out. If the file was valid while the consumer ran, its last
    /// valid version stays active; all other consumers drop the hook at once.
    Skipped,
}

/// podman 6, the newest version.
pub const PODMAN: Consumer = Consumer {
    name: "podman",
    alias: Some("podman-6"),
    about: "podman 6, the newest version (also podman-6)",
    dirs: &[DEFAULT_DIR, OVERRIDE_DIR],
    config: DirsConfig::ContainersConf {
        files: ContainersConfFiles::FirstThenDropIns,
        empty: EmptyDirsRule::Implicit,
    },
    extension_stages: &["precreate", "poststop"],
    prestart: OciStage::CreateRuntime,
    bind_mounts: BindMountRule::AnyUserMountOfPodman,
    annotations: "those given with --annotation; labels do not count",
    annotation_rule: AnnotationRule::All,
    exempt: None,
    bad_files: BadFilePolicy::NoContainers,
};

/// podman 5, which reads other containers.conf(5) files than podman 6.
pub const PODMAN_5: Consumer = Consumer {
    name: "podman-5",
    alias: None,
    about: "podman 5",
    config: DirsConfig::ContainersConf {
        files: ContainersConfFiles::All,
        empty: EmptyDirsRule::Implicit,
    },
    ..PODMAN
};

/// podman up to 4.9, which injects `prestart` hooks unchanged.
pub const PODMAN_4: Consumer = Consumer {
    name: "podman-4",
    about: "podman up to 4.9",
    config: DirsConfig::ContainersConf {
        files: ContainersConfFiles::AllOfRootless,
        empty: EmptyDirsRule::None,
    },
    prestart: OciStage::Prestart,
    bind_mounts: BindMountRule::AnyUserMountOfPodmanOrVarTmp,
    ..PODMAN_5
};

/// buildah, and podman when it builds images.
pub const BUILDAH: Consumer = Consumer {
    name: "buildah",
    alias: None,
    about: "buildah and podman build",
    config: DirsConfig::RootOnly,
    extension_stages: &[],
    bind_mounts: BindMountRule::AnyUserMount,
    annotations: "those of the image",
    ..PODMAN
};

/// CRI-O, the container engine of Kubernetes.
pub const CRIO: Consumer = Consumer {
    name: "crio",
    alias: None,
    about: "CRI-O",
    dirs: &[DEFAULT_DIR],
    config: DirsConfig::CrioConf,
    extension_stages: &[],
    bind_mounts: BindMountRule::AnyMountOfKubelet,
    annotations: "those of the container, overlaid by those of the pod",
    annotation_rule: AnnotationRule::OfKubernetes,
    exempt: Some(ExemptContainers {
        key: "io.kubernetes.cri-o.ContainerType",
        value: "sandbox",
        what: "the sandbox of a pod",
    }),
    ..PODMAN
};

/// `oci-hooks-nri`, the plugin of this package for containerd and CRI-O.
pub const NRI: Consumer = Consumer {
    name: "nri",
    about: "containerd or CRI-O with oci-hooks-nri",
    dirs: &[DEFAULT_DIR, OVERRIDE_DIR],
    config: DirsConfig::Options,
    bind_mounts: BindMountRule::AnyUserMount,
    annotation_rule: AnnotationRule::OfEngine,
    exempt: None,
    bad_files: BadFilePolicy::Skipped,
    ..CRIO
};

/// The sample plugin of the NRI project.
pub const HOOK_INJECTOR: Consumer = Consumer {
    name: "hook-injector",
    about: "containerd or CRI-O with hook-injector, the sample plugin of NRI",
    bind_mounts: BindMountRule::AnyMount,
    bad_files: BadFilePolicy::NoHooks,
    ..NRI
};

impl Consumer {
    /// All consumers, the default first.
    pub const ALL: [Consumer; 7] = [PODMAN, PODMAN_5, PODMAN_4, BUILDAH, CRIO, NRI, HOOK_INJECTOR];

    /// All versions of podman, the newest first.
    pub const PODMAN_VERSIONS: [Consumer; 3] = [PODMAN, PODMAN_5, PODMAN_4];

    /// Finds a consumer by its name or alias.
    pub fn from_name(name: &str) -> Option<Self> {
        let has_name = |consumer: &Consumer| consumer.name == name || consumer.alias == Some(name);
        Self::ALL.into_iter().find(has_name)
    }

    /// Returns the consumer for a major version of podman.
    pub fn of_podman(major_version: u64) -> Self {
        match major_version {
            0..=4 => PODMAN_4,
            5 => PODMAN_5,
            _ => PODMAN,
        }
    }

    /// Returns why a container with these annotations gets no hooks, or `None` if it may get some.
    pub fn exemption(&self, annotations: &BTreeMap<String, String>) -> Option<String> {
        let ExemptContainers { key, value, what } = self.exempt?;
        let is_exempt = annotations.get(key).is_some_and(|found| found == value);
        is_exempt.then(|| {
            format!("{} injects no hooks into {what} (annotation {key}={value})", self.name)
        })
    }
}

impl AnnotationRule {
    /// Returns whether an annotation of `config.json` is matched.
    pub fn counts(self, key: &str) -> bool {
        match key.strip_prefix("io.kubernetes.cri-o.") {
            _ if self != AnnotationRule::OfKubernetes => true,
            Some(rest) => CRIO_POD_ANNOTATIONS.iter().any(|own| {
                rest.strip_prefix(own)
                    .is_some_and(|end| end.is_empty() || end.starts_with(['.', '/']))
            }),
            None => !CRIO_ANNOTATIONS.contains(&key),
        }
    }
}

/// Suffixes of the deprecated pod annotations with CRI-O's prefix. CRI-O itself adds all other
/// annotations with this prefix.
const CRIO_POD_ANNOTATIONS: [&str; 13] = [
    "Devices",
    "DisableFIPS",
    "LinkLogs",
    "PodLinuxOverhead",
    "PodLinuxResources",
    "ShmSize",
    "Spoofed",
    "TrySkipVolumeSELinuxLabel",
    "UnifiedCgroup",
    "cgroup2-mount-hierarchy-rw",
    "seccompNotifierAction",
    "umask",
    "userns-mode",
];

/// Annotations without CRI-O's prefix that CRI-O adds to every container: its own, properties for
/// systemd, the stop signal of the image, and the labels that the kubelet sets.
const CRIO_ANNOTATIONS: [&str; 10] = [
    "io.container.manager",
    "io.kubernetes.container.name",
    "io.kubernetes.pod.name",
    "io.kubernetes.pod.namespace",
    "io.kubernetes.pod.uid",
    "org.opencontainers.image.stopSignal",
    "org.systemd.property.After",
    "org.systemd.property.DefaultDependencies",
    "org.systemd.property.TimeoutStopUSec",
    "platform-runtime-path.crio.io",
];

impl BindMountRule {
    /// Returns the origin of a mount, as far as `config.json` shows it.
    ///
    /// - Podman's own files are below a directory named after the container ID, and podman's own
    ///   bind mounts always have the same options.
    /// - For a user's bind mount, podman writes a propagation option and then `rbind`. Other
    ///   engines write no propagation option, or write it after `rbind`.
    /// - A tmpfs with a propagation option is the user's, or podman's for systemd or a read-only
    ///   root. Podman's always has the same options; up to podman 5.5, a user's tmpfs has them by
    ///   default.
    /// - Podman does not count bind mounts of `--volumes-from`. An annotation of the container
    ///   shows that this option was used, but not which mounts it added.
    pub fn origin(
        self,
        mount: &ConfigMount<'_>,
        annotations: &BTreeMap<String, String>,
    ) -> MountOrigin {
        use BindMountRule::*;
        match self {
            AnyMount => MountOrigin::User,
            AnyMountOfKubelet => {
                let is_of_host = mount.is_usual() && mount.source == mount.destination;
                let is_own = mount.kind != "bind" || is_of_host || mount.is_in_userdata();
                if is_own { MountOrigin::Engine } else { MountOrigin::User }
            }
            AnyUserMountOfPodmanOrVarTmp if mount.destination == "/var/tmp" => MountOrigin::User,
            AnyUserMount if mount.is_usual() || mount.is_at_usual_tmpfs() => MountOrigin::Engine,
            AnyUserMount => MountOrigin::User,
            _ if mount.kind == "bind" => match mount.bind_origin() {
                MountOrigin::User if annotations.contains_key(VOLUMES_FROM) => {
                    MountOrigin::ProbablyUser
                }
                origin => origin,
            },
            _ => mount.other_origin(),
        }
    }
}

impl ConfigMount<'_> {
    /// Returns whether engines mount something at the destination in every container.
    fn is_usual(&self) -> bool {
        let destination = Path::new(self.destination);
        destination.starts_with("/proc")
            || destination.starts_with("/sys")
            || USUAL_MOUNTS.contains(&self.destination)
    }

    /// Returns whether the mount is a tmpfs at a destination where podman mounts one for systemd or
    /// a read-only root.
    fn is_at_usual_tmpfs(&self) -> bool {
        self.kind == "tmpfs" && USUAL_TMPFS.contains(&self.destination)
    }

    /// Returns the components of the source after a container ID (64 hexadecimal digits); `None` if
    /// it contains no ID.
    fn container_file(&self) -> Option<impl Iterator<Item = &[u8]>> {
        let source = Path::new(self.source).components();
        let mut names = source.map(|it| it.as_os_str().as_encoded_bytes());
        let is_id = |name: &[u8]| name.len() == 64 && name.iter().all(u8::is_ascii_hexdigit);
        names.any(is_id).then_some(names)
    }

    /// Returns whether the source is a file that podman or CRI-O made for the container.
    fn is_in_userdata(&self) -> bool {
        self.container_file().and_then(|mut names| names.next()) == Some(b"userdata")
    }

    fn bind_origin(&self) -> MountOrigin {
        let is_own = match self.options {
            ["slave", "nosuid", "noexec", "ro" | "rw", "rbind"] => self.source.starts_with("/dev/"),
            _ if !self.is_usual() => false,
            ["bind", "ro", "private" | "rprivate"] => INIT_PROGRAMS.contains(&self.destination),
            ["bind", "rprivate"]
            | ["bind", "rprivate", "nosuid", "noexec", "nodev"]
            | ["rprivate", "nosuid", "noexec", "nodev", "ro", "rbind"]
            | ["rbind", "nosuid", "noexec", "nodev", "rw", "rprivate"] => {
                self.source == self.destination
            }
            _ => false,
        };
        let position = |wanted: &[&str]| self.options.iter().position(|it| wanted.contains(it));
        match (position(&PROPAGATIONS), position(&["rbind"])) {
            _ if is_own || self.is_in_userdata() => MountOrigin::Engine,
            _ if !self.is_usual() => MountOrigin::User,
            (None, _) => MountOrigin::Engine,
            // Docker and the kubelet write the options in this order; users can, too.
            (Some(propagation), Some(recursive)) if recursive < propagation => {
                match self.source {
                    _ if self.container_file().is_some() => MountOrigin::Engine,
                    // `docker run --ipc host`
                    "/dev/shm" if self.destination == "/dev/shm" => MountOrigin::Unclear,
                    _ => MountOrigin::ProbablyUser,
                }
            }
            _ => MountOrigin::User,
        }
    }

    /// Returns the origin of a mount that is no bind mount.
    fn other_origin(&self) -> MountOrigin {
        let has = |wanted: &[&str]| self.options.iter().any(|option| wanted.contains(option));
        let is_own = match self.kind {
            "tmpfs" if self.destination == "/dev" => has(&["strictatime"]),
            "tmpfs" => !has(&PROPAGATIONS),
            "devpts" => has(&["newinstance"]),
            "overlay" => false,
            _ => true,
        };
        // A tmpfs for systemd also has a size option, which may be an empty string.
        let (own, rest) = self.options.split_at(OWN_TMPFS_OPTIONS.len().min(self.options.len()));
        let is_as_own = *own == OWN_TMPFS_OPTIONS
            && rest.iter().all(|option| option.is_empty() || option.starts_with("size="));
        match (self.is_usual() || self.is_at_usual_tmpfs(), is_own) {
            (true, true) => MountOrigin::Engine,
            (true, false) if self.is_at_usual_tmpfs() && is_as_own => MountOrigin::Unclear,
            _ if self.kind == "tmpfs" && self.options.starts_with(&IMAGE_TMPFS_OPTIONS) => {
                MountOrigin::ProbablyUser
            }
            _ => MountOrigin::User,
        }
    }
}

const PROPAGATIONS: [&str; 8] =
    ["private", "rprivate", "slave", "rslave", "shared", "rshared", "unbindable", "runbindable"];

/// Options of podman's tmpfs for systemd or a read-only root.
const OWN_TMPFS_OPTIONS: [&str; 5] = ["rw", "rprivate", "nosuid", "nodev", "tmpcopyup"];

/// Podman's annotation that lists the containers of `--volumes-from`.
const VOLUMES_FROM: &str = "io.podman.annotations.volumes-from";

/// Options of podman's tmpfs for a volume of an image, with `--image-volume tmpfs`.
const IMAGE_TMPFS_OPTIONS: [&str; 4] = ["rprivate", "rw", "nodev", "exec"];

/// Destinations where engines mount something in every container, besides those below `/proc` and `/sys`.
const USUAL_MOUNTS: [&str; 15] = [
    "/dev",
    "/dev/console",
    "/dev/mqueue",
    "/dev/pts",
    "/dev/shm",
    "/dev/termination-log",
    "/etc/hostname",
    "/etc/hosts",
    "/etc/resolv.conf",
    "/run/.containerenv",
    "/run/secrets",
    "/sbin/docker-init",
    "/dev/init",
    "/run/podman-init",
    "/var/run/secrets/kubernetes.io/serviceaccount",
];

/// Destinations of the program that `--init` mounts.
const INIT_PROGRAMS: [&str; 3] = ["/sbin/docker-init", "/dev/init", "/run/podman-init"];

/// Destinations of podman's tmpfs for systemd or for a read-only root.
const USUAL_TMPFS: [&str; 5] = ["/run", "/run/lock", "/tmp", "/var/log/journal", "/var/tmp"];

#[cfg(test)]
mod tests {
    use super::*;

    use MountOrigin::{Engine, ProbablyUser, Unclear, User};

    const ID: &str = "d807f3757617c3ae1b9b7dd2ab2d7b9dbb1d7f1bf0a43a8ff6a1cf9b1b6f5d3e";

    /// Returns the origin of a mount whose fields are separated by spaces, for a consumer.
    fn origin(consumer: &Consumer, mount: &str) -> MountOrigin {
        let mount = mount.replace("ID", ID);
        let [destination, kind, source, options] =
            mount.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let options = &options.split(',').collect::<Vec<_>>();
        let mount = ConfigMount { destination, kind, source, options };
        consumer.bind_mounts.origin(&mount, &BTreeMap::new())
    }

    #[test]
    fn mounts_of_podman_are_not_counted() {
        for mount in [
            "/dev tmpfs tmpfs nosuid,noexec,strictatime,mode=755,size=65536k",
            "/dev/mqueue mqueue mqueue nosuid,noexec,nodev",
            "/dev/pts devpts devpts nosuid,noexec,newinstance,ptmxmode=0666,mode=0620,gid=5",
            "/dev/shm bind /dev/shm bind,rprivate,nosuid,noexec,nodev",
            "/dev/shm bind /var/lib/containers/storage/overlay-containers/ID/userdata/shm bind,rprivate,nosuid",
            "/etc/hosts bind /run/containers/storage/overlay-containers/ID/userdata/hosts bind,rprivate",
            "/etc/localtime bind /run/containers/storage/overlay-containers/ID/userdata/localtime bind,rprivate",
            "/data/secret bind /var/lib/containers/storage/overlay-containers/ID/userdata/secrets/s bind,rprivate",
            "/proc proc proc nosuid,noexec,nodev",
            "/run/podman-init bind /usr/libexec/podman/catatonit bind,ro,private",
            "/sys sysfs sysfs rprivate,nosuid,noexec,nodev,rw",
            "/sys/fs/cgroup cgroup cgroup rprivate,nosuid,noexec,nodev,relatime,ro",
            "/sys/fs/cgroup/systemd bind /sys/fs/cgroup/systemd bind,rprivate",
            "/proc bind /proc rbind,nosuid,noexec,nodev,rw,rprivate",
            "/sys bind /sys rprivate,nosuid,noexec,nodev,ro,rbind",
            "/dev/foo bind /dev/null slave,nosuid,noexec,rw,rbind",
            // Mounts of Docker and BuildKit.
            "/etc/hosts bind /var/lib/docker/containers/ID/hosts rbind,rprivate",
            "/dev/shm bind /var/lib/docker/containers/ID/mounts/shm rbind,rprivate",
            "/sbin/docker-init bind /usr/bin/docker-init bind,ro",
            "/etc/hosts bind /etc/hosts bind,ro",
            "/etc/hosts bind /var/lib/buildkit/executor/hosts nosuid,noexec,nodev,rbind,ro",
        ] {
            for consumer in [PODMAN, PODMAN_4] {
                assert_eq!(origin(&consumer, mount), Engine, "{} {mount}", consumer.name);
            }
        }
        for mount in [
            "/tmp tmpfs tmpfs rw,rprivate,nosuid,nodev,tmpcopyup",
            "/tmp tmpfs tmpfs rw,rprivate,nosuid,nodev,tmpcopyup,",
            "/dev/shm bind /dev/shm rbind,rprivate",
        ] {
            assert_eq!(origin(&PODMAN, mount), Unclear, "{mount}");
        }
    }

    #[test]
    fn mounts_of_users_are_counted_at_any_destination() {
        for mount in [
            "/data bind /srv rw,rprivate,rbind",
            "/etc/hosts bind /etc/hosts rw,rprivate,rbind",
            "/etc/hosts bind /srv/hosts bind,rw,rprivate",
            "/etc/hosts bind /etc/hosts bind,rw,rprivate",
            "/etc/hosts bind /srv/hosts bind,ro,rprivate",
            "/etc/hosts bind /srv/ID/x/hosts rw,rprivate,rbind",
            "/sys/fs/cgroup bind /sys/fs/cgroup bind,rw,rprivate",
            "/dev bind /dev rw,rprivate,rbind",
            "/proc bind /proc rw,rprivate,rbind",
            "/sys bind /sys ro,rprivate,rbind",
            "/dev/shm bind /dev/shm rw,rprivate,rbind",
            "/etc/hosts overlay /var/lib/containers/storage/overlay-containers/ID/userdata/overlay/1/merge private",
            "/etc/hosts bind /var/lib/containers/storage/volumes/ID/_data rw,rprivate,nosuid,nodev,rbind",
            "/run/secrets bind /srv ro,rprivate,rbind",
            "/run/podman-init bind /srv ro,rprivate,rbind",
            "/dev/pts devpts devpts ",
            "/dev tmpfs tmpfs size=1m",
            "/dev/shm tmpfs tmpfs rw,rprivate,nosuid,nodev,tmpcopyup",
            "/run tmpfs tmpfs rprivate,nosuid,nodev,tmpcopyup",
            "/tmp tmpfs tmpfs size=1m,rw,rprivate,nosuid,nodev,tmpcopyup",
            "/tmp bind /srv rw,rprivate,rbind",
            "/scratch tmpfs tmpfs rw,rprivate,nosuid,nodev,tmpcopyup",
        ] {
            for consumer in [PODMAN, PODMAN_4] {
                assert_eq!(origin(&consumer, mount), User, "{} {mount}", consumer.name);
            }
        }
        let added = "/var/tmp tmpfs tmpfs rw,rprivate,nosuid,nodev,tmpcopyup";
        assert_eq!((origin(&PODMAN_4, added), origin(&PODMAN, added)), (User, Unclear));
    }

    #[test]
    fn mounts_that_podman_may_not_count_are_counted_and_told_apart() {
        for mount in [
            "/data tmpfs tmpfs rprivate,rw,nodev,exec,nosuid,tmpcopyup",
            "/etc/hosts bind /var/lib/kubelet/pods/0b2f/etc-hosts rbind,rprivate,rw",
            "/etc/hosts bind /srv/hosts rbind,ro,rprivate",
            // docker run -v /:/dev/shm
            "/dev/shm bind / rbind,rprivate",
        ] {
            assert_eq!(origin(&PODMAN, mount), ProbablyUser, "{mount}");
        }
        let mount = ConfigMount {
            destination: "/data",
            kind: "bind",
            source: "/srv",
            options: &["rw", "rprivate", "rbind"],
        };
        let annotations = BTreeMap::from([(VOLUMES_FROM.to_owned(), "other".to_owned())]);
        assert_eq!(PODMAN.bind_mounts.origin(&mount, &annotations), ProbablyUser);
        assert!(ProbablyUser.counts() && !Unclear.counts());
    }

    #[test]
    fn crio_counts_mounts_of_the_kubelet() {
        for (mount, expected) in [
            ("/etc/hosts bind /var/lib/kubelet/pods/0b2f/etc-hosts rw,rprivate,rbind,bind", User),
            ("/dev/termination-log bind /var/lib/kubelet/pods/0b2f/containers/a/1 rw,bind", User),
            (
                "/data bind /var/lib/kubelet/pods/0b2f/volumes/kubernetes.io~csi/v/mount rw,bind",
                User,
            ),
            ("/etc/hosts bind /etc/hosts rw,bind", Engine),
            (
                "/dev/shm bind /run/containers/storage/overlay-containers/ID/userdata/shm rw,bind",
                Engine,
            ),
            (
                "/run/secrets bind /run/containers/storage/overlay-containers/ID/userdata/run/secrets bind",
                Engine,
            ),
            (
                "/image-volume bind /run/containers/storage/overlay-containers/ID/userdata/volumes/v bind",
                Engine,
            ),
            ("/tmp tmpfs tmpfs rw,rprivate,nosuid,nodev,tmpcopyup", Engine),
            ("/proc proc proc nosuid,noexec,nodev", Engine),
        ] {
            assert_eq!(origin(&CRIO, mount), expected, "{mount}");
        }
    }

    #[test]
    fn other_consumers_go_by_the_destination() {
        for (mount, expected) in [
            ("/proc proc proc nosuid", Engine),
            ("/etc/hosts bind /var/lib/kubelet/pods/0b2f/etc-hosts rbind,rprivate,rw", Engine),
            ("/tmp tmpfs tmpfs rw", Engine),
            ("/tmp bind /srv rbind", User),
            ("/scratch tmpfs tmpfs rw", User),
        ] {
            assert_eq!(
                (origin(&NRI, mount), origin(&BUILDAH, mount)),
                (expected, expected),
                "{mount}"
            );
            assert_eq!(origin(&HOOK_INJECTOR, mount), User, "{mount}");
        }
    }

    #[test]
    fn annotations_added_by_crio_are_not_counted() {
        for (key, counts) in [
            ("com.example.gpu", true),
            ("io.kubernetes.container.hash", true),
            ("io.kubernetes.cri-o.userns-mode", true),
            ("io.kubernetes.cri-o.UnifiedCgroup.main", true),
            ("io.kubernetes.cri-o.Volumes", false),
            ("io.kubernetes.cri-o.IP.0", false),
            ("io.kubernetes.pod.name", false),
        ] {
            assert_eq!(CRIO.annotation_rule.counts(key), counts, "{key}");
            assert!(NRI.annotation_rule.counts(key) && PODMAN.annotation_rule.counts(key), "{key}");
        }
    }
}
