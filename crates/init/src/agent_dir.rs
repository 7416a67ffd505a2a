//! The directory of the first process: its socket, and a directory for each step with an id.
//!
//! `DIR/agent/socket` accepts requests for steps, `DIR/agent/steps/ID/socket` belongs to the keeper
//! of a step, and `DIR/agent/steps/ID/end` records its end. Only the user can access them; they
//! permit nothing that other processes of the user, such as the steps, could not do anyway.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use crate::frames::FrameBuffer;
use crate::frames::journal::{MAX_EVENT_BYTES, StepEvent, StepId};
use crate::os;

/// The directory of a container's first process.
#[derive(Clone, Debug)]
pub struct AgentDirectory {
    own: PathBuf,
}

impl AgentDirectory {
    /// Returns the `agent` directory in a directory that may belong to another user.
    pub(crate) fn new(directory: PathBuf) -> Self {
        AgentDirectory { own: directory.join("agent") }
    }

    /// Creates the directories and the socket, which may exist: the container may have been
    /// restarted.
    pub(crate) fn listen(&self) -> io::Result<UnixListener> {
        for directory in [self.own.clone(), self.steps()] {
            make_directory(&directory)?;
            let found = fs::symlink_metadata(&directory)?;
            if !found.is_dir() || found.uid() != os::user_id() {
                let path = directory.display();
                return Err(io::Error::other(format!("{path} belongs to another user")));
            }
        }
        let socket = self.socket();
        match fs::remove_file(&socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        bind_listener(&socket)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.own.join("socket")
    }

    fn steps(&self) -> PathBuf {
        self.own.join("steps")
    }

    pub(crate) fn step(&self, id: &StepId) -> StepDirectory {
        StepDirectory(self.steps().join(id.as_str()))
    }

    /// Returns the directories of all steps so far.
    pub(crate) fn all_steps(&self) -> Vec<StepDirectory> {
        let entries = fs::read_dir(self.steps()).into_iter().flatten().flatten();
        entries.map(|entry| StepDirectory(entry.path())).collect()
    }

    /// Creates the directory of a step with a socket in it, unless it exists. Of several concurrent
    /// callers one succeeds; the others get `None`.
    pub(crate) fn publish(&self, id: &StepId) -> io::Result<Option<(StepDirectory, UnixListener)>> {
        // Created under another name, so that the directory never appears without its socket.
        let made = self.own.join(format!("new-{}", os::process_id()));
        let _ = fs::remove_dir_all(&made);
        make_directory(&made)?;
        let step_dir = self.step(id);
        let listener = bind_listener(&StepDirectory(made.clone()).socket());
        let published = listener.and_then(|listener| {
            // A directory with content is not replaced.
            fs::rename(&made, &step_dir.0).map(|()| listener)
        });
        if published.is_err() {
            let _ = fs::remove_dir_all(&made);
        }
        match published {
            Ok(listener) => Ok(Some((step_dir, listener))),
            Err(_) if step_dir.exists() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The directory of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepDirectory(PathBuf);

impl StepDirectory {
    pub(crate) fn exists(&self) -> bool {
        fs::symlink_metadata(&self.0).is_ok()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }

    /// Records the end of the step atomically.
    pub fn write_end(&self, end: &StepEvent) -> io::Result<()> {
        let new = self.0.join("end.new");
        let mut file =
            File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&end.encode())?;
        fs::rename(new, self.0.join("end"))
    }

    /// Returns the recorded end of the step.
    pub fn read_end(&self) -> Option<StepEvent> {
        let mut frames = FrameBuffer::new(MAX_EVENT_BYTES);
        let end = File::open(self.0.join("end")).ok()?;
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(end, MAX_EVENT_BYTES as u64), &mut bytes).ok()?;
        frames.push(&bytes);
        let event = frames.decode_next(StepEvent::decode).ok()??;
        matches!(event, StepEvent::Ended { .. }).then_some(event)
    }

    /// Removes the socket of the step's keeper. Errors are ignored.
    pub fn remove_socket(&self) {
        let _ = fs::remove_file(self.socket());
    }
}

fn bind_listener(path: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

fn make_directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}
