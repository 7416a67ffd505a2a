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
    /// Another name, which stays with this version of the program.
    pub alias: Option<&'static str>,
    /// One line about the consumer.
    pub about: &'static str,
    /// Directories of its hook files, in order of increasing precedence. The consumer's configuration
    /// decides which ones are read.
    pub dirs: &'static [&'static str],
    /// Place where its directories are configured.
    pub config: DirsConfig,
    /// Stages that the consumer runs itself.
    pub extension_stages: &'static [&'static str],
    /// The stage that hooks of stage `prestart` are injected at.
    pub prestart: OciStage,
    /// Mounts that count for `hasBindMounts`.
    pub bind_mounts: BindMountRule,
    /// Annotations that it matches, as a phrase for messages.
    pub annotations: &'static str,
    /// Annotations of `config.json` that it matches.
    pub annotation_rule: AnnotationRule,
    /// Containers that get no hooks from it.
    pub exempt: Option<ExemptContainers>,
    /// The effect of a rejected hook file on this consumer.
    pub bad_files: BadFiles,
}

/// Places where a consumer's directories are configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DirsConfig {
    /// `hooks_dir` under `[engine]` of containers.conf(5); the default is [`DEFAULT_DIR`].
    ContainersConf {
        /// The files that it reads.
        files: ContainersConfFiles,
        /// Meaning of an empty list.
        empty: EmptyList,
    },
    /// `hooks_dir` under `[crio.runtime]` of crio.conf(5); the default is [`DEFAULT_DIR`].
    CrioConf,
    /// Options only. Without them, root reads the consumer's directories and other users read none.
    RootOnly,
    /// Options only. Without them, it reads the consumer's directories.
    Options,
}

/// The files of containers.conf(5), which versions of podman choose differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainersConfFiles {
    /// All main files, each followed by its drop-ins. Root has no file in its home directory.
    AllOfRootless,
    /// The same, and root has a file in its home directory.
    All,
    /// The main file of the highest precedence alone, then the drop-ins of all directories by name, where
    /// a later directory masks files of the same name.
    FirstThenDropIns,
}

/// Meaning of an empty `hooks_dir`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmptyList {
    None,
    /// Root reads [`DEFAULT_DIR`] and [`OVERRIDE_DIR`] separately: files of one do not mask those
    /// of the other. Other users read none.
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
    /// Their name for messages.
    pub what: &'static str,
}

/// Annotations of `config.json` that a consumer matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnnotationRule {
    #[default]
    All,
    /// Those that Kubernetes gave to CRI-O, without those that CRI-O adds, the labels among them.
    OfKubernetes,
    /// All, and those that the engine knows but does not write into `config.json`.
    OfEngine,
}

/// Mounts that a consumer counts for `hasBindMounts`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindMountRule {
    /// Every mount the user requested, volumes and tmpfs included.
    AnyUserMount,
    /// The same; [`origin`](BindMountRule::origin) tells a user's tmpfs from podman's.
    AnyUserMountByOptions,
    /// The same, and also the tmpfs at `/var/tmp` that the engine adds to a read-only root.
    AnyUserMountOrVarTmp,
    /// Every mount, including those that engines add to every container.
    AnyMount,
}

/// The origin of a mount of `config.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountOrigin {
    User,
    Engine,
    /// The mount is as the engine's own, and may be the user's.
    Unclear,
}

/// Reaction of a consumer to a hook file that it rejects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BadFiles {
    #[default]
    NoContainers,
    /// The consumer does not start, and containers start without hooks.
    NoHooks,
    /// The consumer leaves the file out. If the file was valid while the consumer ran, its last valid
    /// version stays in force; all other consumers drop the hook at once.
    Skipped,
}

/// The newest version of podman, which is 6, and the current reference package.
pub const PODMAN: Consumer = Consumer {
    name: "podman",
    alias: Some("podman-6"),
    about: "podman 6, the newest version (also podman-6)",
    dirs: &[DEFAULT_DIR, OVERRIDE_DIR],
    config: DirsConfig::ContainersConf {
        files: ContainersConfFiles::FirstThenDropIns,
        empty: EmptyList::Implicit,
    },
    extension_stages: &["precreate", "poststop"],
    prestart: OciStage::CreateRuntime,
    bind_mounts: BindMountRule::AnyUserMountByOptions,
    annotations: "those given with --annotation; labels do not count",
    annotation_rule: AnnotationRule::All,
    exempt: None,
    bad_files: BadFiles::NoContainers,
};

/// podman 5, which reads containers.conf(5) by other rules.
pub const PODMAN_5: Consumer = Consumer {
    name: "podman-5",
    alias: None,
    about: "podman 5",
    config: DirsConfig::ContainersConf {
        files: ContainersConfFiles::All,
        empty: EmptyList::Implicit,
    },
    ..PODMAN
};

/// podman up to 4.9, which injects `prestart` hooks unchanged.
pub const PODMAN_4: Consumer = Consumer {
    name: "podman-4",
    about: "podman up to 4.9",
    config: DirsConfig::ContainersConf {
        files: ContainersConfFiles::AllOfRootless,
        empty: EmptyList::None,
    },
    prestart: OciStage::Prestart,
    bind_mounts: BindMountRule::AnyUserMountOrVarTmp,
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
    bind_mounts: BindMountRule::AnyUserMount,
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
    annotation_rule: AnnotationRule::OfEngine,
    exempt: None,
    bad_files: BadFiles::Skipped,
    ..CRIO
};

/// The sample plugin of the NRI project.
pub const HOOK_INJECTOR: Consumer = Consumer {
    name: "hook-injector",
    about: "containerd or CRI-O with hook-injector, the sample plugin of NRI",
    bind_mounts: BindMountRule::AnyMount,
    bad_files: BadFiles::NoHooks,
    ..NRI
};

impl Consumer {
    /// All consumers, the default first.
    pub const ALL: [Consumer; 7] = [PODMAN, PODMAN_5, PODMAN_4, BUILDAH, CRIO, NRI, HOOK_INJECTOR];

    /// Finds a consumer by its name or alias.
    pub fn from_name(name: &str) -> Option<Self> {
        let has_name = |consumer: &Consumer| consumer.name == name || consumer.alias == Some(name);
        Self::ALL.into_iter().find(has_name)
    }

    /// Returns the profile of an installed podman.
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

/// Deprecated annotations of pods with CRI-O's prefix. All others with it are added by CRI-O.
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

/// Annotations without CRI-O's prefix that it adds to every container: its own, those for systemd,
/// the stop signal of the image, and the labels that the kubelet sets.
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
    /// Returns whether a mount of `config.json` counts for `hasBindMounts`.
    ///
    /// A finished `config.json` does not tell the user's mounts from those that engines add. The
    /// latter are recognized by destination, and tmpfs (podman's systemd mode) by destination and
    /// type.
    pub fn counts(self, destination: &str, kind: &str) -> bool {
        let is_own_tmpfs = OWN_TMPFS.contains(&destination)
            || (destination == "/var/tmp" && self != BindMountRule::AnyUserMountOrVarTmp);
        let is_own = is_own_mount(Path::new(destination)) || (kind == "tmpfs" && is_own_tmpfs);
        self == BindMountRule::AnyMount || !is_own
    }

    /// Returns the origin of a mount; the options of a tmpfs may show that the user requested it.
    ///
    /// Podman gives a user's tmpfs a propagation, which Docker and containerd do not. Its own ones
    /// always have the same options. Up to version 5.5, a user's tmpfs has these by default.
    pub fn origin(self, destination: &str, kind: &str, options: &[impl AsRef<str>]) -> MountOrigin {
        use BindMountRule::{AnyUserMountByOptions, AnyUserMountOrVarTmp};
        if self.counts(destination, kind) {
            return MountOrigin::User;
        }
        let options = || options.iter().map(AsRef::as_ref);
        let is_by_podman = matches!(self, AnyUserMountByOptions | AnyUserMountOrVarTmp)
            && !is_own_mount(Path::new(destination))
            && options().any(|option| PROPAGATIONS.contains(&option.trim_start_matches('r')));
        // A tmpfs for systemd also has a size, which may be the empty string.
        let mut rest = options().skip(OWN_TMPFS_OPTIONS.len());
        let is_as_own = options().take(OWN_TMPFS_OPTIONS.len()).eq(OWN_TMPFS_OPTIONS)
            && rest.all(|option| option.is_empty() || option.starts_with("size="));
        match (is_by_podman, is_as_own) {
            (false, _) => MountOrigin::Engine,
            (true, true) => MountOrigin::Unclear,
            (true, false) => MountOrigin::User,
        }
    }
}

/// Propagations without the `r` for recursive ones.
const PROPAGATIONS: [&str; 4] = ["private", "slave", "shared", "unbindable"];

/// Options of podman's own tmpfs.
const OWN_TMPFS_OPTIONS: [&str; 5] = ["rw", "rprivate", "nosuid", "nodev", "tmpcopyup"];

/// Mounts that engines add to every container, besides those below `/proc` and `/sys`.
const OWN_MOUNTS: [&str; 15] = [
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

/// Destinations of podman's tmpfs for systemd or for a read-only root, besides `/var/tmp`.
const OWN_TMPFS: [&str; 4] = ["/run", "/run/lock", "/tmp", "/var/log/journal"];

fn is_own_mount(destination: &Path) -> bool {
    destination.starts_with("/proc")
        || destination.starts_with("/sys")
        || OWN_MOUNTS.iter().any(|own| destination == Path::new(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_mounts_are_not_counted() {
        for (destination, kind) in [
            ("/proc", "proc"),
            ("/sys/fs/cgroup", "cgroup"),
            ("/etc/hosts", "bind"),
            ("/tmp", "tmpfs"),
        ] {
            assert!(!BindMountRule::AnyUserMount.counts(destination, kind), "{destination}");
        }
    }

    #[test]
    fn engine_mounts_are_counted_if_all_mounts_count() {
        assert!(HOOK_INJECTOR.bind_mounts.counts("/proc", "proc"));
        assert!(!NRI.bind_mounts.counts("/proc", "proc"));
    }

    #[test]
    fn tmpfs_options_reveal_the_origin_of_a_mount() {
        use MountOrigin::{Engine, Unclear, User};
        for (options, origin) in [
            ("rw,rprivate,nosuid,nodev,tmpcopyup", Unclear),
            ("rw,rprivate,nosuid,nodev,tmpcopyup,", Unclear),
            ("rprivate,nosuid,nodev,tmpcopyup", User),
            ("size=1m,rw,rprivate,nosuid,nodev,tmpcopyup", User),
            ("nosuid,strictatime,mode=755,size=65536k", Engine),
        ] {
            let options: Vec<_> = options.split(',').collect();
            for (consumer, origin) in
                [(PODMAN, origin), (PODMAN_4, origin), (CRIO, Engine), (NRI, Engine)]
            {
                let found = consumer.bind_mounts.origin("/tmp", "tmpfs", &options);
                assert_eq!(found, origin, "{} {options:?}", consumer.name);
            }
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

    #[test]
    fn user_tmpfs_is_counted_if_any_mount_counts() {
        assert!(BindMountRule::AnyUserMount.counts("/scratch", "tmpfs"));
        assert!(BindMountRule::AnyUserMountOrVarTmp.counts("/var/tmp", "tmpfs"));
        assert!(!BindMountRule::AnyUserMount.counts("/var/tmp", "tmpfs"));
        assert!(BindMountRule::AnyUserMount.counts("/var/tmp", "bind"));
    }
}
