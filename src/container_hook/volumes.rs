//! What is mounted into a container: `volumes:` of the workflow, `--volume`, `--mount`, `--tmpfs`.

use std::path::{Component, Path, PathBuf};

use super::request::Mount;

/// Something of the host, or a volume, at a place in the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    pub source: Source,
    /// The absolute path in the container.
    pub target: String,
    /// Whether it cannot be written to.
    pub read_only: bool,
    /// Whether mounts below the source come along.
    pub recursive: bool,
    /// Whether mounts made later go on to the other side; none is not at all.
    pub propagation: Option<Propagation>,
    /// Whether a new volume gets what the image has at the target.
    pub copy: bool,
}

/// What a volume shows: a part of the host, or storage of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file or directory of the host.
    Bind {
        path: PathBuf,
        /// Whether to make a directory if there is nothing, as `--volume` does and `--mount` does not.
        create: bool,
    },
    /// A file or directory in the work directory of the runner that asks, which jobs have anyway.
    Work {
        path: PathBuf,
        /// Whether to make a directory if there is nothing.
        create: bool,
    },
    /// A volume with a name.
    Named(String),
    /// A volume of this container's own.
    Anonymous,
}

/// Between a mount and its copies, the way that later mounts below take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    Shared,
    /// From the host into the container.
    Slave,
}

/// A file system in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tmpfs {
    /// The absolute path in the container.
    pub target: String,
    /// Mount options such as `size=64m` and `noexec`.
    pub options: Vec<String>,
}

/// Why a volume cannot be mounted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeError {
    /// There are more parts than three.
    #[error("volume {0:?} has too many colons: it is SOURCE:TARGET[:MODE]")]
    Parts(String),
    /// The place in the container is none.
    #[error("volume: the path in the container must be absolute and not `/`, it is {0:?}")]
    Target(String),
    /// The source is neither a path nor a name.
    #[error(
        "volume: the source {0:?} is neither an absolute path nor a volume's name, which has letters, \
         digits, `-`, `_` and `.`; nothing is expanded in it"
    )]
    Source(String),
    /// A mode is not known.
    #[error(
        "volume: mode {0:?} is not known; what is: ro, rw, z, Z, nocopy, slave, shared, private"
    )]
    Mode(String),
}

impl Volume {
    /// Reads `--volume`: `TARGET`, `SOURCE:TARGET` or `SOURCE:TARGET:MODE,MODE`.
    ///
    /// # Errors
    ///
    /// Fails where Docker does.
    pub fn parse(text: &str) -> Result<Self, VolumeError> {
        let parts: Vec<&str> = text.split(':').collect();
        let (source, target, modes) = match parts[..] {
            [target] => (None, target, ""),
            [source, target] => (Some(source), target, ""),
            [source, target, modes] => (Some(source), target, modes),
            _ => return Err(VolumeError::Parts(text.to_owned())),
        };
        let mut volume = Volume::new(Source::parse(source)?, target)?;
        volume.modes(modes)?;
        Ok(volume)
    }

    /// Reads a mount of the request.
    ///
    /// The runner passes on of the modes only `ro`, and only if it stands alone; what the user wrote
    /// has the others.
    ///
    /// # Errors
    ///
    /// Fails if the runner could make no sense of what the user wrote, or Docker could not.
    pub fn from_mount(mount: &Mount) -> Result<Self, VolumeError> {
        let written = mount.user_provided.as_deref().unwrap_or_default();
        if mount.target.contains(':') {
            return Err(VolumeError::Parts(mount.target.clone()));
        }
        let source = Source::parse(mount.source.as_deref())?;
        let mut volume = Volume::new(source, &mount.target)?;
        if let [_, _, modes] = written.split(':').collect::<Vec<_>>()[..] {
            volume.modes(modes)?;
        }
        volume.read_only |= mount.read_only;
        Ok(volume)
    }

    pub(super) fn new(source: Source, target: &str) -> Result<Self, VolumeError> {
        let target = absolute(target)?;
        let (copy, recursive) = (true, true);
        Ok(Volume { source, target, read_only: false, recursive, propagation: None, copy })
    }

    fn modes(&mut self, modes: &str) -> Result<(), VolumeError> {
        for mode in modes.split(',').filter(|mode| !mode.is_empty()) {
            match mode.to_ascii_lowercase().as_str() {
                "ro" => self.read_only = true,
                "rw" => self.read_only = false,
                "nocopy" => self.copy = false,
                // Labels of SELinux, and hints for Docker on a Mac.
                "z" | "cached" | "consistent" | "delegated" => {}
                other => self.propagation = Propagation::parse(other)?,
            }
        }
        Ok(())
    }
}

impl Source {
    /// Returns the same, as the runner's own if it is in its work directory: its jobs can write there
    /// whatever they mount.
    pub(super) fn of_runner(self, work: &Path) -> Self {
        let is_in = |path: &Path| {
            path.starts_with(work) && !path.components().any(|part| part == Component::ParentDir)
        };
        match self {
            // Without slashes at the end and dots in between.
            Source::Bind { path, create } if is_in(&path) => {
                Source::Work { path: path.components().collect(), create }
            }
            source => source,
        }
    }

    /// Reads what stands before the first colon.
    pub(super) fn parse(text: Option<&str>) -> Result<Self, VolumeError> {
        match text {
            None => Ok(Source::Anonymous),
            Some(path) if path.starts_with('/') => {
                Ok(Source::Bind { path: PathBuf::from(path), create: true })
            }
            Some(name) if is_volume_name(name) => Ok(Source::Named(name.to_owned())),
            Some(other) => Err(VolumeError::Source(other.to_owned())),
        }
    }
}

impl Propagation {
    /// Reads a propagation; whether it is recursive makes no difference to what a container sees.
    pub(super) fn parse(text: &str) -> Result<Option<Self>, VolumeError> {
        match text {
            "shared" | "rshared" => Ok(Some(Propagation::Shared)),
            "slave" | "rslave" => Ok(Some(Propagation::Slave)),
            "private" | "rprivate" => Ok(None),
            _ => Err(VolumeError::Mode(text.to_owned())),
        }
    }
}

/// Options of `tmpfs` that take a value.
const TMPFS_VALUES: [&str; 7] = ["size", "mode", "uid", "gid", "nr_inodes", "nr_blocks", "mpol"];
/// Options of `tmpfs` that stand alone.
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
    /// Fails if the target or an option is none.
    pub fn parse(text: &str) -> Result<Self, VolumeError> {
        let (target, options) = text.split_once(':').unwrap_or((text, ""));
        let options: Vec<_> = options.split(',').filter(|option| !option.is_empty()).collect();
        let known = |option: &str| match option.split_once('=') {
            Some((name, value)) => TMPFS_VALUES.contains(&name) && !value.is_empty(),
            None => TMPFS_FLAGS.contains(&option),
        };
        if let Some(option) = options.iter().find(|option| !known(option)) {
            return Err(VolumeError::Mode((*option).to_owned()));
        }
        let options = options.into_iter().map(str::to_owned).collect();
        Ok(Tmpfs { target: absolute(target)?, options })
    }
}

fn absolute(target: &str) -> Result<String, VolumeError> {
    if !target.starts_with('/') || target.bytes().all(|byte| matches!(byte, b'/' | b'.')) {
        return Err(VolumeError::Target(target.to_owned()));
    }
    Ok(target.to_owned())
}

/// Returns whether a name can be that of a volume, and of a directory.
fn is_volume_name(name: &str) -> bool {
    let rest = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(written: Option<&str>, source: Option<&str>, target: &str, read_only: bool) -> Mount {
        Mount {
            user_provided: written.map(str::to_owned),
            source: source.map(str::to_owned),
            target: target.to_owned(),
            read_only,
        }
    }

    #[test]
    fn modes_that_the_runner_lost_are_found_again() {
        let written = mount(Some("/a:/b:ro,z"), Some("/a"), "/b", false);
        assert!(Volume::from_mount(&written).unwrap().read_only);
        let written = mount(Some("cache:/b:nocopy"), Some("cache"), "/b", false);
        let volume = Volume::from_mount(&written).unwrap();
        assert!(!volume.copy && volume.source == Source::Named("cache".to_owned()));
    }

    #[test]
    fn a_mount_without_source_is_an_anonymous_volume() {
        let volume = Volume::from_mount(&mount(Some("/data:ro"), None, "/data", true)).unwrap();
        assert_eq!((volume.source, volume.read_only), (Source::Anonymous, true));
    }

    #[test]
    fn what_the_runner_could_not_take_apart_is_refused() {
        let text = "/a:/b:/c:ro";
        let error = Volume::from_mount(&mount(Some(text), None, text, false)).unwrap_err();
        assert_eq!(error, VolumeError::Parts(text.to_owned()));
        let error = Volume::from_mount(&mount(Some("/a:/b:up"), Some("/a"), "/b", false));
        assert_eq!(error.unwrap_err(), VolumeError::Mode("up".to_owned()));
    }

    #[test]
    fn volumes_are_read_as_docker_does() {
        let volume = Volume::parse("/a:/b:RO,rslave").unwrap();
        assert_eq!((volume.read_only, volume.propagation), (true, Some(Propagation::Slave)));
        for text in
            ["", "a", "/a:", ":/a", "/a:b", "/a:/", "/a:/..", "../a:/b", "a b:/b", "/a:/b:x"]
        {
            assert!(Volume::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn options_of_tmpfs_are_known() {
        let tmpfs = Tmpfs::parse("/run:size=64m,noexec").unwrap();
        assert_eq!(tmpfs.options, ["size=64m", "noexec"]);
        for text in ["run", "/", "/run:size", "/run:size=", "/run:huge=always", "/run:x"] {
            assert!(Tmpfs::parse(text).is_err(), "{text}");
        }
    }
}
