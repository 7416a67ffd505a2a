//! Kills and removes containers, and the leftovers of those that were created or removed only in part.

use std::ffi::{OsStr, OsString};
use std::iter;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use oci_hooks_files::error::chain;
use oci_hooks_files::fs::PathContext as _;
use oci_hooks_host::identity::ProcessIdentity;
use oci_hooks_host::thread::{ConcurrentWork, spawn_or_call};
use oci_hooks_host::{cgroup, mount};
use tracing::{info_span, warn};

use super::disk;
use super::engine::Engine;
use super::error::ContainerError;
use super::processes::rooted_in;
use super::record::ContainerRecord;
use super::steps;
use crate::runtime::OciRuntime;
use crate::{bundle, rootfs};

/// Timeout for killed processes to end.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Time for which processes with a runtime's command line are killed even if they have other user
/// ids, as runtimes do once they create a user namespace. Other users could start such processes
/// for ever, so later ones are ignored.
const OTHER_USERS: Duration = Duration::from_secs(3);

/// Number of containers removed at once: each needs descriptors, which may be few.
const AT_ONCE: usize = 4;

/// Kills the processes of a container without a cgroup. Returns whether all ended.
fn kill_rooted_in(id: &str) -> Result<bool, ContainerError> {
    loop {
        let processes = rooted_in(id).with_path("list", Path::new("/proc"))?;
        if processes.is_empty() {
            return Ok(true);
        }
        // A process may have created others before it was killed.
        for process in processes {
            if process.kill(TIMEOUT).is_err() {
                return Ok(false);
            }
        }
    }
}

impl Engine {
    /// Kills all processes of a container.
    fn kill_processes(&self, record: &ContainerRecord) -> Result<(), ContainerError> {
        let unkillable = || ContainerError::Unkillable { id: record.id.clone(), timeout: TIMEOUT };
        // Killed here, not by the runtime: runc checks only every 100 ms whether the process has ended.
        if let Some(process) =
            record.process.or_else(|| self.directory(&record.id).process(&record.id))
        {
            process.kill(TIMEOUT).map_err(|_| unkillable())?;
        }
        // Processes of a container with a shared PID namespace do not end with the first one.
        let is_dead = if record.cgroup.is_empty() {
            kill_rooted_in(&record.id)?
        } else {
            cgroup::kill(&record.cgroup)
        };
        if is_dead { Ok(()) } else { Err(unkillable()) }
    }

    /// Deletes a runtime's state of a container: calls the runtime, then removes its files. The runtime may have been
    /// killed while it created the container, or not work any more, and must not prevent the removal.
    pub(super) fn delete_state(
        &self,
        runtime: &OciRuntime,
        id: &str,
    ) -> Result<(), ContainerError> {
        let state = runtime.state_directory(id);
        if runtime.has_state(id) {
            if let Err(error) = runtime.delete(id) {
                warn!(
                    id,
                    error = chain(&error),
                    "the runtime cannot delete the container: removing its state directory instead"
                );
            }
            if runtime.capabilities().is_sandbox {
                // Its processes are in no namespace by which they could be found.
                Self::kill_runtime_calls(runtime, id)?;
            }
            // runc mounts itself on a file there for an instant, in which it may be killed.
            mount::unmount_below(&state)?;
        }
        Ok(self.run_trash().remove(&state)?)
    }

    /// Kills processes that create a container for a killed caller: a child of the runtime, or of a script
    /// around it, does not die with the caller, and would continue after everything else was removed. Also kills
    /// the processes of a sandbox, which is started by the same program.
    pub(super) fn kill_runtime_calls(runtime: &OciRuntime, id: &str) -> Result<(), ContainerError> {
        let unkillable = || ContainerError::Unkillable { id: id.to_owned(), timeout: TIMEOUT };
        let root = runtime.root_of(id);
        let mut of_sandbox = OsString::from("--root=");
        of_sandbox.push(&root);
        let maker = [root.as_os_str(), OsStr::new("run"), OsStr::new(id)];
        let sandbox = [of_sandbox.as_os_str()];
        // Other runtimes share the root.
        let sandbox = runtime.capabilities().is_sandbox.then_some(&sandbox[..]);
        let words: Vec<&[&OsStr]> = iter::once(&maker[..]).chain(sandbox).collect();
        let mut end = Instant::now() + OTHER_USERS;
        // Once a process is dead, all processes that it started are visible.
        loop {
            let is_late = Instant::now() > end;
            let mut makers = Vec::new();
            for words in &words {
                makers.extend(
                    ProcessIdentity::with_words(words).with_path("list", Path::new("/proc"))?,
                );
            }
            let (own, others): (Vec<_>, Vec<_>) =
                makers.into_iter().partition(ProcessIdentity::is_of_this_user);
            if own.is_empty() && (others.is_empty() || is_late) {
                return Ok(());
            }
            for maker in &own {
                maker.kill(TIMEOUT).map_err(|_| unkillable())?;
                end = Instant::now() + OTHER_USERS;
            }
            for maker in others {
                // A process of another user may hang in the kernel.
                let _ = maker.kill(end.saturating_duration_since(Instant::now()));
            }
        }
    }

    /// Kills all processes of a container without a readable record, whose cgroup is unknown.
    pub(super) fn kill_unrecorded(&self, id: &str) -> Result<(), ContainerError> {
        let unkillable = || ContainerError::Unkillable { id: id.to_owned(), timeout: TIMEOUT };
        let kill = || {
            if let Some(process) = self.directory(id).process(id) {
                process.kill(TIMEOUT).map_err(|_| unkillable())?;
            }
            if kill_rooted_in(id)? { Ok(()) } else { Err(unkillable()) }
        };
        kill()?;
        Self::kill_runtime_calls(&self.runtime, id)?;
        kill()
    }

    fn kill_all(&self, records: &[ContainerRecord]) -> Result<(), ContainerError> {
        let kill = |record: &ContainerRecord| {
            self.kill_processes(record)?;
            if record.process.is_none() {
                Self::kill_runtime_calls(&record.runtime, &record.id)?;
                // Processes that they started meanwhile.
                self.kill_processes(record)?;
            }
            Ok(())
        };
        let killed: Vec<_> = records.iter().map(kill).collect();
        killed.into_iter().collect()
    }

    /// Kills a container and removes all its resources. May be repeated after a call that failed or
    /// whose process was killed.
    pub fn remove(&self, record: &ContainerRecord) -> Result<(), ContainerError> {
        let _span = info_span!("remove", container = record.id).entered();
        if record.process.is_none() {
            // A job could otherwise create processes that look like the runtime faster than these are killed.
            self.kill_processes(record)?;
            Self::kill_runtime_calls(&record.runtime, &record.id)?;
        }
        self.tear_down(record)
    }

    /// Removes a container as [`Engine::remove`] does, if no process is creating it any more.
    pub(super) fn tear_down(&self, record: &ContainerRecord) -> Result<(), ContainerError> {
        self.kill_processes(record)?;
        steps::remove(&self.run, &record.id)?;
        let directory = self.directory(&record.id);
        self.delete_state(&record.runtime, &record.id)?;
        if !record.cgroup.is_empty() && !cgroup::remove(&record.cgroup) {
            return Err(ContainerError::Unkillable { id: record.id.clone(), timeout: TIMEOUT });
        }
        bundle::unmount(&directory.bundle())?;
        rootfs::unmount(&record.disk)?;
        disk::remove(&record.disk, &self.trash())?;
        self.store.release(&record.id)?;
        // The record is removed last: it names all remaining resources.
        Ok(self.run_trash().remove(directory.path())?)
    }

    /// Removes containers as [`Engine::remove_all`] does. Once all their processes have ended,
    /// calls `others` in parallel, to remove resources that only these containers used, such as a
    /// network: the kernel takes longer to remove firewall rules than a runtime to delete a
    /// container.
    pub fn remove_all_with<T: Send>(
        &self,
        records: &[ContainerRecord],
        others: impl FnOnce() -> T + Send,
    ) -> Result<T, ContainerError> {
        if let Err(error) = self.kill_all(records) {
            return Err(self.remove_all(records).err().unwrap_or(error));
        }
        std::thread::scope(|scope| {
            let others = spawn_or_call(scope, others);
            let removed = self.remove_all(records);
            let others = others.join();
            removed.map(|()| others)
        })
    }

    /// Removes containers, several at a time. Removes as many as possible, and returns the first error.
    pub fn remove_all(&self, records: &[ContainerRecord]) -> Result<(), ContainerError> {
        let next = AtomicUsize::new(0);
        let some = || {
            let mut result = Ok(());
            while let Some(record) = records.get(next.fetch_add(1, Ordering::Relaxed)) {
                result = result.and(self.remove(record));
            }
            result
        };
        std::thread::scope(|scope| {
            let at_once = records.iter().take(AT_ONCE);
            let threads: Vec<_> = at_once.map(|_| spawn_or_call(scope, some)).collect();
            threads.into_iter().map(ConcurrentWork::join).fold(Ok(()), Result::and)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::sync::mpsc::channel;
    use std::thread;

    use oci_hooks_testsupport::program::DEADLINE;
    use rustix::process::geteuid;

    use super::*;

    #[test]
    fn other_users_cannot_prolong_a_removal() {
        if !geteuid().is_root() {
            // Processes of other users cannot be started.
            return;
        }
        const SCRIPT: &str =
            "echo; while sh -c 'read line' \"$ROOT\" run id; [ $? != 1 ]; do :; done";
        let root = tempfile::tempdir().unwrap();
        let runtime = OciRuntime::new("/usr/bin/runc".into(), root.path().to_owned());
        let mut other = Command::new("setpriv");
        other.args(["--reuid=65534", "--clear-groups", "sh", "-c", SCRIPT]);
        other.env("ROOT", root.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut other = other.spawn().unwrap();
        let words = [root.path().as_os_str(), OsStr::new("run"), OsStr::new("id")];
        while ProcessIdentity::with_words(&words).unwrap().is_empty() {
            thread::yield_now();
        }
        let (sender, ended) = channel();
        thread::spawn(move || sender.send(Engine::kill_runtime_calls(&runtime, "id")));
        ended.recv_timeout(DEADLINE).unwrap().unwrap();
        drop(other.stdin.take());
        other.wait().unwrap();
    }
}
