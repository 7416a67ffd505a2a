//! The runner's directories in containers whose program is not root, where the kernel maps no owners: they
//! are lent by access control lists until the owners are given back after the job.

use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::backend::EngineBackend;
use super::give_back::warn;
use super::plan::Plan;
use crate::bundle::User;
use crate::sys::error::chain;
use crate::sys::lend::{Lend, lend};

/// Whether a container's user is another than whose the runner's files are, and is to have them lent.
pub(super) fn is_needed(backend: &EngineBackend<'_>, user: &User) -> bool {
    let privilege = backend.engine.privilege;
    let is_other = privilege.only_runner().is_some_and(|(owner, _)| owner != user.uid);
    // Who keeps owners as they are has the modes of files decide.
    is_other && privilege.lends_by_lists() && backend.settings.runner_owns_files
}

/// Lends the directories that a container can write to, if its user needs that. What goes wrong is told: a
/// program that only reads may do without.
pub(super) fn to_container(backend: &EngineBackend<'_>, plan: &Plan<'_>, user: &User) {
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
