//! The functions `builtin://function/oci/build` and `builtin://function/oci/publish`.
//!
//! The first builds an image from files of a job, for several platforms, and writes it to an archive; the
//! second pushes such an archive to a registry and sets the tags of its version. Files are opened beneath
//! the job's directory. The layers have the format of GitLab's step runner.

mod build;
mod error;
mod files;
mod inputs;
mod publish;
mod run;

pub use error::FunctionError;
pub use run::{FunctionCall, FunctionLog, OciFunction};
