//! Selects the files to exchange before and after each step.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use container_hook_job::HookLog;
use container_hook_job::kubernetes::DownloadScope;
use oci_hooks_files::fs::{PathError, make_private};
use oci_hooks_host::removal::remove_tree;
use oci_hooks_init::frames::files::FileScope;

use super::error::{ExchangeSummary, FilesError};
use super::get::get;
use super::host::{ExchangeLimits, HostTree};
use super::put::upload_tree;
use super::record::ExchangeRecord;
use super::transfer::{ContainerDir, transfer};
use crate::agent::AgentSession;
use crate::backend::JOB;

/// Work directory of the runner, in containers.
const WORK: &str = "/__w";
/// Directory of file commands such as `GITHUB_OUTPUT`, below the work directory.
const COMMANDS: &str = "_temp/_runner_file_commands";
/// Home directory of steps, below the work directory.
const HOME: &str = "_temp/_github_home";
/// Directory of the event payload, below the work directory.
const WORKFLOW: &str = "_temp/_github_workflow";
/// Directory of tools for the runner's machine. They are not exchanged: they are too large, and
/// containers do not look for tools there.
const TOOLS: &str = "_tool";
/// Directory of the exchange records, below the work directory.
const RECORDS: &str = ".oci-hooks/records";

/// Files of a job whose containers get copies.
pub struct WorkFiles<'w> {
    work: HostTree,
    directory: &'w Path,
    /// Path of the workspace below the work directory; `None` if it is not below it.
    workspace: Option<Vec<u8>>,
    back: DownloadScope,
    limits: ExchangeLimits,
    log: &'w dyn HookLog,
}

impl<'w> WorkFiles<'w> {
    /// Returns the files of a work directory. A workspace outside of it is not exchanged.
    pub fn new(
        work: &'w Path,
        workspace: &Path,
        back: DownloadScope,
        limits: ExchangeLimits,
        log: &'w dyn HookLog,
    ) -> Result<Self, FilesError> {
        let workspace = workspace.strip_prefix(work).ok().map(|path| path.as_os_str().as_bytes());
        let workspace = workspace.filter(|path| !path.is_empty()).map(<[u8]>::to_vec);
        Ok(WorkFiles { work: HostTree::open(work)?, directory: work, workspace, back, limits, log })
    }

    /// Uploads all files except tools and exchange records to the container of a new pod. `id` is
    /// [`JOB`] for the job's container, otherwise the id of the container step.
    pub async fn upload_all(
        &self,
        session: &mut AgentSession<'_>,
        id: &str,
    ) -> Result<(), FilesError> {
        let record = self.record(id)?;
        record.forget()?;
        upload_tree(session, &self.work, WORK.as_ref(), &full_scope(), &record).await?;
        Ok(())
    }

    /// Uploads the files that the runner has made for the next step.
    pub async fn upload_for_step(&self, session: &mut AgentSession<'_>) -> Result<(), FilesError> {
        let scope = FileScope { include: paths(&["_temp", "_actions"]), ..FileScope::default() };
        upload_tree(session, &self.work, WORK.as_ref(), &scope, &self.record(JOB)?).await?;
        Ok(())
    }

    /// Downloads the changes of a step, however it ended. The home directory stays in the container for the
    /// next step: the runner does not read it, and caches can be large.
    pub async fn download_after_step(
        &self,
        session: &mut AgentSession<'_>,
    ) -> Result<(), FilesError> {
        self.take_commands(session, JOB).await?;
        self.take_changes(session, self.workspace.clone().into_iter().collect(), JOB).await
    }

    /// Downloads the file commands of a step. An unreadable file is an error, since the step's outputs would
    /// be lost. Links are skipped: the runner would follow them.
    async fn take_commands(
        &self,
        session: &mut AgentSession<'_>,
        record: &str,
    ) -> Result<(), FilesError> {
        let include = paths(&[COMMANDS, WORKFLOW]);
        let scope = FileScope { without_links: include.clone(), include, exclude: Vec::new() };
        let summary = self.take(session, &scope, record).await?;
        summary.unread.check()?;
        if summary.skipped > 0 {
            let skipped = summary.skipped;
            self.log.warning(&format!(
                "{WORK}/{COMMANDS} and {WORK}/{WORKFLOW}: links, sockets, pipes and devices are not downloaded \
                 ({skipped} found)"
            ));
        }
        Ok(())
    }

    /// Downloads the changes of a step to the paths in `include`, unless the settings exclude them.
    /// Unreadable files are reported as a warning: the container's user may keep them private on
    /// purpose.
    async fn take_changes(
        &self,
        session: &mut AgentSession<'_>,
        include: Vec<Vec<u8>>,
        record: &str,
    ) -> Result<(), FilesError> {
        if self.back == DownloadScope::Nothing || include.is_empty() {
            return Ok(());
        }
        let scope = FileScope { include, ..FileScope::default() };
        let unread = self.take(session, &scope, record).await?.unread;
        if !unread.is_empty() {
            self.log.warning(&format!("some files of the job were not downloaded: {unread}"));
        }
        Ok(())
    }

    async fn take(
        &self,
        session: &mut AgentSession<'_>,
        scope: &FileScope,
        record: &str,
    ) -> Result<ExchangeSummary, FilesError> {
        let record = self.record(record)?;
        get(session, WORK.as_ref(), &self.work, scope, &record, self.limits).await
    }

    /// Copies the files of the job's container, as earlier steps left them, to the pod of a container step
    /// with this `id`. Call [`Self::upload_for_step`] for the job's container first.
    pub async fn to_step_pod(
        &self,
        job: &mut AgentSession<'_>,
        step: &mut AgentSession<'_>,
        id: &str,
    ) -> Result<(), FilesError> {
        self.record(id)?.forget()?;
        self.copy(job, step, id).await
    }

    /// Copies the changes of a container step to the job's container. Call [`Self::download_after_step`] for the job's
    /// container afterwards.
    pub async fn take_from_step_pod(
        &self,
        step: &mut AgentSession<'_>,
        job: &mut AgentSession<'_>,
        id: &str,
    ) -> Result<(), FilesError> {
        self.copy(step, job, id).await?;
        Ok(self.record(id)?.forget()?)
    }

    async fn copy(
        &self,
        from: &mut AgentSession<'_>,
        to: &mut AgentSession<'_>,
        id: &str,
    ) -> Result<(), FilesError> {
        let from = ContainerDir { session: from, root: WORK.as_ref() };
        let to = ContainerDir { session: to, root: WORK.as_ref() };
        let summary = transfer(from, to, &full_scope(), &self.record(id)?, self.limits).await?;
        let unread = summary.unread;
        if !unread.is_empty() {
            self.log
                .warning(&format!("some files were not copied between the containers: {unread}"));
        }
        Ok(())
    }

    /// Downloads the changes of a container step in a job without a container, including the home directory,
    /// which no container keeps for the next step.
    pub async fn take_from_lone_step_pod(
        &self,
        step: &mut AgentSession<'_>,
        id: &str,
    ) -> Result<(), FilesError> {
        self.take_commands(step, id).await?;
        let mut include = paths(&[HOME]);
        include.extend(self.workspace.clone());
        self.take_changes(step, include, id).await?;
        Ok(self.record(id)?.forget()?)
    }

    fn record(&self, name: &str) -> Result<ExchangeRecord, PathError> {
        let directory = self.directory.join(RECORDS);
        make_private(&directory)?;
        Ok(ExchangeRecord::new(directory.join(name)))
    }

    /// Removes the records of a job.
    pub fn forget(&self) -> Result<(), PathError> {
        let directory = self.directory.join(RECORDS);
        match remove_tree(&directory) {
            Err(error) if error.source.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

fn full_scope() -> FileScope {
    FileScope { exclude: paths(&[TOOLS, RECORDS]), ..FileScope::all() }
}

fn paths(paths: &[&str]) -> Vec<Vec<u8>> {
    paths.iter().map(|path| path.as_bytes().to_vec()).collect()
}
