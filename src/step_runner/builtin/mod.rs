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
mod program;
mod quote;
mod script_file;
mod script_legacy;
mod shell;
mod shell_script;

pub use error::{BuiltinError, CommandError, Failure};
pub use function::{Inputs, run};
pub use host::{Cancellation, Command, Host, JobState, Limits};
pub use program::find_program;
pub use script_file::ScriptFile;
