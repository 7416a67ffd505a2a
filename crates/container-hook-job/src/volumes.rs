//! Volumes of a container: `volumes:` of the workflow, `--volume`, `--mount`, `--tmpfs`.

use std::path::{Component, Path, PathBuf};

use super::request::RequestMount;

/// A bind mount or volume of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestVolume {
    pub source: VolumeSource,
    /// Absolute path in the container.
    pub target: String,
    pub read_only: bool,
    /// If set, mounts below the source are included.
    pub recursive: bool,
    /// Propagation of later mounts; none for private.
    pub propagation: Option<VolumePropagation>,
    /// If set, the image's files at the target are copied to a new volume.
    pub copy: bool,
}

/// The source of a volume: a path of the host, or storage of the hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeSource {
    /// A file or directory of the host.
    Bind {
        path: PathBuf,
        /// If set, a missing directory is created, as `--volume` does and `--mount` does not.
        create: bool,
    },
    /// A file or directory in the work directory of the calling runner, which its jobs can write anyway.
    Work {
        path: PathBuf,
        /// If set, a missing directory is created.
        create: bool,
    },
    Named(String),
    /// An anonymous volume, used only by this container.
    Anonymous,
}

/// Mount propagation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumePropagation {
    Shared,
    /// From the host into the container.
    Slave,
}

/// A `tmpfs` mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tmpfs {
    /// Absolute path in the container.
    pub target: String,
    /// Mount options such as `size=64m` and `noexec`.
    pub options: Vec<String>,
}

/// Reasons to reject a volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeError {
    #[error("volume {0:?} has too many colons: expected SOURCE:TARGET[:MODE]")]
    Parts(String),
    #[error("volume: the path in the container must be absolute and not `/`, it is {0:?}")]
    Target(String),
    #[error(
        "volume: the source {0:?} is neither an absolute path nor a volume's name, which has letters, \
         digits, `-`, `_` and `.`; `~` and variables are not expanded"
    )]
    Source(String),
    #[error("volume: unknown mode {0:?}: expected ro, rw, z, Z, nocopy, slave, shared or private")]
    Mode(String),
    #[error(
        "unknown tmpfs option {0:?}: expected mount options such as size=64m, mode=1777, ro or noexec"
    )]
    TmpfsOption(String),
}

impl RequestVolume {
    /// Reads `--volume`: `TARGET`, `SOURCE:TARGET` or `SOURCE:TARGET:MODE,MODE`.
    ///
    /// # Errors
    ///
    /// Fails if Docker would reject the volume.
    pub fn parse(text: &str) -> Result<Self, VolumeError> {
        let parts: Vec<&str> = text.split(':').collect();
        let (source, target, modes) = match parts[..] {
            [target] => (None, target, ""),
            [source, target] => (Some(source), target, ""),
            [source, target, modes] => (Some(source), target, modes),
            _ => return Err(VolumeError::Parts(text.to_owned())),
        };
        let mut volume = RequestVolume::new(VolumeSource::parse(source)?, target)?;
        volume.modes(modes)?;
        Ok(volume)
    }

    /// Reads a mount of the request.
    ///
    /// The runner forwards only the mode `ro`, and only if it is the only mode; the other modes are read from
    /// the text of the workflow.
    ///
    /// # Errors
    ///
    /// Fails if the runner could not parse the volume, or Docker would reject it.
    pub fn from_mount(mount: &RequestMount) -> Result<Self, VolumeError> {
        let written = mount.user_provided.as_deref().unwrap_or_default();
        if mount.target.contains(':') {
            return Err(VolumeError::Parts(mount.target.clone()));
        }
        let source = VolumeSource::parse(mount.source.as_deref())?;
        let mut volume = RequestVolume::new(source, &mount.target)?;
        if let [_, _, modes] = written.split(':').collect::<Vec<_>>()[..] {
            volume.modes(modes)?;
        }
        volume.read_only |= mount.read_only;
        Ok(volume)
    }

    pub(super) fn new(source: VolumeSource, target: &str) -> Result<Self, VolumeError> {
        let target = absolute_target(target)?;
        let (copy, recursive) = (true, true);
        Ok(RequestVolume { source, target, read_only: false, recursive, propagation: None, copy })
    }

    fn modes(&mut self, modes: &str) -> Result<(), VolumeError> {
        for mode in modes.split(',').filter(|mode| !mode.is_empty()) {
            match mode.to_ascii_lowercase().as_str() {
                "ro" => self.read_only = true,
                "rw" => self.read_only = false,
                "nocopy" => self.copy = false,
                // SELinux labels, and hints for Docker Desktop on macOS.
                "z" | "cached" | "consistent" | "delegated" => {}
                other => self.propagation = VolumePropagation::parse(other)?,
            }
        }
        Ok(())
    }
}

impl VolumeSource {
    /// Turns a bind mount from the runner's work directory into [`VolumeSource::Work`]: jobs can write there
    /// without the mount too.
    pub fn of_runner(self, work: &Path) -> Self {
        let is_in = |path: &Path| {
            path.starts_with(work) && !path.components().any(|part| part == Component::ParentDir)
        };
        match self {
            // Collecting the components drops trailing slashes and `.` components.
            VolumeSource::Bind { path, create } if is_in(&path) => {
                VolumeSource::Work { path: path.components().collect(), create }
            }
            source => source,
        }
    }

    /// Reads the source of a volume: an absolute path or a name; none for an anonymous volume.
    pub(super) fn parse(text: Option<&str>) -> Result<Self, VolumeError> {
        match text {
            None => Ok(VolumeSource::Anonymous),
            Some(path) if path.starts_with('/') => {
                Ok(VolumeSource::Bind { path: PathBuf::from(path), create: true })
            }
            Some(name) if is_volume_name(name) => Ok(VolumeSource::Named(name.to_owned())),
            Some(other) => Err(VolumeError::Source(other.to_owned())),
        }
    }
}

impl VolumePropagation {
    /// Reads a propagation; returns none for private. Recursive forms such as `rslave` are read
    /// like the others, because a container sees no difference.
    pub(super) fn parse(text: &str) -> Result<Option<Self>, VolumeError> {
        match text {
            "shared" | "rshared" => Ok(Some(VolumePropagation::Shared)),
            "slave" | "rslave" => Ok(Some(VolumePropagation::Slave)),
            "private" | "rprivate" => Ok(None),
            _ => Err(VolumeError::Mode(text.to_owned())),
        }
    }
}

/// Options of `tmpfs` that take a value.
const TMPFS_VALUES: [&str; 7] = ["size", "mode", "uid", "gid", "nr_inodes", "nr_blocks", "mpol"];
/// Options of `tmpfs` that take no value.
const TMPFS_FLAGS: [&str; 20] = [
    "defaults",
    "ro",
    "rw",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "exec",
    "noexec",
    "sync",
    "async",
    "dirsync",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
];

impl Tmpfs {
    /// Reads `--tmpfs`: `TARGET[:OPTION,OPTION]`.
    ///
    /// # Errors
    ///
    /// Fails if the target or an option is invalid.
    pub fn parse(text: &str) -> Result<Self, VolumeError> {
        let (target, options) = text.split_once(':').unwrap_or((text, ""));
        let options: Vec<_> = options.split(',').filter(|option| !option.is_empty()).collect();
        let known = |option: &str| match option.split_once('=') {
            Some((name, value)) => TMPFS_VALUES.contains(&name) && !value.is_empty(),
            None => TMPFS_FLAGS.contains(&option),
        };
        if let Some(option) = options.iter().find(|option| !known(option)) {
            return Err(VolumeError::TmpfsOption((*option).to_owned()));
        }
        let options = options.into_iter().map(str::to_owned).collect();
        Ok(Tmpfs { target: absolute_target(target)?, options })
    }
}

fn absolute_target(target: &str) -> Result<String, VolumeError> {
    let depth = Path::new(target).components().fold(0_usize, |depth, part| match part {
        Component::Normal(_) => depth + 1,
        Component::ParentDir => depth.saturating_sub(1),
        _ => depth,
    });
    // Docker rejects `/`, however it is written.
    match target.starts_with('/') && depth > 0 {
        true => Ok(target.to_owned()),
        false => Err(VolumeError::Target(target.to_owned())),
    }
}

/// Returns whether a name is valid for a volume and as the name of its directory.
fn is_volume_name(name: &str) -> bool {
    let rest = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(
        written: Option<&str>,
        source: Option<&str>,
        target: &str,
        read_only: bool,
    ) -> RequestMount {
        RequestMount {
            user_provided: written.map(str::to_owned),
            source: source.map(str::to_owned),
            target: target.to_owned(),
            read_only,
        }
    }

    #[test]
    fn modes_dropped_by_the_runner_are_recovered() {
        let written = mount(Some("/a:/b:ro,z"), Some("/a"), "/b", false);
        assert!(RequestVolume::from_mount(&written).unwrap().read_only);
        let written = mount(Some("cache:/b:nocopy"), Some("cache"), "/b", false);
        let volume = RequestVolume::from_mount(&written).unwrap();
        assert!(!volume.copy && volume.source == VolumeSource::Named("cache".to_owned()));
    }

    #[test]
    fn a_mount_without_source_is_an_anonymous_volume() {
        let volume =
            RequestVolume::from_mount(&mount(Some("/data:ro"), None, "/data", true)).unwrap();
        assert_eq!((volume.source, volume.read_only), (VolumeSource::Anonymous, true));
    }

    #[test]
    fn volumes_that_the_runner_misparsed_are_rejected() {
        let text = "/a:/b:/c:ro";
        let error = RequestVolume::from_mount(&mount(Some(text), None, text, false)).unwrap_err();
        assert_eq!(error, VolumeError::Parts(text.to_owned()));
        let error = RequestVolume::from_mount(&mount(Some("/a:/b:up"), Some("/a"), "/b", false));
        assert_eq!(error.unwrap_err(), VolumeError::Mode("up".to_owned()));
    }

    #[test]
    fn volumes_are_parsed_like_in_docker() {
        let volume = RequestVolume::parse("/a:/b:RO,rslave").unwrap();
        assert_eq!((volume.read_only, volume.propagation), (true, Some(VolumePropagation::Slave)));
        for text in [
            "",
            "a",
            "/a:",
            ":/a",
            "/a:b",
            "/a:/",
            "/a:/..",
            "/a:/b/../.",
            "../a:/b",
            "a b:/b",
            "/a:/b:x",
        ] {
            assert!(RequestVolume::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn tmpfs_options_are_recognized() {
        let tmpfs = Tmpfs::parse("/run:size=64m,noexec").unwrap();
        assert_eq!(tmpfs.options, ["size=64m", "noexec"]);
        for text in ["run", "/", "/run:size", "/run:size=", "/run:huge=always", "/run:x"] {
            assert!(Tmpfs::parse(text).is_err(), "{text}");
        }
    }
}
