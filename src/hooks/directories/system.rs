//! The system that a consumer runs on.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::sys::fs::SystemRoot;

/// What decides where a consumer's configuration is: values, since the library asks the environment
/// for nothing.
pub struct System<'a> {
    pub root: SystemRoot,
    /// Who would run the consumer; 0 is root.
    pub user_id: u32,
    /// Returns an environment variable of who would run it.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
}

impl System<'_> {
    /// Returns a variable that is set to something.
    pub(super) fn variable(&self, name: &str) -> Option<OsString> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }

    /// Returns whether the consumer would run as another user than root.
    pub fn is_rootless(&self) -> bool {
        self.user_id != 0
    }

    /// Returns the directory of the user's configuration files, if he has one.
    pub fn user_config(&self) -> Option<PathBuf> {
        let home = || self.variable("HOME").map(PathBuf::from);
        let home = || home().or_else(|| (!self.is_rootless()).then(|| PathBuf::from("/root")));
        let config = self.variable("XDG_CONFIG_HOME").map(PathBuf::from);
        config.or_else(|| Some(home()?.join(".config"))).map(|dir| dir.join("containers"))
    }

    /// Returns the containers.conf that whoever runs the consumer would write.
    pub(super) fn own_containers_conf(&self) -> PathBuf {
        let user = self.is_rootless().then(|| self.user_config()).flatten();
        user.unwrap_or_else(|| Path::new("/etc/containers").to_owned()).join("containers.conf")
    }
}

impl fmt::Debug for System<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut system = f.debug_struct("System");
        system.field("root", &self.root).field("user_id", &self.user_id).finish_non_exhaustive()
    }
}
