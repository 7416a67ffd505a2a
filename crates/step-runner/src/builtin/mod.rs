//! Functions of this program that steps refer to as `builtin://NAME`.
//!
//! `script_legacy` runs the script of a job without steps; `concrete` runs a whole job. Both behave
//! like the functions of GitLab's step-runner with these names, which GitLab Runner calls. They
//! access the engine only through a [`BuiltinHost`], which runs their commands and writes the log.

mod concrete;
mod error;
mod function;
mod gitlab_env;
mod host;
mod script;

pub use error::{BuiltinError, CommandError, CommandFailure};
pub use function::run;
pub use host::{BuiltinHost, CancelEffect, CommandLimits, FunctionInputs, JobState, StepCommand};
pub use script::{ScriptCommand, program_candidates};
