//! The directory of the first process.
//!
//! `DIR/agent/socket` accepts requests, and an empty file `DIR/agent/steps/ID` marks the id of a step as
//! used. Only the user can access them; they permit nothing that other processes of the user, such as
//! the steps, could not do anyway.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use oci_hooks_init::frames::journal::StepId;
use rustix::process::getuid;

/// The directory of a container's first process.
pub struct AgentDirectory {
    own: PathBuf,
}

impl AgentDirectory {
    /// Returns the `agent` directory in a directory that may belong to another user.
    pub fn new(directory: PathBuf) -> Self {
        AgentDirectory { own: directory.join("agent") }
    }

    /// Creates the directories and the socket, which may exist: the container may have been
    /// restarted.
    pub fn listen(&self) -> io::Result<UnixListener> {
        for directory in [self.own.clone(), self.steps()] {
            match DirBuilder::new().mode(0o700).create(&directory) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            let found = fs::symlink_metadata(&directory)?;
            if !found.is_dir() || found.uid() != getuid().as_raw() {
                let path = directory.display();
                return Err(io::Error::other(format!(
                    "{path} is not a directory, or belongs to another user"
                )));
            }
        }
        let socket = self.socket();
        match fs::remove_file(&socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&socket)?;
        fs::set_permissions(&socket, Permissions::from_mode(0o600))?;
        Ok(listener)
    }

    pub fn socket(&self) -> PathBuf {
        self.own.join("socket")
    }

    fn steps(&self) -> PathBuf {
        self.own.join("steps")
    }

    /// Marks the id of a step as used; returns whether it was not. Of several callers, one succeeds.
    pub fn claim(&self, id: &StepId) -> io::Result<bool> {
        let file = self.steps().join(id.as_str());
        match File::options().write(true).create_new(true).mode(0o600).open(file) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            claimed => claimed.map(|_| true),
        }
    }
}
