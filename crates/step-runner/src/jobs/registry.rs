//! All jobs of a server by id.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::info_span;

use super::super::log::LogFollower;
use super::super::wire::proto::RunRequest;
use super::descriptors::DescriptorBudget;
use super::entry::{JobEntry, StepFollower};
use super::event::{EventWatcher, JobEvent, JobSnapshot, MAX_ID_BYTES, NoSuchJob, RunError};
use super::request::prepare;
use super::settings::ServerSettings;
use super::state::StateDir;
use super::variables::VariableMode;

/// Minimum and maximum interval between checks for jobs to prune.
const PRUNE_INTERVAL: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(60));

/// The jobs of a server. Clones share them.
#[derive(Clone)]
pub struct JobRegistry {
    shared: Arc<RegistryState>,
}

struct RegistryState {
    settings: ServerSettings,
    /// Dropped before `state`, which then cleans up the files of jobs.
    table: Mutex<JobTable>,
    state: StateDir,
    descriptors: DescriptorBudget,
    /// Notified when the start of a job has succeeded or failed.
    started: Condvar,
    watcher: EventWatcher,
    is_stopped: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct JobTable {
    jobs: BTreeMap<String, JobSlot>,
    is_shutting_down: bool,
}

impl JobTable {
    /// Returns the number of jobs that run or are being started.
    fn running(&self) -> usize {
        let is_running = |slot: &&JobSlot| match slot {
            JobSlot::Starting => true,
            JobSlot::Known(entry) => !entry.snapshot().is_finished(),
        };
        self.jobs.values().filter(is_running).count()
    }
}

#[derive(Debug)]
enum JobSlot {
    /// The job is being started.
    Starting,
    Known(Arc<JobEntry>),
}

impl JobRegistry {
    /// Returns a registry with the jobs of an earlier server. `watcher` is called for each event.
    pub fn new(
        settings: ServerSettings,
        mut state: StateDir,
        watcher: impl Fn(&JobEvent<'_>) + Send + Sync + 'static,
    ) -> Self {
        let mut table = JobTable::default();
        for job in state.take_kept() {
            let entry = Arc::new(JobEntry::of_earlier(job));
            let id = entry.snapshot().id;
            if let Some(JobSlot::Known(other)) = table.jobs.insert(id, JobSlot::Known(entry)) {
                // Only one record of an id is genuine.
                other.remove();
            }
        }
        let shared = RegistryState {
            settings,
            descriptors: DescriptorBudget::of_process(table.jobs.len()),
            table: Mutex::new(table),
            state,
            started: Condvar::default(),
            watcher: Arc::new(watcher),
            is_stopped: watch::Sender::new(false),
        };
        JobRegistry { shared: Arc::new(shared) }
    }

    /// Starts a job, unless a job with this id exists. Blocks until the job has been started.
    pub fn run(&self, request: RunRequest, variables: VariableMode) -> Result<(), RunError> {
        let Some(place) = self.reserve(&request.id)? else { return Ok(()) };
        let id = request.id.clone();
        let started = self.start(request, variables);
        let event = match &started {
            Ok(_) => JobEvent::Started { id: &id },
            Err(error) => JobEvent::NotStarted { id: &id, error },
        };
        (self.shared.watcher)(&event);
        place.fill(started?);
        Ok(())
    }

    fn start(
        &self,
        request: RunRequest,
        variables: VariableMode,
    ) -> Result<Arc<JobEntry>, RunError> {
        let RegistryState { settings, state, watcher, .. } = &*self.shared;
        let span = info_span!("job", id = request.id);
        let (entry, work) = prepare(settings, state, request, variables, watcher)?;
        // Preparing the job may have taken long.
        if self.table().is_shutting_down {
            entry.remove();
            return Err(RunError::ShuttingDown);
        }
        let worker = entry.clone();
        let thread = thread::Builder::new().name("job".to_owned());
        let started = thread.spawn(move || span.in_scope(|| worker.work(work)));
        match started {
            Ok(_) => Ok(entry),
            Err(error) => {
                entry.remove();
                Err(RunError::Start(error))
            }
        }
    }

    /// Reserves an id; returns `None` if a job with this id exists.
    fn reserve(&self, id: &str) -> Result<Option<Reservation<'_>>, RunError> {
        if id.is_empty() || id.len() > MAX_ID_BYTES {
            return Err(RunError::Id);
        }
        let mut table = self.table();
        loop {
            match table.jobs.get(id) {
                Some(JobSlot::Known(_)) => return Ok(None),
                Some(JobSlot::Starting) => {
                    let started = &self.shared.started;
                    table = started.wait(table).unwrap_or_else(PoisonError::into_inner);
                }
                None => break,
            }
        }
        if table.is_shutting_down {
            return Err(RunError::ShuttingDown);
        }
        if table.jobs.len() >= self.shared.settings.max_jobs {
            return Err(RunError::TooManyJobs(table.jobs.len()));
        }
        self.shared.descriptors.check(table.running(), table.jobs.len())?;
        table.jobs.insert(id.to_owned(), JobSlot::Starting);
        Ok(Some(Reservation { jobs: self, id: id.to_owned() }))
    }

    /// Returns the status of a job.
    pub fn status(&self, id: &str) -> Result<JobSnapshot, NoSuchJob> {
        self.find(id).map(|entry| entry.snapshot())
    }

    /// Returns the status of all jobs, ordered by id.
    pub fn list_jobs(&self) -> Vec<JobSnapshot> {
        self.entries().into_iter().map(|(_, entry)| entry.snapshot()).collect()
    }

    /// Follows the log of a job from an offset in bytes.
    pub fn follow_log(&self, id: &str, offset: u64) -> Result<LogFollower, NoSuchJob> {
        Ok(self.find(id)?.follow(offset))
    }

    /// Follows the results of a job's steps, without the first `skip`.
    pub fn follow_steps(&self, id: &str, skip: usize) -> Result<StepFollower, NoSuchJob> {
        Ok(StepFollower::new(self.find(id)?, skip))
    }

    /// Cancels a job if it runs, and removes it, once it has started. An unknown job is not an error.
    ///
    /// A job that does not end although it was killed is removed as well; its files are removed when it
    /// ends.
    pub async fn close(&self, id: &str) {
        let (jobs, wanted) = (self.clone(), id.to_owned());
        let found = tokio::task::spawn_blocking(move || jobs.find_started(&wanted)).await;
        let Ok(Ok(entry)) = found else { return };
        entry.stop().await;
        if self.remove(id, &entry).await {
            (self.shared.watcher)(&JobEvent::Closed { id });
        }
    }

    /// Cancels a job if it runs, without waiting for its end: commands are stopped, and steps with
    /// `always()` or `cancelled()` in their condition still run. The job stays until it is closed. Blocks
    /// until a job that is being started has started.
    ///
    /// Unlike in [`close`](Self::close), an unknown job is an error: nothing is stopped then.
    pub fn cancel(&self, id: &str) -> Result<(), NoSuchJob> {
        if self.find_started(id)?.cancel() {
            (self.shared.watcher)(&JobEvent::Cancelled { id });
        }
        Ok(())
    }

    /// Prunes jobs that ended long ago, in an endless loop.
    pub async fn prune(&self) {
        let stale_after = self.shared.settings.stale_after;
        loop {
            for (id, entry) in self.entries() {
                let is_stale = entry.end_time().is_some_and(|ended| ended.elapsed() >= stale_after);
                if is_stale && self.remove(&id, &entry).await {
                    (self.shared.watcher)(&JobEvent::Pruned { id: &id });
                }
            }
            tokio::time::sleep((stale_after / 4).clamp(PRUNE_INTERVAL.0, PRUNE_INTERVAL.1)).await;
        }
    }

    /// Accepts no more jobs, and waits for running ones up to a timeout.
    pub async fn drain(&self, timeout: Duration) {
        self.table().is_shutting_down = true;
        let deadline = tokio::time::Instant::now() + timeout;
        for (_, entry) in self.entries() {
            let _ = tokio::time::timeout_at(deadline, entry.wait_until_finished()).await;
        }
    }

    /// Accepts no more jobs, cancels running ones, and waits until all have ended or are abandoned.
    pub async fn stop(&self) {
        self.table().is_shutting_down = true;
        let mut stops = JoinSet::new();
        for (_, entry) in self.entries() {
            stops.spawn(async move { entry.stop().await });
        }
        stops.join_all().await;
        self.shared.is_stopped.send_replace(true);
    }

    /// Waits until [`stop`](Self::stop) has stopped all jobs.
    pub async fn wait_until_stopped(&self) {
        // Cannot fail: `self` owns the sender.
        let _ = self.shared.is_stopped.subscribe().wait_for(|is_stopped| *is_stopped).await;
    }

    /// Removes a job. Returns whether it still existed.
    async fn remove(&self, id: &str, entry: &Arc<JobEntry>) -> bool {
        {
            let mut table = self.table();
            // Another client may have closed the job meanwhile, and started one with the same id.
            match table.jobs.get(id) {
                Some(JobSlot::Known(known)) if Arc::ptr_eq(known, entry) => table.jobs.remove(id),
                _ => return false,
            };
        }
        let entry = entry.clone();
        // An error means that the runtime is shutting down; a recorded job then stays for the next server.
        let _ = tokio::task::spawn_blocking(move || entry.remove()).await;
        true
    }

    /// Returns a job. Blocks until a job that is being started has started.
    fn find_started(&self, id: &str) -> Result<Arc<JobEntry>, NoSuchJob> {
        let mut table = self.table();
        while let Some(JobSlot::Starting) = table.jobs.get(id) {
            let started = &self.shared.started;
            table = started.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
        drop(table);
        self.find(id)
    }

    fn find(&self, id: &str) -> Result<Arc<JobEntry>, NoSuchJob> {
        match self.table().jobs.get(id) {
            Some(JobSlot::Known(entry)) => Ok(entry.clone()),
            _ => Err(NoSuchJob { id: id.to_owned() }),
        }
    }

    fn entries(&self) -> Vec<(String, Arc<JobEntry>)> {
        let table = self.table();
        let known = table.jobs.iter().filter_map(|(id, slot)| match slot {
            JobSlot::Known(entry) => Some((id.clone(), entry.clone())),
            JobSlot::Starting => None,
        });
        known.collect()
    }

    fn table(&self) -> MutexGuard<'_, JobTable> {
        self.shared.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An id reserved for a job that is being started; released if the start fails.
struct Reservation<'a> {
    jobs: &'a JobRegistry,
    id: String,
}

impl Reservation<'_> {
    fn fill(self, entry: Arc<JobEntry>) {
        self.jobs.table().jobs.insert(self.id.clone(), JobSlot::Known(entry));
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut table = self.jobs.table();
        if let Some(JobSlot::Starting) = table.jobs.get(&self.id) {
            table.jobs.remove(&self.id);
        }
        self.jobs.shared.started.notify_all();
    }
}
