//! Jobs of runners that had this runner's name before it: mostly itself, set up anew in another
//! directory, and its last job was never cleaned up.
//!
//! Their containers hold ports and memory until `prune` comes. Two runners of different
//! organisations may have the same name and user, though: a job whose worker runs is somebody's.

use super::backend::EngineBackend;
use super::cleanup_job::remove_job;
use super::job::Job;
use crate::container_hook::error::HookError;
use crate::container_hook::runner::Runner;
use crate::sys::error::chain;

/// Removes the jobs of this runner's user and name, in other directories, that are over.
pub(super) fn remove(backend: &EngineBackend<'_>) -> Result<(), HookError> {
    // A record that cannot be read is for `prune` to report.
    let known = backend.jobs().all()?.known;
    for job in known.iter().filter(|job| is_predecessor(job, backend.context.runner)) {
        match remove_job(backend.engine, backend.network, job) {
            Ok(false) => {}
            Ok(true) => backend.context.log.line(&format!(
                "removed a job of an earlier runner {:?} of this user: its worker has ended",
                job.runner
            )),
            // What is left of it need not be in the way of this one.
            Err(error) => backend.context.log.warning(&chain(&error)),
        }
    }
    Ok(())
}

fn is_predecessor(job: &Job, runner: &Runner) -> bool {
    job.runner == runner.name
        && job.owner != runner.owner()
        && job.lent.user == runner.user
        && !job.worker.is_some_and(|worker| worker.is_running())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container_hook::engine::job::Lent;
    use crate::container_hook::runner::tests::runner;
    use crate::sys::identity::Identity;

    /// Returns a job of a runner with the same name and user, made by nobody that is known.
    fn job() -> Job {
        let former = Runner { temp: "/srv/no-such/_work/_temp".into(), ..runner() };
        Job {
            owner: former.owner(),
            runner: former.name.clone(),
            network: "n".to_owned(),
            peers: Vec::new(),
            worker: None,
            lent: Lent { user: former.user, directories: Vec::new() },
            is_step: false,
        }
    }

    #[test]
    fn a_job_of_the_same_name_is_removed_once_its_worker_has_ended() {
        let own = Identity::of(std::process::id()).unwrap();
        let gone = Identity { start: own.start + 1, ..own };
        for (worker, expected) in [(None, true), (Some(gone), true), (Some(own), false)] {
            let job = Job { worker, ..job() };
            assert_eq!(is_predecessor(&job, &runner()), expected, "{job:?}");
        }
    }

    #[test]
    fn jobs_of_others_and_of_the_runner_itself_are_not_its_predecessors() {
        for job in [
            Job { runner: "runner-2".to_owned(), ..job() },
            Job { owner: runner().owner(), ..job() },
            Job { lent: Lent { user: (1001, 1000), directories: Vec::new() }, ..job() },
        ] {
            assert!(!is_predecessor(&job, &runner()), "{job:?}");
        }
    }
}
