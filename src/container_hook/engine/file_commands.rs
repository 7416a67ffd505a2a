//! The files by which a step speaks to the runner: `GITHUB_ENV`, `GITHUB_OUTPUT` and the like. The runner
//! makes them anew for each step, as its own.

use std::ffi::OsString;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::container_hook::request::Environment;
use crate::sys::beneath::Beneath;
use crate::sys::fs::{PathContext as _, PathError};
use crate::sys::lend::lend_made;

/// The directory of such files, in that for temporary files.
const DIRECTORY: &str = "_runner_file_commands";

/// Such files of one step.
pub(super) struct FileCommands {
    temp: PathBuf,
    names: Vec<OsString>,
}

impl FileCommands {
    /// Returns those that a step's variables name, which are in a runner's directory for temporary files.
    pub(super) fn of(environment: &Environment, temp: &Path) -> Self {
        let name = |value: &String| {
            let path = Path::new(value);
            let is_command = path.parent().is_some_and(|above| above.ends_with(DIRECTORY));
            path.file_name().filter(|_| is_command).map(ToOwned::to_owned)
        };
        let names = environment.0.iter().filter_map(|(_, value)| name(value));
        FileCommands { temp: temp.to_owned(), names: names.collect() }
    }

    /// Lets those to whom the directory is lent write the files.
    ///
    /// A job may have put something else in the place of any of it: nothing is found through links, and
    /// nothing is changed but files of the runner that are lent anyway.
    pub(super) fn lend(&self) -> Result<(), PathError> {
        let (Some(work), Some(temp)) = (self.temp.parent(), self.temp.file_name()) else {
            return Ok(());
        };
        if self.names.is_empty() {
            return Ok(());
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        let path = Path::new(temp).join(DIRECTORY);
        let work = Beneath::new(work)?;
        let directory = work.open(&path, flags | OFlags::DIRECTORY, Mode::empty())?;
        let path = self.temp.join(DIRECTORY);
        let directory = Beneath::from_fd(directory, &path);
        for name in &self.names {
            let file = directory.open(Path::new(name), flags, Mode::empty())?;
            lend_made(file.as_fd()).at("lend", &path.join(name))?;
        }
        Ok(())
    }
}
