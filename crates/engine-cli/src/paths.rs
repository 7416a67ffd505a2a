//! Default directories of settings, images, records and logs.
//!
//! Root uses system directories. A rootless user has their own, by the XDG base directory specification.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use oci_hooks_files::fs::{PathContext as _, PathError, create_if_missing, random_u64};
use oci_hooks_files::lock::{FileLock, LOCK_TIMEOUT};
use oci_hooks_host::users;

use super::sections::StoreSection;

/// Name of all directories of this package.
const NAME: &str = "oci-hooks";

/// Directory in which systemd-logind creates a file for each lingering user (`loginctl enable-linger`), named after the
/// user.
const LINGER: &str = "/var/lib/systemd/linger";

/// Directory in which all users can create directories.
const SHARED: &str = "/tmp";

/// Default directories of root or of a rootless user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultPaths {
    /// Directory of the user's settings, which add to the system's; none for root, and for a user without a home
    /// directory.
    pub config: Option<PathBuf>,
    /// Directory of images, root file systems and volumes.
    pub root: PathBuf,
    /// Directory of state that is cleared on reboot.
    pub run: PathBuf,
    pub logs: PathBuf,
}

/// Errors of creating a directory that only the current user can access.
#[derive(Debug, thiserror::Error)]
pub enum PrivateDirError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(
        "{} is owned by user {owner} with mode {mode:04o}, expected user {uid} and mode 0700: remove it, or \
         set `run` under [store] to another directory", path.display()
    )]
    Foreign { path: PathBuf, owner: u32, mode: u32, uid: u32 },
}

/// A user, from their environment and the host's user database.
struct XdgUser {
    uid: u32,
    /// Looks up an environment variable.
    variable: fn(&str) -> Option<OsString>,
    home: Option<PathBuf>,
    /// If set, the user's runtime directory exists even without a login.
    lingers: bool,
    /// Directory in which all users can create directories.
    shared: PathBuf,
}

impl DefaultPaths {
    /// Returns the system directories, for root.
    pub fn of_system() -> Self {
        let StoreSection { root, run, .. } = StoreSection::default();
        DefaultPaths { config: None, root, run, logs: Path::new("/var/log").join(NAME) }
    }

    /// Returns the directories of the current user.
    pub fn of_process() -> Self {
        let uid = rustix::process::geteuid();
        if uid.is_root() {
            return DefaultPaths::of_system();
        }
        let uid = uid.as_raw();
        let known = users::user_by_id(uid);
        let lingers = |user: &users::HostUser| Path::new(LINGER).join(&user.name).exists();
        DefaultPaths::of_user(&XdgUser {
            uid,
            variable: |name| std::env::var_os(name),
            lingers: known.as_ref().is_some_and(lingers),
            home: known.map(|user| user.home),
            shared: PathBuf::from(SHARED),
        })
    }

    fn of_user(user: &XdgUser) -> Self {
        // The specification requires that relative paths are ignored.
        let variable = |name| (user.variable)(name).map(PathBuf::from).filter(|p| p.is_absolute());
        let home = variable("HOME").or_else(|| user.home.clone()).filter(|home| home.is_dir());
        let beneath = |name, rest: &str| variable(name).or_else(|| Some(home.as_ref()?.join(rest)));
        let temporary = user_directory(&user.shared, user.uid);
        let state = beneath("XDG_STATE_HOME", ".local/state").map(|dir| dir.join(NAME));
        DefaultPaths {
            config: beneath("XDG_CONFIG_HOME", ".config").map(|dir| dir.join(NAME)),
            root: beneath("XDG_DATA_HOME", ".local/share")
                .map_or_else(|| temporary.join("data"), |dir| dir.join(NAME)),
            run: runtime_directory(user, variable("XDG_RUNTIME_DIR")).map_or_else(
                || temporary_directory(&temporary, user.uid, state.as_deref()),
                |dir| dir.join(NAME),
            ),
            logs: state.unwrap_or_else(|| temporary.join("logs")),
        }
    }

    /// Returns the settings files of a program, highest precedence first, given the path of the system's file.
    pub fn settings(&self, system: &Path) -> Vec<PathBuf> {
        let own = || Some(self.config.as_ref()?.join(system.file_name()?));
        [Some(system.to_owned()), own()].into_iter().flatten().collect()
    }

    /// Sets the directories of the store to these defaults, except those whose key is in a settings file: `is_set`
    /// returns whether a key is.
    pub fn place(self, store: &mut StoreSection, is_set: impl Fn(&str) -> bool) {
        if !is_set("store.root") {
            store.root = self.root;
        }
        if !is_set("store.run") {
            store.run = self.run;
        }
    }
}

/// Returns a user's runtime directory (`/run/user/UID`), if it outlives the user's sessions.
///
/// systemd removes `/run/user/UID` when the last session of the user ends. Jobs are run by a service, in whose
/// environment `XDG_RUNTIME_DIR` may be unset. So sessions and services use it only if the user lingers.
fn runtime_directory(user: &XdgUser, named: Option<PathBuf>) -> Option<PathBuf> {
    let of_logins = PathBuf::from(format!("/run/user/{}", user.uid));
    match named {
        Some(dir) if dir != of_logins => Some(dir),
        named => {
            let is_own = of_logins.metadata().is_ok_and(|found| found.uid() == user.uid);
            (user.lingers && (named.is_some() || is_own)).then_some(of_logins)
        }
    }
}

/// Returns the run directory of a user without a runtime directory: `usual`, unless another user created
/// that first. Then a directory with a random name replaces it, and a symlink in the user's state directory points
/// to the replacement.
fn temporary_directory(usual: &Path, uid: u32, state: Option<&Path>) -> PathBuf {
    let link = state.map(|state| state.join("run"));
    let linked = |link: &PathBuf| fs::read_link(link).ok().filter(|dir| is_private(dir, uid));
    if let Some(dir) = link.as_ref().and_then(linked) {
        return dir;
    }
    if usual.symlink_metadata().is_err() || is_private(usual, uid) {
        return usual.to_owned();
    }
    let replace = |link: &PathBuf| -> Result<PathBuf, PathError> {
        let state = link.parent().unwrap_or(link);
        fs::create_dir_all(state).with_path("create the directory", state)?;
        let _lock = FileLock::acquire_exclusive(&link.with_extension("lock"), LOCK_TIMEOUT)?;
        if let Some(dir) = linked(link) {
            return Ok(dir);
        }
        let dir = PathBuf::from(format!("{}-{:016x}", usual.display(), random_u64()));
        fs::DirBuilder::new().mode(0o700).create(&dir).with_path("create the directory", &dir)?;
        let _ = fs::remove_file(link);
        symlink(&dir, link).with_path("make the symbolic link", link)?;
        Ok(dir)
    };
    // If this fails, `make_private` reports the error of the usual directory.
    link.and_then(|link| replace(&link).ok()).unwrap_or_else(|| usual.to_owned())
}

fn user_directory(shared: &Path, uid: u32) -> PathBuf {
    shared.join(format!("{NAME}-{uid}"))
}

/// Returns the usual run directory of the current user in `/tmp`, if `run` is a replacement of it.
pub fn replaced_by(run: &Path) -> Option<PathBuf> {
    let usual = user_directory(Path::new(SHARED), rustix::process::geteuid().as_raw());
    let prefix = format!("{}-", usual.display());
    run.display().to_string().starts_with(&prefix).then_some(usual)
}

/// Returns whether a directory is beneath the one in `/tmp` that the current user gets without a home directory.
pub fn is_temporary(path: &Path) -> bool {
    path.starts_with(user_directory(Path::new(SHARED), rustix::process::geteuid().as_raw()))
}

/// Returns whether a directory belongs to a user and is inaccessible to all others.
pub(crate) fn is_private(dir: &Path, uid: u32) -> bool {
    dir.symlink_metadata()
        .is_ok_and(|found| found.is_dir() && found.uid() == uid && found.mode() & 0o077 == 0)
}

/// Creates a directory that only the current user can access, and its parents. An existing directory must be as
/// private.
///
/// # Errors
///
/// Fails if the path is owned by another user, not a directory, or accessible to other users: in `/tmp` any user can
/// create it first.
pub fn make_private(path: &Path) -> Result<(), PrivateDirError> {
    if let Some(above) = path.parent() {
        fs::create_dir_all(above).with_path("create the directory", above)?;
    }
    create_if_missing(path, 0o700)?;
    let uid = rustix::process::geteuid().as_raw();
    if is_private(path, uid) {
        return Ok(());
    }
    let found = fs::symlink_metadata(path).with_path("look up", path)?;
    let (owner, mode) = (found.uid(), found.mode() & 0o7777);
    Err(PrivateDirError::Foreign { path: path.to_owned(), owner, mode, uid })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    const UID: u32 = 54_321;

    fn of(
        variable: fn(&str) -> Option<OsString>,
        home: Option<&str>,
        lingers: bool,
    ) -> DefaultPaths {
        let shared = PathBuf::from(SHARED);
        DefaultPaths::of_user(&XdgUser {
            uid: UID,
            variable,
            home: home.map(PathBuf::from),
            lingers,
            shared,
        })
    }

    #[test]
    fn variables_determine_the_users_directories() {
        let paths = of(|name| Some(format!("/x/{name}").into()), None, false);
        assert_eq!(paths.config.as_deref(), Some(Path::new("/x/XDG_CONFIG_HOME/oci-hooks")));
        assert_eq!(paths.root, Path::new("/x/XDG_DATA_HOME/oci-hooks"));
        assert_eq!(paths.run, Path::new("/x/XDG_RUNTIME_DIR/oci-hooks"));
        assert_eq!(paths.logs, Path::new("/x/XDG_STATE_HOME/oci-hooks"));
    }

    #[test]
    fn home_directory_and_tmp_are_defaults() {
        // Relative paths are ignored.
        for variable in [|_: &str| None, |_: &str| Some("relative".into())] {
            let paths = of(variable, Some("/usr"), false);
            assert_eq!(paths.config.as_deref(), Some(Path::new("/usr/.config/oci-hooks")));
            assert_eq!(paths.root, Path::new("/usr/.local/share/oci-hooks"));
            assert_eq!(paths.run, Path::new("/tmp/oci-hooks-54321"));
            assert_eq!(paths.logs, Path::new("/usr/.local/state/oci-hooks"));
            let paths = of(variable, Some("/nonexistent"), false);
            assert_eq!(paths.config, None);
            assert_eq!(paths.root, Path::new("/tmp/oci-hooks-54321/data"));
        }
    }

    #[test]
    fn directory_removed_at_logout_is_not_used() {
        let named = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| "/run/user/54321".into());
        assert_eq!(of(named, None, false).run, Path::new("/tmp/oci-hooks-54321"));
        assert_eq!(of(named, None, true).run, Path::new("/run/user/54321/oci-hooks"));
        // A service of a lingering user would find the directory without the variable, if it existed.
        assert_eq!(of(|_| None, None, true).run, Path::new("/tmp/oci-hooks-54321"));
    }

    /// A directory with mode 0755 stands for another user's directory, which only root could create.
    #[test]
    fn directory_of_another_user_is_replaced_permanently() {
        let dir = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let (state, usual) = (dir.path().join("state"), dir.path().join("oci-hooks-1"));
        let find = || temporary_directory(&usual, uid, Some(&state));
        assert_eq!(find(), usual);
        make_private(&usual).unwrap();
        assert_eq!(find(), usual);
        fs::set_permissions(&usual, fs::Permissions::from_mode(0o755)).unwrap();
        let first = find();
        assert_ne!(first, usual);
        make_private(&first).unwrap();
        assert_eq!(find(), first);
        // When the other user's directory is removed, the replacement is still used, because it has the records of
        // jobs.
        fs::remove_dir(&usual).unwrap();
        assert_eq!(find(), first);
        // After a reboot, /tmp is empty.
        fs::remove_dir(&first).unwrap();
        assert_eq!(find(), usual);
        symlink("/etc", &usual).unwrap();
        let second = find();
        assert!(second != first && is_private(&second, uid), "{second:?}");
        assert_eq!(temporary_directory(&usual, uid, None), usual);
    }

    #[test]
    fn user_settings_file_is_below_the_system_file() {
        let system = Path::new("/etc/oci-hooks/a.toml");
        assert_eq!(DefaultPaths::of_system().settings(system), [system]);
        let paths = of(|_| None, Some("/usr"), false);
        let own = Path::new("/usr/.config/oci-hooks/a.toml");
        assert_eq!(paths.settings(system), [system, own]);
    }

    #[test]
    fn private_directory_must_belong_to_the_user() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/run");
        make_private(&path).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o700);
        make_private(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
        let error = make_private(&path).unwrap_err().to_string();
        assert!(error.contains("with mode 0750, expected user "), "{error}");
        let link = dir.path().join("link");
        symlink("a", &link).unwrap();
        assert!(matches!(make_private(&link), Err(PrivateDirError::Foreign { .. })));
    }
}
