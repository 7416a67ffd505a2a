//! All jobs of a server, by id.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::task::JoinSet;

use super::super::log::Follower;
use super::super::wire::proto::RunRequest;
use super::entry::{Entry, Snapshot};
use super::error::{MAX_ID_BYTES, NoSuchJob, RunError};
use super::event::{Event, Watcher};
use super::request::{Settings, prepare};
use super::result_stream::Steps;
use super::state::State;
use super::variables::Variables;

/// How often it is looked for jobs to forget, at most and at least.
const LOOKS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(60));

/// The jobs of a server. Clones are the same jobs.
#[derive(Clone, Debug)]
pub struct Jobs {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    settings: Settings,
    state: State,
    table: Mutex<Table>,
    /// Told when a job that was being started is, or is not.
    started: Condvar,
    watcher: Watcher,
}

#[derive(Debug, Default)]
struct Table {
    jobs: BTreeMap<String, Slot>,
    is_shutting_down: bool,
}

#[derive(Debug)]
enum Slot {
    /// Somebody is starting the job.
    Starting,
    Known(Arc<Entry>),
}

impl Jobs {
    /// Returns no jobs yet. The watcher is called with what happens to them.
    pub fn new(
        settings: Settings,
        state: State,
        watcher: impl Fn(&Event<'_>) + Send + Sync + 'static,
    ) -> Self {
        let shared = Shared {
            settings,
            state,
            table: Mutex::default(),
            started: Condvar::default(),
            watcher: Watcher(Arc::new(watcher)),
        };
        Jobs { shared: Arc::new(shared) }
    }

    /// Starts a job, unless there is one of that id. It blocks until the job has been started.
    pub fn run(&self, request: RunRequest, variables: Variables) -> Result<(), RunError> {
        let Some(place) = self.reserve(&request.id)? else { return Ok(()) };
        let id = request.id.clone();
        let started = self.start(request, variables);
        let event = match &started {
            Ok(_) => Event::Started { id: &id },
            Err(error) => Event::Refused { id: &id, error },
        };
        self.shared.watcher.tell(&event);
        place.fill(started?);
        Ok(())
    }

    fn start(&self, request: RunRequest, variables: Variables) -> Result<Arc<Entry>, RunError> {
        let Shared { settings, state, watcher, .. } = &*self.shared;
        let (entry, work) = prepare(settings, state, request, variables, watcher)?;
        let worker = entry.clone();
        let thread = thread::Builder::new().name("job".to_owned());
        thread.spawn(move || worker.work(work)).map_err(RunError::Start)?;
        Ok(entry)
    }

    /// Reserves an id; returns nothing if there is a job of that id.
    fn reserve(&self, id: &str) -> Result<Option<Reservation<'_>>, RunError> {
        if id.is_empty() || id.len() > MAX_ID_BYTES {
            return Err(RunError::Id);
        }
        let mut table = self.table();
        loop {
            match table.jobs.get(id) {
                Some(Slot::Known(_)) => return Ok(None),
                Some(Slot::Starting) => {
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
        table.jobs.insert(id.to_owned(), Slot::Starting);
        Ok(Some(Reservation { jobs: self, id: id.to_owned() }))
    }

    /// Returns the state of a job.
    pub fn status(&self, id: &str) -> Result<Snapshot, NoSuchJob> {
        self.find(id).map(|entry| entry.snapshot())
    }

    /// Returns the state of all jobs, in the order of their ids.
    pub fn all(&self) -> Vec<Snapshot> {
        self.entries().into_iter().map(|(_, entry)| entry.snapshot()).collect()
    }

    /// Reads the log of a job from an offset on.
    pub fn follow_log(&self, id: &str, offset: u64) -> Result<Follower, NoSuchJob> {
        Ok(self.find(id)?.follow(offset))
    }

    /// Reads the results of a job's steps, without the first few.
    pub fn follow_steps(&self, id: &str, skip: usize) -> Result<Steps, NoSuchJob> {
        Ok(Steps::new(self.find(id)?, skip))
    }

    /// Stops a job if it runs, and forgets it. That there is none is as well.
    ///
    /// A job that does not end although it was killed is forgotten all the same, and its files are
    /// removed when it ends.
    pub async fn close(&self, id: &str) {
        let Ok(entry) = self.find(id) else { return };
        entry.stop().await;
        if self.forget(id, &entry).await {
            self.shared.watcher.tell(&Event::Closed { id });
        }
    }

    /// Forgets jobs that ended long ago, and goes on doing so.
    pub async fn prune(&self) {
        let stale_after = self.shared.settings.stale_after;
        loop {
            for (id, entry) in self.entries() {
                let is_stale = entry.ended().is_some_and(|ended| ended.elapsed() >= stale_after);
                if is_stale && self.forget(&id, &entry).await {
                    self.shared.watcher.tell(&Event::Pruned { id: &id });
                }
            }
            tokio::time::sleep((stale_after / 4).clamp(LOOKS.0, LOOKS.1)).await;
        }
    }

    /// Takes no more jobs, and waits for those there are.
    pub async fn drain(&self, timeout: Duration) {
        self.table().is_shutting_down = true;
        let deadline = tokio::time::Instant::now() + timeout;
        for (_, entry) in self.entries() {
            let _ = tokio::time::timeout_at(deadline, entry.finished()).await;
        }
    }

    /// Takes no more jobs, and stops those there are.
    pub async fn stop(&self) {
        self.table().is_shutting_down = true;
        let mut stops = JoinSet::new();
        for (_, entry) in self.entries() {
            stops.spawn(async move { entry.stop().await });
        }
        stops.join_all().await;
    }

    /// Forgets a job; tells if it was known still.
    async fn forget(&self, id: &str, entry: &Arc<Entry>) -> bool {
        {
            let mut table = self.table();
            // Somebody may have closed it meanwhile, and started another one.
            match table.jobs.get(id) {
                Some(Slot::Known(known)) if Arc::ptr_eq(known, entry) => table.jobs.remove(id),
                _ => return false,
            };
        }
        let entry = entry.clone();
        // It fails if the runtime ends, and then all files are removed.
        let _ = tokio::task::spawn_blocking(move || entry.forget()).await;
        true
    }

    fn find(&self, id: &str) -> Result<Arc<Entry>, NoSuchJob> {
        match self.table().jobs.get(id) {
            Some(Slot::Known(entry)) => Ok(entry.clone()),
            _ => Err(NoSuchJob { id: id.to_owned() }),
        }
    }

    fn entries(&self) -> Vec<(String, Arc<Entry>)> {
        let table = self.table();
        let known = table.jobs.iter().filter_map(|(id, slot)| match slot {
            Slot::Known(entry) => Some((id.clone(), entry.clone())),
            Slot::Starting => None,
        });
        known.collect()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.shared.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An id that is kept for a job that is being started; free again if that fails.
struct Reservation<'a> {
    jobs: &'a Jobs,
    id: String,
}

impl Reservation<'_> {
    fn fill(self, entry: Arc<Entry>) {
        self.jobs.table().jobs.insert(self.id.clone(), Slot::Known(entry));
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut table = self.jobs.table();
        if let Some(Slot::Starting) = table.jobs.get(&self.id) {
            table.jobs.remove(&self.id);
        }
        self.jobs.shared.started.notify_all();
    }
}
