//! The system that a consumer runs on, and hook files there that it does not read.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use oci_hooks_files::fs::SystemRoot;

use crate::hooks::consumer::{DEFAULT_DIR, OVERRIDE_DIR};
use crate::hooks::set::is_hook_file_name;

/// The inputs that locate a consumer's configuration, as values: the library does not read the environment.
pub struct ConsumerSystem<'a> {
    pub root: SystemRoot,
    /// User who would run the consumer; 0 is root.
    pub user_id: u32,
    /// Returns an environment variable of the user who would run the consumer.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
}

impl ConsumerSystem<'_> {
    /// Returns an environment variable; `None` if it is empty or not set.
    pub(super) fn variable(&self, name: &str) -> Option<OsString> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }

    /// Returns whether the consumer would run as a user other than root.
    pub fn is_rootless(&self) -> bool {
        self.user_id != 0
    }

    /// Returns the `containers` directory of the user's configuration files, which need not exist;
    /// `None` without a home directory.
    pub fn user_config(&self) -> Option<PathBuf> {
        self.user_dir("XDG_CONFIG_HOME", ".config")
    }

    /// Returns the `containers` directory below the directory that a variable names, or below
    /// `below_home` in the home directory.
    fn user_dir(&self, variable: &str, below_home: &str) -> Option<PathBuf> {
        let home = || self.variable("HOME").map(PathBuf::from);
        let home = || home().or_else(|| (!self.is_rootless()).then(|| PathBuf::from("/root")));
        let dir = self.variable(variable).map(PathBuf::from);
        dir.or_else(|| Some(home()?.join(below_home))).map(|dir| dir.join("containers"))
    }

    /// Returns the drop-in of containers.conf to write for the user who runs the consumer. It is no
    /// main file, because podman 6 reads only one of them: the new file would hide the others.
    pub(super) fn own_containers_conf(&self) -> PathBuf {
        let user = self.is_rootless().then(|| self.user_config()).flatten();
        let dir = user.unwrap_or_else(|| Path::new("/etc/containers").to_owned());
        dir.join("containers.conf.d/zz-hooks.conf")
    }
}

impl fmt::Debug for ConsumerSystem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut system = f.debug_struct("ConsumerSystem");
        system.field("root", &self.root).field("user_id", &self.user_id).finish_non_exhaustive()
    }
}

/// A directory with hook files that the consumer does not read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnreadDir {
    pub path: PathBuf,
    /// The names of its hook files, sorted.
    pub files: Vec<OsString>,
}

/// Returns the usual directories that have hook files and are not among `dirs`.
pub fn unread_dirs(dirs: &[PathBuf], system: &ConsumerSystem<'_>) -> Vec<UnreadDir> {
    let of_user = [system.user_config(), system.user_dir("XDG_DATA_HOME", ".local/share")];
    let of_user = of_user.into_iter().flatten().filter(|_| system.is_rootless());
    let usual = [DEFAULT_DIR, OVERRIDE_DIR].map(PathBuf::from).into_iter();
    let usual = usual.chain(of_user.map(|dir| dir.join("oci/hooks.d")));
    let read: Vec<_> = dirs.iter().map(|dir| identity(&system.root.join(dir))).collect();
    let unread = usual.filter(|usual| {
        let found = identity(&system.root.join(usual));
        !dirs.contains(usual) && (found.is_none() || !read.contains(&found))
    });
    unread.filter_map(|path| with_files(path, system)).collect()
}

/// Returns device and inode, which identify a directory.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Returns a directory if it has hook files.
fn with_files(path: PathBuf, system: &ConsumerSystem<'_>) -> Option<UnreadDir> {
    let entries = system.root.list(&path).ok()??;
    let files = entries.into_iter().filter(|entry| is_hook_file_name(&entry.name));
    let files: Vec<_> = files.map(|entry| entry.name).collect();
    (!files.is_empty()).then_some(UnreadDir { path, files })
}
