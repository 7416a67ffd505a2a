//! Grants containers with a non-root user access to the directories of a rootless runner, by access control
//! lists until ownership is restored after the job: idmapped mounts require root on the host.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use container_hook_job::request::RequestEnvironment;
use oci_hooks_engine::bundle::ContainerUser;
use oci_hooks_files::beneath::ConfinedRoot;
use oci_hooks_files::error::chain;
use oci_hooks_files::fs::{PathContext as _, PathError};
use oci_hooks_host::share::{ShareOptions, share_new_file, share_tree};
use oci_hooks_image::ImageConfig;
use rustix::fs::{FileType, Mode, OFlags, fstat};

use super::backend::EngineBackend;
use super::ownership::warn;
use super::plan::LaunchPlan;

/// Returns whether a container's user differs from the owner of the runner's files and needs access to them.
pub fn is_needed(backend: &EngineBackend<'_>, user: &ContainerUser) -> bool {
    let privilege = backend.engine.privilege;
    let is_other = privilege.only_runner().is_some_and(|(owner, _)| owner != user.uid);
    // With `runner_owns_files` off, only the modes of files apply.
    is_other && privilege.uses_acls() && backend.settings.runner_owns_files
}

/// Returns whether [`is_needed`] may be true for `user`: a name or number, optionally with `:GROUP`.
pub fn may_be_needed(backend: &EngineBackend<'_>, user: &str) -> bool {
    let name = user.split(':').next().unwrap_or_default();
    backend.engine.privilege.uses_acls()
        && backend.settings.runner_owns_files
        && !["", "0", "root"].contains(&name)
}

/// Lets git use repositories of the runner, whose files belong to the container's root. Git before 2.38 ignores these
/// variables.
pub fn trust_repositories(image: &ImageConfig, env: &mut Vec<String>) {
    // Variables of the job or the image are not replaced.
    if env.iter().chain(&image.env).any(|variable| variable.starts_with("GIT_CONFIG_COUNT=")) {
        return;
    }
    let variables =
        ["GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"];
    env.extend(variables.map(str::to_owned));
}

/// Grants a container's user access to the directories that the container can write to, if needed. Errors are only
/// logged, because a program that only reads may not need the access.
pub fn with_container(backend: &EngineBackend<'_>, plan: &LaunchPlan<'_>, user: &ContainerUser) {
    if !is_needed(backend, user) {
        return;
    }
    // Containers start in parallel, and changing an access control list is a read-modify-write.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (owner, _) = backend.context.runner.user;
    let private_ids = backend.engine.privilege.private_ids();
    let to = ShareOptions { uid: user.uid, owner, private_ids };
    let mut paths: Vec<&Path> = plan.writable_paths().collect();
    paths.sort_unstable();
    // Removes paths below another path, which sort after it.
    paths.dedup_by(|path, before| path.starts_with(before));
    for path in paths {
        let log = backend.context.log;
        let shared = match backend.context.runner.files.open(path) {
            Ok(dir) => share_tree(dir.as_fd(), path, &to).map_err(|error| chain(&error)),
            Err(error) => Err(chain(&error)),
        };
        match shared {
            Ok(report) => {
                let (shown, files) = (path.display(), report.shared);
                log.debug(&format!(
                    "{shown}: {files} files shared with user {} of the container",
                    to.uid
                ));
                warn(backend, path, &report.problems);
            }
            Err(problem) => log.warning(&problem),
        }
    }
}

/// Name of the directory of file commands, in the runner's directory for temporary files.
const DIRECTORY: &str = "_runner_file_commands";

/// Action of errors about a file: without access, the step cannot set outputs or variables.
const ACTION: &str = "grant the container's user access to";

/// The file commands of a step: `GITHUB_ENV`, `GITHUB_OUTPUT` and the like. The runner creates the files anew for
/// each step, with itself as owner.
pub struct FileCommands {
    temp: PathBuf,
    names: Vec<OsString>,
}

impl FileCommands {
    /// Returns the file commands that a step's environment variables name; `temp` is the runner's directory for
    /// temporary files.
    pub fn of(environment: &RequestEnvironment, temp: &Path) -> Self {
        let name = |value: &String| {
            let path = Path::new(value);
            let is_command = path.parent().is_some_and(|above| above.ends_with(DIRECTORY));
            path.file_name().filter(|_| is_command).map(ToOwned::to_owned)
        };
        let names = environment.0.values().filter_map(name);
        FileCommands { temp: temp.to_owned(), names: names.collect() }
    }

    /// Makes the files writable for the users that have access to the directory.
    ///
    /// A job may have replaced the directory or a file: symbolic links are not followed, and only the runner's
    /// files in directories with granted access are changed.
    pub fn share_files(&self) -> Result<(), PathError> {
        let (Some(work), Some(temp)) = (self.temp.parent(), self.temp.file_name()) else {
            return Ok(());
        };
        if self.names.is_empty() {
            return Ok(());
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        let path = Path::new(temp).join(DIRECTORY);
        let work = ConfinedRoot::new(work)?;
        let directory = work.open(&path, flags | OFlags::DIRECTORY, Mode::empty())?;
        let path = self.temp.join(DIRECTORY);
        let directory = ConfinedRoot::from_fd(directory, &path);
        for name in &self.names {
            let file = directory.open(Path::new(name), flags, Mode::empty())?;
            // With `O_PATH` and `O_NOFOLLOW`, the descriptor may be that of a symbolic link.
            let stat = fstat(&file).with_path("inspect", &path.join(name))?;
            if !FileType::from_raw_mode(stat.st_mode).is_file() {
                let error =
                    io::Error::other("it is no longer a regular file: a step has replaced it");
                return Err(PathError::new(ACTION, &path.join(name), error));
            }
            share_new_file(file.as_fd()).with_path(ACTION, &path.join(name))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn environment(names: &[&str]) -> RequestEnvironment {
        let value = |name: &&str| format!("/__w/_temp/{DIRECTORY}/{name}");
        let mut variables: Vec<_> =
            names.iter().map(|name| (format!("GITHUB_{name}"), value(name))).collect();
        variables.push(("HOME".to_owned(), "/github/home".to_owned()));
        RequestEnvironment(variables.into_iter().collect())
    }

    /// Returns whether the group permissions, which are the mask of the access control list, permit writing.
    fn is_shared(path: &Path) -> bool {
        fs::metadata(path).unwrap().permissions().mode() & 0o020 != 0
    }

    /// Creates files that only the user can write, in a directory shared with another user.
    fn make(dir: &Path, names: &[&str]) {
        use std::fs::File;

        use oci_hooks_host::share::{ShareOptions, share_tree};
        use rustix::process::geteuid;

        fs::create_dir_all(dir).unwrap();
        let to = ShareOptions { uid: 1, owner: geteuid().as_raw(), private_ids: 1..2 };
        share_tree(File::open(dir).unwrap().as_fd(), dir, &to).unwrap();
        for name in names {
            fs::write(dir.join(name), "").unwrap();
            fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o644)).unwrap();
        }
    }

    #[test]
    fn only_files_named_by_the_variables_are_shared() {
        let dir = tempfile::tempdir().unwrap();
        let temp = dir.path().join("_work/_temp");
        let files = temp.join(DIRECTORY);
        make(&files, &["set_env_1", "set_output_1", "set_env_0"]);
        let commands = FileCommands::of(&environment(&["set_env_1", "set_output_1"]), &temp);
        commands.share_files().unwrap();
        let shared =
            ["set_env_1", "set_output_1", "set_env_0"].map(|name| is_shared(&files.join(name)));
        assert_eq!(shared, [true, true, false]);
        FileCommands::of(&environment(&[]), &temp).share_files().unwrap();
        let missing =
            FileCommands::of(&environment(&["set_env_2"]), &temp).share_files().unwrap_err();
        assert!(missing.to_string().contains("set_env_2"), "{missing}");
    }

    #[test]
    fn links_created_by_a_job_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (temp, other) = (dir.path().join("_work/_temp"), dir.path().join("other"));
        fs::create_dir_all(&temp).unwrap();
        make(&other, &["file"]);
        let commands = FileCommands::of(&environment(&["file"]), &temp);
        symlink(&other, temp.join(DIRECTORY)).unwrap();
        commands.share_files().unwrap_err();
        fs::remove_file(temp.join(DIRECTORY)).unwrap();
        make(&temp.join(DIRECTORY), &[]);
        symlink(other.join("file"), temp.join(DIRECTORY).join("file")).unwrap();
        commands.share_files().unwrap_err();
        // Names that lead out of the directory are ignored.
        let leading = FileCommands::of(&environment(&[".."]), &temp);
        assert_eq!(leading.names, Vec::<OsString>::new());
        assert!(!is_shared(&other.join("file")));
    }
}
