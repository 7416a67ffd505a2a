//! The runner's directories in containers whose program is not root, where the kernel maps no owners: they
//! are lent by access control lists until the owners are given back after the job.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FileType, Mode, OFlags, fstat};

use super::backend::EngineBackend;
use super::give_back::warn;
use super::plan::Plan;
use crate::bundle::User;
use crate::container_hook::request::Environment;
use crate::sys::beneath::Beneath;
use crate::sys::error::chain;
use crate::sys::fs::{PathContext as _, PathError};
use crate::sys::lend::{Lend, lend, lend_made};

/// Whether a container's user is another than whose the runner's files are, and is to have them lent.
pub fn is_needed(backend: &EngineBackend<'_>, user: &User) -> bool {
    let privilege = backend.engine.privilege;
    let is_other = privilege.only_runner().is_some_and(|(owner, _)| owner != user.uid);
    // Who keeps owners as they are has the modes of files decide.
    is_other && privilege.lends_by_lists() && backend.settings.runner_owns_files
}

/// Lends the directories that a container can write to, if its user needs that. What goes wrong is told: a
/// program that only reads may do without.
pub fn to_container(backend: &EngineBackend<'_>, plan: &Plan<'_>, user: &User) {
    if !is_needed(backend, user) {
        return;
    }
    // Containers start side by side, and lists are read before they are written.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (owner, _) = backend.context.runner.user;
    let private = backend.engine.privilege.container_ids();
    let to = Lend { uid: user.uid, owner, private };
    let mut paths: Vec<&Path> = plan.writable().collect();
    paths.sort_unstable();
    // Those that are in another come after it.
    paths.dedup_by(|path, before| path.starts_with(before));
    for path in paths {
        let log = backend.context.log;
        let lent = match backend.context.runner.files.open(path) {
            Ok(dir) => lend(dir.as_fd(), path, &to).map_err(|error| chain(&error)),
            Err(error) => Err(chain(&error)),
        };
        match lent {
            Ok(report) => {
                let (shown, lent) = (path.display(), report.lent);
                log.debug(&format!(
                    "{shown}: {lent} files lent to user {} of the container",
                    to.uid
                ));
                warn(backend, path, &report.problems);
            }
            Err(problem) => log.warning(&problem),
        }
    }
}

/// The directory of the files by which steps speak to the runner, in that for temporary files.
const DIRECTORY: &str = "_runner_file_commands";

/// The files by which a step speaks to the runner: `GITHUB_ENV`, `GITHUB_OUTPUT` and the like. The runner makes
/// them anew for each step, as its own.
pub struct FileCommands {
    temp: PathBuf,
    names: Vec<OsString>,
}

impl FileCommands {
    /// Returns those that a step's variables name, which are in a runner's directory for temporary files.
    pub fn of(environment: &Environment, temp: &Path) -> Self {
        let name = |value: &String| {
            let path = Path::new(value);
            let is_command = path.parent().is_some_and(|above| above.ends_with(DIRECTORY));
            path.file_name().filter(|_| is_command).map(ToOwned::to_owned)
        };
        let names = environment.0.values().filter_map(name);
        FileCommands { temp: temp.to_owned(), names: names.collect() }
    }

    /// Lets those to whom the directory is lent write the files.
    ///
    /// A job may have put something else in the place of any of it: nothing is found through links, and
    /// nothing is changed but files of the runner that are lent anyway.
    pub fn lend(&self) -> Result<(), PathError> {
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
            // What is opened so may be a link itself.
            let stat = fstat(&file).at("look at", &path.join(name))?;
            if !FileType::from_raw_mode(stat.st_mode).is_file() {
                let error =
                    io::Error::other("it is no regular file any more: a step has replaced it");
                return Err(PathError::new("lend", &path.join(name), error));
            }
            lend_made(file.as_fd()).at("lend", &path.join(name))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn environment(names: &[&str]) -> Environment {
        let value = |name: &&str| format!("/__w/_temp/{DIRECTORY}/{name}");
        let mut variables: Vec<_> =
            names.iter().map(|name| (format!("GITHUB_{name}"), value(name))).collect();
        variables.push(("HOME".to_owned(), "/github/home".to_owned()));
        Environment(variables.into_iter().collect())
    }

    /// Returns whether the group's permissions, which are the mask of a list, let files be written.
    fn is_lent(path: &Path) -> bool {
        fs::metadata(path).unwrap().permissions().mode() & 0o020 != 0
    }

    /// Makes files that are the user's alone, in a directory that is lent to another.
    fn make(dir: &Path, names: &[&str]) {
        use std::fs::File;

        use rustix::process::geteuid;

        use crate::sys::lend::{Lend, lend};

        fs::create_dir_all(dir).unwrap();
        let to = Lend { uid: 1, owner: geteuid().as_raw(), private: 1..2 };
        lend(File::open(dir).unwrap().as_fd(), dir, &to).unwrap();
        for name in names {
            fs::write(dir.join(name), "").unwrap();
            fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o644)).unwrap();
        }
    }

    #[test]
    fn files_that_the_variables_name_are_lent_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let temp = dir.path().join("_work/_temp");
        let files = temp.join(DIRECTORY);
        make(&files, &["set_env_1", "set_output_1", "set_env_0"]);
        let commands = FileCommands::of(&environment(&["set_env_1", "set_output_1"]), &temp);
        commands.lend().unwrap();
        let lent =
            ["set_env_1", "set_output_1", "set_env_0"].map(|name| is_lent(&files.join(name)));
        assert_eq!(lent, [true, true, false]);
        FileCommands::of(&environment(&[]), &temp).lend().unwrap();
        let missing = FileCommands::of(&environment(&["set_env_2"]), &temp).lend().unwrap_err();
        assert!(missing.to_string().contains("set_env_2"), "{missing}");
    }

    #[test]
    fn nothing_is_found_through_links_that_a_job_made() {
        let dir = tempfile::tempdir().unwrap();
        let (temp, other) = (dir.path().join("_work/_temp"), dir.path().join("other"));
        fs::create_dir_all(&temp).unwrap();
        make(&other, &["file"]);
        let commands = FileCommands::of(&environment(&["file"]), &temp);
        symlink(&other, temp.join(DIRECTORY)).unwrap();
        commands.lend().unwrap_err();
        fs::remove_file(temp.join(DIRECTORY)).unwrap();
        make(&temp.join(DIRECTORY), &[]);
        symlink(other.join("file"), temp.join(DIRECTORY).join("file")).unwrap();
        commands.lend().unwrap_err();
        // Nor by a name that leads out.
        let leading = FileCommands::of(&environment(&[".."]), &temp);
        assert_eq!(leading.names, Vec::<OsString>::new());
        assert!(!is_lent(&other.join("file")));
    }
}
