//! `run_script_step`: a program in the job container. The container's own first process starts it,
//! where that takes steps; else the runtime does.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::backend::EngineBackend;
use super::lend::FileCommands;
use crate::bundle::{ExecOptions, checked_cwd};
use crate::container::{
    ContainerError, StepConnection, StepEnd, StepError, StepSignals, StepSocket, TakesSteps,
};
use crate::container_hook::denial::Denial;
use crate::container_hook::error::HookError;
use crate::container_hook::request::{Command as RequestCommand, Request, ScriptStep};
use crate::container_hook::script::{frame, words_of};
use crate::container_hook::state::JobState;
use crate::sys::error::chain;
use crate::sys::fs::PathError;
use crate::sys::init::frames::Step;

/// A step that the first process of its job container can start. Whoever may connect to that needs no
/// other rights, no settings, and nothing that is recorded of the job.
pub struct DirectStep {
    id: String,
    directory: PathBuf,
    step: Step,
    /// The files that its user may not write yet.
    lent: Option<FileCommands>,
    denial: Option<Denial>,
}

impl DirectStep {
    /// Returns the step that a request asks for; none if it asks for something else, or if the job container
    /// is not known to take steps from the runner with this [`owner`](super::super::Runner::owner), whose
    /// directory for temporary files is `temp`.
    ///
    /// # Errors
    ///
    /// Fails if the words or the working directory of the step are none.
    pub fn of(
        request: &Request,
        owner: impl FnOnce() -> Option<String>,
        temp: impl FnOnce() -> Option<PathBuf>,
    ) -> Result<Option<Self>, HookError> {
        let RequestCommand::RunScriptStep(step) = &request.command else { return Ok(None) };
        let state = JobState::read(request.state.as_ref());
        let access = state.and_then(|state| Some((state.container?, state.steps?)));
        let Some((id, access)) = access else { return Ok(None) };
        // What is wrong about it is found by who reads the record.
        if owner() != Some(access.owner) {
            return Ok(None);
        }
        let cwd = step.working_directory.as_deref().map(Path::new).map(checked_cwd);
        let cwd = cwd.transpose().map_err(ContainerError::from)?.unwrap_or_default();
        let lent = access.is_lent.then(temp).flatten();
        let lent = lent.map(|temp| FileCommands::of(&step.environment, &temp));
        let words = words_of(step)?;
        let denial = access.denied_by.map(|section| Denial { words, section });
        let step = frame(step, cwd)?;
        Ok(Some(DirectStep { id, directory: access.directory, step, lent, denial }))
    }

    /// Lets a step whose user is not the runner's write the files by which it sets variables and outputs.
    ///
    /// # Errors
    ///
    /// Fails if one of them cannot be opened, or its permissions not be changed.
    pub fn lend_files(&self) -> Result<(), PathError> {
        self.lent.as_ref().map_or(Ok(()), FileCommands::lend)
    }

    /// Returns what to look at if it fails: none if it may do what others are denied.
    pub fn denial(&self) -> Option<Denial> {
        self.denial.clone()
    }

    /// Has the step run to its end. Signals are passed on to it, and what it writes to the streams.
    ///
    /// # Errors
    ///
    /// Fails if it was not run to its end; the error says whether it can be run in another way.
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
    // The id comes back from the runner, through whose memory it went; it names a directory.
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
    // The container's first process did not take the step. If the container has not ended, the job has caused that,
    // and must not get a program with other rights into its container that way.
    let is_working = record.process.is_some_and(|process| process.is_working());
    if is_working && record.steps.is_some_and(TakesSteps::is_understood) {
        return Err(ContainerError::NoSteps { id }.into());
    }
    if backend.engine.privilege.lends_by_lists()
        && let Err(error) = FileCommands::of(&step.environment, &backend.context.runner.temp).lend()
    {
        backend.context.log.warning(&chain(&error));
    }
    let options = ExecOptions {
        args: words_of(step)?,
        env: step.environment.0.iter().map(|(name, value)| format!("{name}={value}")).collect(),
        prepend_path: step.prepend_path.clone(),
        cwd: step.working_directory.as_ref().map(PathBuf::from),
        ..ExecOptions::default()
    };
    Ok(backend.engine.exec(&record, &options)?)
}
