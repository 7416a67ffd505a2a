//! `run_script_step`: runs a program in the job container. The init process of the container starts it, if it
//! takes steps; else the runtime does.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use container_hook_job::HookError;
use container_hook_job::JobState;
use container_hook_job::NestingDenial;
use container_hook_job::request::{HookCommand as RequestCommand, HookRequest, ScriptStep};
use container_hook_job::script::{frame, step_words};
use oci_hooks_engine::bundle::{ExecOptions, checked_cwd};
use oci_hooks_engine::container::{
    ContainerError, StepConnection, StepEnd, StepError, StepSignals, StepSocket, StepSupport,
};
use oci_hooks_files::error::chain;
use oci_hooks_files::fs::PathError;
use oci_hooks_init::frames::ContainerStep;

use super::backend::EngineBackend;
use super::share::FileCommands;

/// A step that the init process of its job container can start. A caller that may connect to the init process
/// needs no other permissions, no settings, and no job record.
pub struct DirectStep {
    id: String,
    directory: PathBuf,
    step: ContainerStep,
    /// File commands that the container's user cannot write yet.
    file_commands: Option<FileCommands>,
    denial: Option<NestingDenial>,
}

impl DirectStep {
    /// Returns the step of a request; none if it is another request, or if the job container is not known to
    /// take steps from the runner with this [`owner`](container_hook_job::runner::CallingRunner::owner). `temp` is the
    /// runner's directory for temporary files.
    ///
    /// # Errors
    ///
    /// Fails if the arguments or the working directory of the step are invalid.
    pub fn of(
        request: &HookRequest,
        owner: impl FnOnce() -> Option<String>,
        temp: impl FnOnce() -> Option<PathBuf>,
    ) -> Result<Option<Self>, HookError> {
        let RequestCommand::RunScriptStep(step) = &request.command else { return Ok(None) };
        let state = JobState::read(request.state.as_ref());
        let access = state.and_then(|state| Some((state.container?, state.steps?)));
        let Some((id, access)) = access else { return Ok(None) };
        // The caller then reads the record of the container, and reports the error.
        if owner() != Some(access.owner) {
            return Ok(None);
        }
        let cwd = step.working_directory.as_deref().map(Path::new).map(checked_cwd);
        let cwd = cwd.transpose().map_err(ContainerError::from)?.unwrap_or_default();
        let temp = access.shares_directories.then(temp).flatten();
        let file_commands = temp.map(|temp| FileCommands::of(&step.environment, &temp));
        let words = step_words(step)?;
        let denial = access.denied_by.map(|section| NestingDenial { words, section });
        let step = frame(step, cwd)?;
        Ok(Some(DirectStep { id, directory: access.directory, step, file_commands, denial }))
    }

    /// Makes the files by which a step sets variables and outputs writable for the container's user, if it is
    /// not the runner's user.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be opened, or its permissions cannot be changed.
    pub fn share_files(&self) -> Result<(), PathError> {
        self.file_commands.as_ref().map_or(Ok(()), FileCommands::share_files)
    }

    /// Returns the denial that may explain a failure of the step; none if user namespaces are allowed.
    pub fn denial(&self) -> Option<NestingDenial> {
        self.denial.clone()
    }

    /// Runs the step to its end. Forwards signals to the step, and its output to the streams.
    ///
    /// # Errors
    ///
    /// Fails if the step did not run to its end; the error says whether the runtime can run it instead.
    pub fn run(
        self,
        signals: &mut dyn StepSignals,
        streams: [BorrowedFd<'_>; 2],
    ) -> Result<StepEnd, StepError> {
        let socket = StepSocket { directory: &self.directory, id: &self.id };
        StepConnection::open(socket)?.run(self.step, signals, streams)
    }
}

pub(super) fn run(
    backend: &EngineBackend<'_>,
    step: &ScriptStep,
    state: Option<&JobState>,
) -> Result<Command, HookError> {
    let id = state.and_then(|state| state.container.clone()).ok_or(HookError::NoState)?;
    // The id comes from the runner and names a directory, so it is checked.
    if !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(HookError::NoState);
    }
    let record = match backend.engine.directory(&id).read() {
        Err(_) => return Err(ContainerError::Unknown { id }.into()),
        Ok(record) if record.owner != backend.context.runner.owner() => {
            return Err(HookError::Foreign { id });
        }
        Ok(record) => record,
    };
    // The init process did not take the step. If the container still runs, the job caused that, and running
    // the step with the runtime would give the job a program with other permissions.
    if record.steps.is_some_and(StepSupport::is_understood) {
        return Err(backend.engine.no_steps(&record).into());
    }
    if backend.engine.privilege.uses_acls()
        && let Err(error) =
            FileCommands::of(&step.environment, &backend.context.runner.temp).share_files()
    {
        backend.context.log.warning(&chain(&error));
    }
    let options = ExecOptions {
        args: step_words(step)?,
        env: step.environment.0.iter().map(|(name, value)| format!("{name}={value}")).collect(),
        prepend_path: step.prepend_path.clone(),
        cwd: step.working_directory.as_ref().map(PathBuf::from),
        ..ExecOptions::default()
    };
    Ok(backend.engine.exec(&record, &options)?)
}
