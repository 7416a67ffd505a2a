//! Where settings, images and records are if nothing names other places.
//!
//! Root has those of the system. An ordinary user has their own, by the XDG base directory specification.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use super::sections::Store;
use crate::sys::fs::{PathContext as _, PathError, random_u64};
use crate::sys::lock::{BRIEF, FileLock};
use crate::sys::privilege::Privilege;
use crate::sys::users;

/// What all directories of this package are called.
const NAME: &str = "oci-hooks";

/// Where systemd notes whose services run while nobody is logged in, by the name of the user.
const LINGER: &str = "/var/lib/systemd/linger";

/// Where every user can create directories.
const SHARED: &str = "/tmp";

/// The directories of root, or of an ordinary user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// Where a user has settings of their own, which supply what those of the system do not say; none for
    /// root, and for a user without a home directory.
    pub config: Option<PathBuf>,
    /// Of images, root file systems and volumes.
    pub root: PathBuf,
    /// Of what does not outlive a boot.
    pub run: PathBuf,
    /// Of logs.
    pub logs: PathBuf,
}

/// The directory that does not outlive a session of an ordinary user has to be theirs alone.
#[derive(Debug, thiserror::Error)]
pub enum PrivateError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(
        "{} is of user {owner} with mode {mode:04o}, expected user {uid} and mode 0700: remove it, or name \
         another directory as `run` under [store]", path.display()
    )]
    Foreign { path: PathBuf, owner: u32, mode: u32, uid: u32 },
}

/// A user, as their environment and the host's user database have them.
struct User {
    uid: u32,
    /// Names and values of variables.
    variable: fn(&str) -> Option<OsString>,
    home: Option<PathBuf>,
    /// Whether their runtime directory is there while they are not logged in.
    lingers: bool,
    /// Where every user can create directories.
    shared: PathBuf,
}

impl Paths {
    /// Returns those of the system, for root.
    pub fn of_system() -> Self {
        let Store { root, run, .. } = Store::default();
        Paths { config: None, root, run, logs: Path::new("/var/log").join(NAME) }
    }

    /// Returns those of the user whom this process runs as.
    pub fn of_process() -> Self {
        let uid = rustix::process::geteuid();
        if uid.is_root() {
            return Paths::of_system();
        }
        let uid = uid.as_raw();
        let known = users::user_by_id(uid).ok().flatten();
        let lingers = |user: &users::User| Path::new(LINGER).join(&user.name).exists();
        Paths::of_user(&User {
            uid,
            variable: |name| std::env::var_os(name),
            lingers: known.as_ref().is_some_and(lingers),
            home: known.map(|user| user.home),
            shared: PathBuf::from(SHARED),
        })
    }

    fn of_user(user: &User) -> Self {
        // As the specification has it, a path that is relative counts for nothing.
        let variable = |name| (user.variable)(name).map(PathBuf::from).filter(|p| p.is_absolute());
        let home = variable("HOME").or_else(|| user.home.clone()).filter(|home| home.is_dir());
        let beneath = |name, rest: &str| variable(name).or_else(|| Some(home.as_ref()?.join(rest)));
        let temporary = usual_of(&user.shared, user.uid);
        let state = beneath("XDG_STATE_HOME", ".local/state").map(|dir| dir.join(NAME));
        Paths {
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

    /// Returns the files of settings of a program, that one first whose values win, by the path of the
    /// system's.
    pub fn settings(&self, system: &Path) -> Vec<PathBuf> {
        let own = || Some(self.config.as_ref()?.join(system.file_name()?));
        [Some(system.to_owned()), own()].into_iter().flatten().collect()
    }

    /// Puts the store where it is if no file of settings says where.
    pub fn place(self, store: &mut Store, is_said: impl Fn(&str) -> bool) {
        if !is_said("store.root") {
            store.root = self.root;
        }
        if !is_said("store.run") {
            store.run = self.run;
        }
    }
}

/// Returns a user's runtime directory, if it stays.
///
/// The one that systemd makes for a login goes with the last of them, and jobs are run by a service, whose
/// environment does not even name it. So it is used by both or by neither: if the user lingers.
fn runtime_directory(user: &User, named: Option<PathBuf>) -> Option<PathBuf> {
    let of_logins = PathBuf::from(format!("/run/user/{}", user.uid));
    match named {
        Some(dir) if dir != of_logins => Some(dir),
        named => {
            let is_own = of_logins.metadata().is_ok_and(|found| found.uid() == user.uid);
            (user.lingers && (named.is_some() || is_own)).then_some(of_logins)
        }
    }
}

/// Returns the run directory of a user who has no runtime directory: the usual one, unless another user created
/// it first. Then a directory with a random name takes its place, to which a link in the user's state directory
/// leads.
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
        fs::create_dir_all(state).at("make the directory", state)?;
        let _lock = FileLock::exclusive(&link.with_extension("lock"), BRIEF)?;
        if let Some(dir) = linked(link) {
            return Ok(dir);
        }
        let dir = PathBuf::from(format!("{}-{:016x}", usual.display(), random_u64()));
        fs::DirBuilder::new().mode(0o700).create(&dir).at("make the directory", &dir)?;
        let _ = fs::remove_file(link);
        symlink(&dir, link).at("make the symbolic link", link)?;
        Ok(dir)
    };
    // Otherwise `make_private` reports what is wrong with the usual one.
    link.and_then(|link| replace(&link).ok()).unwrap_or_else(|| usual.to_owned())
}

fn usual_of(shared: &Path, uid: u32) -> PathBuf {
    shared.join(format!("{NAME}-{uid}"))
}

/// Returns the usual run directory of this process's user in `/tmp`, if `run` takes its place.
pub fn replaced_by(run: &Path) -> Option<PathBuf> {
    let usual = usual_of(Path::new(SHARED), rustix::process::geteuid().as_raw());
    (run.parent() == usual.parent() && run != usual).then_some(usual)
}

/// Returns whether only a user can look into a directory.
fn is_private(dir: &Path, uid: u32) -> bool {
    dir.symlink_metadata()
        .is_ok_and(|found| found.is_dir() && found.uid() == uid && found.mode() & 0o077 == 0)
}

/// Creates a directory that only this process's user may look into, and the directories above it. An existing
/// directory has to be as private.
///
/// # Errors
///
/// Fails if it is another user's, no directory, or open to others: in `/tmp` anybody can be first.
pub fn make_private(path: &Path) -> Result<(), PrivateError> {
    if let Some(above) = path.parent() {
        fs::create_dir_all(above).at("make the directory", above)?;
    }
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(PathError::new("make the directory", path, error).into());
        }
        _ => {}
    }
    let found = fs::symlink_metadata(path).at("look up", path)?;
    let uid = rustix::process::geteuid().as_raw();
    let (owner, mode) = (found.uid(), found.mode() & 0o7777);
    if !found.is_dir() || owner != uid || mode & 0o077 != 0 {
        return Err(PrivateError::Foreign { path: path.to_owned(), owner, mode, uid });
    }
    Ok(())
}

/// What this process may do, and where what it makes is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub privilege: Privilege,
    /// Whether limits of containers hold: an ordinary user has a cgroup for them if one was delegated.
    pub has_cgroup: bool,
    /// Where containers and networks keep what does not outlive a boot, if not where the store does: each
    /// job of an ordinary user has its own.
    pub run: Option<PathBuf>,
    /// Where root file systems and volumes of containers are, if not where the store is.
    pub disk: Option<PathBuf>,
}

impl Default for Place {
    /// Returns that of root of the host.
    fn default() -> Self {
        Place { privilege: Privilege::Root, has_cgroup: true, run: None, disk: None }
    }
}

impl Place {
    /// Returns that of the calling process, as it was started.
    pub fn of_process() -> Self {
        // Whatever cannot be known of it, it may do nothing of.
        let privilege = Privilege::of_process().unwrap_or(Privilege::Single);
        Place { privilege, has_cgroup: privilege == Privilege::Root, run: None, disk: None }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    const UID: u32 = 54_321;

    fn of(variable: fn(&str) -> Option<OsString>, home: Option<&str>, lingers: bool) -> Paths {
        let shared = PathBuf::from(SHARED);
        Paths::of_user(&User { uid: UID, variable, home: home.map(PathBuf::from), lingers, shared })
    }

    #[test]
    fn variables_say_where_a_user_has_what() {
        let paths = of(|name| Some(format!("/x/{name}").into()), None, false);
        assert_eq!(paths.config.as_deref(), Some(Path::new("/x/XDG_CONFIG_HOME/oci-hooks")));
        assert_eq!(paths.root, Path::new("/x/XDG_DATA_HOME/oci-hooks"));
        assert_eq!(paths.run, Path::new("/x/XDG_RUNTIME_DIR/oci-hooks"));
        assert_eq!(paths.logs, Path::new("/x/XDG_STATE_HOME/oci-hooks"));
    }

    #[test]
    fn without_them_the_home_directory_and_tmp_are_taken() {
        // What is not absolute is not looked at.
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
    fn a_directory_that_goes_with_the_last_login_is_not_taken() {
        let named = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| "/run/user/54321".into());
        assert_eq!(of(named, None, false).run, Path::new("/tmp/oci-hooks-54321"));
        assert_eq!(of(named, None, true).run, Path::new("/run/user/54321/oci-hooks"));
        // A service of a user who lingers would find it by itself, if it were there.
        assert_eq!(of(|_| None, None, true).run, Path::new("/tmp/oci-hooks-54321"));
    }

    /// The files of other users are those that others may look into: only root could create real ones.
    #[test]
    fn a_directory_of_another_user_is_replaced_for_all_later_calls() {
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
        // The other user gives way: jobs have their records where they were.
        fs::remove_dir(&usual).unwrap();
        assert_eq!(find(), first);
        // After a boot, /tmp is empty.
        fs::remove_dir(&first).unwrap();
        assert_eq!(find(), usual);
        symlink("/etc", &usual).unwrap();
        let second = find();
        assert!(second != first && is_private(&second, uid), "{second:?}");
        assert_eq!(temporary_directory(&usual, uid, None), usual);
    }

    #[test]
    fn the_users_file_is_below_the_systems() {
        let system = Path::new("/etc/oci-hooks/a.toml");
        assert_eq!(Paths::of_system().settings(system), [system]);
        let paths = of(|_| None, Some("/usr"), false);
        let own = Path::new("/usr/.config/oci-hooks/a.toml");
        assert_eq!(paths.settings(system), [system, own]);
    }

    #[test]
    fn a_private_directory_is_nobody_elses() {
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
        assert!(matches!(make_private(&link), Err(PrivateError::Foreign { .. })));
    }
}
