//! How the programs that read hooks.d differ.
//!
//! The one table of differences; everything else takes its values from here and names no consumer.

use std::path::Path;

use super::OciStage;

/// Where distributions put hook files.
pub const DEFAULT_DIR: &str = "/usr/share/containers/oci/hooks.d";
/// Where administrators put hook files; a file here hides one of the same name in [`DEFAULT_DIR`].
pub const OVERRIDE_DIR: &str = "/etc/containers/oci/hooks.d";

/// A program that reads hook files.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Consumer {
    /// The name on the command line.
    pub name: &'static str,
    /// One line about the consumer.
    pub about: &'static str,
    /// Directories of hook files that are for it, in order of increasing precedence. Which of them it
    /// reads is up to its configuration.
    pub dirs: &'static [&'static str],
    /// Where its directories are configured.
    pub config: DirsConfig,
    /// Stages it runs by itself.
    pub extension_stages: &'static [&'static str],
    /// The stage that hooks of stage `prestart` are injected at.
    pub prestart: OciStage,
    /// Which mounts it counts for `hasBindMounts`.
    pub bind_mounts: BindMountRule,
    /// Which annotations it matches, as a phrase for people.
    pub annotations: &'static str,
    /// The effect of a rejected hook file on this consumer.
    pub bad_files: BadFiles,
}

/// Where the directories of a consumer are configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DirsConfig {
    /// By `hooks_dir` under `[engine]` of containers.conf(5); it is [`DEFAULT_DIR`] where no file says so.
    ContainersConf {
        /// Who has a file of his own in his home directory.
        user_file: UserFile,
        /// What an empty list means.
        empty: EmptyList,
    },
    /// By `hooks_dir` under `[crio.runtime]` of crio.conf(5); it is [`DEFAULT_DIR`] where no file says so.
    CrioConf,
    /// By options alone. Without them root reads the consumer's directories, and nobody else any.
    RootOnly,
    /// By options alone. Without them it reads the consumer's directories.
    Options,
}

/// Who has a containers.conf in his home directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserFile {
    /// All but root.
    Rootless,
    Everyone,
}

/// What an empty `hooks_dir` means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmptyList {
    /// No directory is read.
    None,
    /// Root reads [`DEFAULT_DIR`] and [`OVERRIDE_DIR`], each by itself: files of one do not mask those of
    /// the other. Nobody else reads any.
    Implicit,
}

/// Which mounts a consumer counts for `hasBindMounts`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindMountRule {
    /// Every mount the user asked for: volumes and tmpfs too.
    AnyUserMount,
    /// Those, and the tmpfs at `/var/tmp` that the engine itself gives a read-only root.
    AnyUserMountOrVarTmp,
    /// Every mount, those that engines add to every container included.
    AnyMount,
}

/// What a consumer does about a hook file that it rejects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BadFiles {
    /// It starts no container.
    #[default]
    NoContainers,
    /// It does not start itself, and containers start without hooks.
    NoHooks,
    /// It leaves the file out.
    Skipped,
}

/// podman 5 and later, and the reference package as it is today.
pub const PODMAN: Consumer = Consumer {
    name: "podman",
    about: "podman 5 and later",
    dirs: &[DEFAULT_DIR, OVERRIDE_DIR],
    config: DirsConfig::ContainersConf {
        user_file: UserFile::Everyone,
        empty: EmptyList::Implicit,
    },
    extension_stages: &["precreate", "poststop"],
    prestart: OciStage::CreateRuntime,
    bind_mounts: BindMountRule::AnyUserMount,
    annotations: "those given with --annotation; labels do not count",
    bad_files: BadFiles::NoContainers,
};

/// podman up to 4.9, which injects `prestart` hooks as they are.
pub const PODMAN_4: Consumer = Consumer {
    name: "podman-4",
    about: "podman up to 4.9",
    config: DirsConfig::ContainersConf { user_file: UserFile::Rootless, empty: EmptyList::None },
    prestart: OciStage::Prestart,
    bind_mounts: BindMountRule::AnyUserMountOrVarTmp,
    ..PODMAN
};

/// buildah, and podman when it builds images.
pub const BUILDAH: Consumer = Consumer {
    name: "buildah",
    about: "buildah and podman build",
    config: DirsConfig::RootOnly,
    extension_stages: &[],
    annotations: "those of the image",
    ..PODMAN
};

/// CRI-O, the container engine of Kubernetes.
pub const CRIO: Consumer = Consumer {
    name: "crio",
    about: "CRI-O",
    dirs: &[DEFAULT_DIR],
    config: DirsConfig::CrioConf,
    extension_stages: &[],
    annotations: "those of the container, overlaid by those of the pod",
    ..PODMAN
};

/// `oci-hooks-nri`, the plugin of this package for containerd and CRI-O.
pub const NRI: Consumer = Consumer {
    name: "nri",
    about: "containerd or CRI-O with oci-hooks-nri",
    dirs: &[DEFAULT_DIR, OVERRIDE_DIR],
    config: DirsConfig::Options,
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
    /// All of them, the default first.
    pub const ALL: [Consumer; 6] = [PODMAN, PODMAN_4, BUILDAH, CRIO, NRI, HOOK_INJECTOR];

    /// Finds a consumer by its name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|consumer| consumer.name == name)
    }
}

impl BindMountRule {
    /// Returns whether a mount of `config.json` is one the user asked for.
    ///
    /// Consumers know what the user asked for; a finished `config.json` does not say it. What they
    /// add by themselves is known by its destination, and for tmpfs (podman's systemd mode) by
    /// destination and type.
    pub fn counts(self, destination: &str, kind: &str) -> bool {
        let is_own_tmpfs = OWN_TMPFS.contains(&destination)
            || (destination == "/var/tmp" && self != BindMountRule::AnyUserMountOrVarTmp);
        let is_own = is_own_mount(Path::new(destination)) || (kind == "tmpfs" && is_own_tmpfs);
        self == BindMountRule::AnyMount || !is_own
    }
}

/// Mounts that engines add to every container; those below `/proc` and `/sys` go without saying.
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

/// Where podman mounts a tmpfs for systemd or for a read-only root, beside `/var/tmp`.
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
    fn mounts_of_the_engine_do_not_count() {
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
    fn mounts_of_the_engine_count_where_all_do() {
        assert!(HOOK_INJECTOR.bind_mounts.counts("/proc", "proc"));
        assert!(!NRI.bind_mounts.counts("/proc", "proc"));
    }

    #[test]
    fn tmpfs_of_the_user_counts_where_any_mount_does() {
        assert!(BindMountRule::AnyUserMount.counts("/scratch", "tmpfs"));
        assert!(BindMountRule::AnyUserMountOrVarTmp.counts("/var/tmp", "tmpfs"));
        assert!(!BindMountRule::AnyUserMount.counts("/var/tmp", "tmpfs"));
        assert!(BindMountRule::AnyUserMount.counts("/var/tmp", "bind"));
    }
}
