//! Functions of this program that steps refer to as `builtin://NAME`.
//!
//! `script_legacy` runs the script of an ordinary job; `concrete` runs the whole job. Both do what those of
//! GitLab Runner do, which sends them. They know the engine only as a [`Host`], which runs their commands
//! and writes the log.

mod concrete;
mod error;
mod function;
mod gitlab_env;
mod host;
mod script;

pub use error::{BuiltinError, CommandError, Failure};
pub use function::run;
pub use host::{Cancellation, Command, Host, Inputs, JobState, Limits};
pub use script::{ScriptFile, find_program};
