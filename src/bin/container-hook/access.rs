//! Whether the runner's user can execute what `install` has the runner call, and whether it stays there.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use oci_hooks::sys::caller::Caller;
use oci_hooks::sys::users::ids_by_name;
use rustix::fs::{AtFlags, CWD, accessat};

/// The bits of a directory in which everybody makes files, and removes only their own: `/tmp` and others.
const STICKY_FOR_ALL: u32 = 0o1002;

/// The runner's user cannot do what it has to with a file or directory.
#[derive(Debug, thiserror::Error)]
#[error("user {user} cannot {action} {}, mode {mode:04o} of user {owner}, on the way to {}", place.display(), goal.display())]
pub(crate) struct NoAccess {
    user: String,
    action: &'static str,
    place: PathBuf,
    mode: u32,
    owner: u32,
    goal: PathBuf,
}

impl NoAccess {
    pub(crate) fn hint(&self) -> String {
        let place = self.place.display();
        match self.action {
            "search" => format!(
                "chmod o+x {place}, or put it where everybody comes, such as /usr/local/bin: the job \
                 would fail with \"Permission denied\""
            ),
            "read" => format!("chmod o+r {place}"),
            _ => format!("chmod o+rx {place}"),
        }
    }
}

/// Checks that a user reaches a file and may use it: the program to execute it, the script to read it. A
/// user whom nobody knows here, or whom this process may not become, is not looked at.
pub(crate) fn check(user: &str, goal: &Path, wanted: Wanted) -> Result<(), NoAccess> {
    let Ok(Some((uid, gid))) = ids_by_name(user) else { return Ok(()) };
    let denied = Caller::from_ids(uid, gid).act(|| denied(goal, wanted));
    let Ok(Some((place, action))) = denied else { return Ok(()) };
    let stat = fs::metadata(&place).ok();
    Err(NoAccess {
        user: user.to_owned(),
        action,
        mode: stat.as_ref().map_or(0, |stat| stat.mode() & 0o7777),
        owner: stat.as_ref().map_or(0, |stat| stat.uid()),
        place,
        goal: goal.to_owned(),
    })
}

/// What a user has to be able to do with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Execute,
    Read,
}

/// Returns what of the way to a file this thread cannot use, and how.
fn denied(goal: &Path, wanted: Wanted) -> Option<(PathBuf, &'static str)> {
    let may = |path: &Path, access| accessat(CWD, path, access, AtFlags::EACCESS).is_ok();
    // From the root on: what is behind a closed directory cannot be looked at.
    let mut above: Vec<_> = goal.ancestors().skip(1).collect();
    above.reverse();
    if let Some(closed) = above.into_iter().find(|dir| !may(dir, rustix::fs::Access::EXEC_OK)) {
        return Some((closed.to_owned(), "search"));
    }
    let (access, action) = match wanted {
        Wanted::Execute => (rustix::fs::Access::EXEC_OK, "execute"),
        Wanted::Read => (rustix::fs::Access::READ_OK, "read"),
    };
    (!may(goal, access)).then(|| (goal.to_owned(), action))
}

/// Returns the directory above a file in which everybody makes files: such directories are emptied, at the
/// latest when the machine starts.
pub(crate) fn emptied(file: &Path) -> Option<&Path> {
    let is_emptied = |dir: &&Path| {
        fs::metadata(dir).is_ok_and(|stat| stat.mode() & STICKY_FOR_ALL == STICKY_FOR_ALL)
    };
    file.ancestors().skip(1).find(is_emptied)
}

#[test]
fn directories_that_are_emptied_are_known_by_their_mode() {
    use std::os::unix::fs::PermissionsExt as _;

    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("a");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o1777)).unwrap();
    assert_eq!(emptied(&dir.join("b/program")), Some(dir.as_path()));
}
