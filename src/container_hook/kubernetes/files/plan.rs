//! Which files of a job go where, and when.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::error::{FilesError, Summary};
use super::get::get;
use super::host::{HostTree, Limits};
use super::put::{put, put_changes};
use super::record::Record;
use super::transfer::{Place, transfer};
use crate::container_hook::context::Log;
use crate::container_hook::kubernetes::agent::Session;
use crate::container_hook::kubernetes::settings::Back;
use crate::sys::fs::{PathError, make_private};
use crate::sys::init::frames::files::{Change, Scope};
use crate::sys::removal::remove_tree;

/// The work directory of the runner, in containers.
const WORK: &str = "/__w";
/// The runner's own directories, whose files are only good for the step that they were made for.
const COMMANDS: &str = "_temp/_runner_file_commands";
const HOME: &str = "_temp/_github_home";
const WORKFLOW: &str = "_temp/_github_workflow";
/// Too much to send, and found by nobody in a container: tools for this machine.
const TOOLS: &str = "_tool";
/// Where records are, beneath the work directory.
const RECORDS: &str = ".oci-hooks/records";
/// The record of the container of the job; a step's has its id.
const JOB: &str = "job";
/// What directories are made with.
const DIRECTORY: u32 = 0o755;

/// The files of a job, where containers get copies of them.
pub struct WorkFiles<'w> {
    work: HostTree,
    directory: &'w Path,
    /// The workspace beneath the work directory.
    workspace: Option<Vec<u8>>,
    back: Back,
    limits: Limits,
    log: &'w dyn Log,
}

impl<'w> WorkFiles<'w> {
    /// Returns the files beneath a work directory. A workspace elsewhere stays where it is.
    pub fn new(
        work: &'w Path,
        workspace: &Path,
        back: Back,
        limits: Limits,
        log: &'w dyn Log,
    ) -> Result<Self, FilesError> {
        let workspace = workspace.strip_prefix(work).ok().map(|path| path.as_os_str().as_bytes());
        let workspace = workspace.filter(|path| !path.is_empty()).map(<[u8]>::to_vec);
        Ok(WorkFiles { work: HostTree::open(work)?, directory: work, workspace, back, limits, log })
    }

    /// Fills the container of a new pod: with everything but the tools.
    pub async fn prepare(&self, session: &mut Session<'_>) -> Result<Summary, FilesError> {
        let record = self.record(JOB)?;
        record.forget()?;
        let summary = put(session, &self.work, WORK.as_ref(), &everything(), &record).await?;
        directories(session).await?;
        Ok(summary)
    }

    /// Sends what the runner has made for the next step.
    pub async fn before_step(&self, session: &mut Session<'_>) -> Result<Summary, FilesError> {
        let scope = Scope { include: paths(&["_temp", "_actions"]), ..Scope::default() };
        put(session, &self.work, WORK.as_ref(), &scope, &self.record(JOB)?).await
    }

    /// Takes what a step has left for the runner, however it ended. The home directory stays where the next
    /// step finds it: the runner reads nothing there, and caches can be large.
    pub async fn after_step(&self, session: &mut Session<'_>) -> Result<(), FilesError> {
        self.take_commands(session, JOB).await?;
        self.take_changes(session, self.workspace.clone().into_iter().collect(), JOB).await
    }

    /// Takes the file commands of a step, without which it has not said what it wanted to: nothing is
    /// tolerated. The runner follows what it finds there, so there are no links.
    async fn take_commands(
        &self,
        session: &mut Session<'_>,
        record: &str,
    ) -> Result<(), FilesError> {
        let include = paths(&[COMMANDS, WORKFLOW]);
        let scope = Scope { without_links: include.clone(), include, exclude: Vec::new() };
        let summary = self.take(session, &scope, record).await?;
        if !summary.unread.is_empty() {
            return Err(FilesError::Failed(summary.unread));
        }
        if summary.skipped > 0 {
            let skipped = summary.skipped;
            self.log.warning(&format!(
                "{skipped} links, sockets, pipes or devices in {WORK}/{COMMANDS} or {WORK}/{WORKFLOW} \
                 are not for the runner"
            ));
        }
        Ok(())
    }

    /// Takes what a step has changed in some directories, unless nothing is to come back. What cannot be
    /// read there, for the user of the container, is told: it may not be meant for anybody else.
    async fn take_changes(
        &self,
        session: &mut Session<'_>,
        include: Vec<Vec<u8>>,
        record: &str,
    ) -> Result<(), FilesError> {
        if self.back == Back::Nothing || include.is_empty() {
            return Ok(());
        }
        let scope = Scope { include, ..Scope::default() };
        let summary = self.take(session, &scope, record).await?;
        if !summary.unread.is_empty() {
            let unread = &summary.unread;
            self.log.warning(&format!("the runner does not get all files of the job: {unread}"));
        }
        Ok(())
    }

    async fn take(
        &self,
        session: &mut Session<'_>,
        scope: &Scope,
        record: &str,
    ) -> Result<Summary, FilesError> {
        let record = self.record(record)?;
        get(session, WORK.as_ref(), &self.work, scope, &record, self.limits).await
    }

    /// Fills the pod of a container step from the container of the job, which has what steps before it
    /// have left; `id` is the step's. Call [`Self::before_step`] for that of the job first.
    pub async fn to_step_pod(
        &self,
        job: &mut Session<'_>,
        step: &mut Session<'_>,
        id: &str,
    ) -> Result<Summary, FilesError> {
        let record = self.record(id)?;
        record.forget()?;
        let (from, to) = (place(job), place(step));
        let summary = transfer(from, to, &everything(), &record, self.limits).await?;
        self.tell_unread(&summary);
        directories(step).await?;
        Ok(summary)
    }

    /// Fills the pod of a container step from the runner, for a job without a container of its own.
    pub async fn to_lone_step_pod(
        &self,
        step: &mut Session<'_>,
        id: &str,
    ) -> Result<Summary, FilesError> {
        let record = self.record(id)?;
        record.forget()?;
        let summary = put(step, &self.work, WORK.as_ref(), &everything(), &record).await?;
        directories(step).await?;
        Ok(summary)
    }

    /// Brings what a container step has changed back to the container of the job. Call
    /// [`Self::after_step`] for that of the job then.
    pub async fn take_from_step_pod(
        &self,
        step: &mut Session<'_>,
        job: &mut Session<'_>,
        id: &str,
    ) -> Result<Summary, FilesError> {
        let record = self.record(id)?;
        let (from, to) = (place(step), place(job));
        let summary = transfer(from, to, &everything(), &record, self.limits).await?;
        self.tell_unread(&summary);
        record.forget()?;
        Ok(summary)
    }

    /// Takes what a container step has left for the runner, in a job without a container of its own: also
    /// its home directory, which is nowhere else for the next one.
    pub async fn take_from_lone_step_pod(
        &self,
        step: &mut Session<'_>,
        id: &str,
    ) -> Result<(), FilesError> {
        self.take_commands(step, id).await?;
        let mut include = paths(&[HOME]);
        include.extend(self.workspace.clone());
        self.take_changes(step, include, id).await?;
        Ok(self.record(id)?.forget()?)
    }

    fn tell_unread(&self, summary: &Summary) {
        if !summary.unread.is_empty() {
            let unread = &summary.unread;
            self.log
                .warning(&format!("not all files get from one container to the other: {unread}"));
        }
    }

    fn record(&self, name: &str) -> Result<Record, PathError> {
        let directory = self.directory.join(RECORDS);
        make_private(&directory)?;
        Ok(Record::new(directory.join(name)))
    }

    /// Removes what was kept of a job.
    pub fn forget(&self) -> Result<(), PathError> {
        let directory = self.directory.join(RECORDS);
        match remove_tree(&directory) {
            Err(error) if error.source.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Makes the directories that programs expect: what the pod mounts of them elsewhere is there already.
async fn directories(session: &mut Session<'_>) -> Result<(), FilesError> {
    let directory = |path: &str| Change::Directory { path: path.into(), mode: DIRECTORY };
    let made = [COMMANDS, HOME, WORKFLOW].map(directory);
    put_changes(session, WORK.as_ref(), &made).await?;
    Ok(())
}

fn place<'p, 's>(session: &'p mut Session<'s>) -> Place<'p, 's> {
    Place { session, root: WORK.as_ref() }
}

fn everything() -> Scope {
    Scope { exclude: paths(&[TOOLS, RECORDS]), ..Scope::all() }
}

fn paths(paths: &[&str]) -> Vec<Vec<u8>> {
    paths.iter().map(|path| path.as_bytes().to_vec()).collect()
}
