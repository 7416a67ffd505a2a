//! The functions that build and publish functions, as steps.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::time::Duration;

use super::super::Value;
use super::super::function_oci::{Call, Function, FunctionError};
use super::super::log::{Output, Stream};
use super::super::resolve::Interrupt;
use super::command::Processes;
use super::error::StepError;
use super::phase::PhaseError;
use super::run::Runner;
use super::scope::Scope;

/// How long a function may take where the job has no limit.
const LIMIT: Duration = Duration::from_secs(24 * 3600);

impl Runner<'_> {
    /// Runs a function on a thread of its own: a registry may be silent for long. Returns its outputs.
    pub(super) fn function_oci(
        &mut self,
        function: Function,
        scope: &Scope,
    ) -> Result<BTreeMap<String, Value>, StepError> {
        let failed = |error| StepError::FunctionOci(Box::new(error));
        let inputs = scope.context.inputs.iter();
        let call = Call {
            function,
            inputs: inputs.map(|(name, input)| (name.clone(), input.value.clone())).collect(),
            work_dir: self.job.work_dir.clone(),
            vars: self.job.vars.clone(),
            env: scope.context.env.clone(),
            remote: self.resolver.shared_remote(),
        };
        match self.processes.function(call, self.output) {
            Ok(result) => result.map_err(failed),
            Err(PhaseError::Start(error)) => Err(failed(FunctionError::Start(error))),
            Err(PhaseError::Interrupted | PhaseError::TooLong(_)) => {
                Err(failed(FunctionError::Cancelled))
            }
        }
    }
}

impl Processes<'_> {
    /// Runs a function, and forwards what it writes to its log like the output of a command.
    fn function(
        &mut self,
        call: Call,
        output: &mut dyn Output,
    ) -> Result<Result<BTreeMap<String, Value>, FunctionError>, PhaseError> {
        let log = [self.log_of_function(Stream::Out)?, self.log_of_function(Stream::Err)?];
        let work = move |interrupt: &Interrupt| {
            let write = |stream: Stream, line: &str| {
                let [out, err] = &log;
                let mut file: &File = if stream == Stream::Out { out } else { err };
                // Nobody reads it if the job is over.
                let _ = file.write_all(format!("{line}\n").as_bytes());
            };
            call.run(interrupt, &write)
        };
        let result = self.beside(LIMIT, output, work);
        self.hear_function(output);
        result
    }
}
