//! The jobs of a server: started once by id, followed, stopped, forgotten.
//!
//! A job has a thread, which runs it, and a directory beneath that of the server, which has its
//! log, its variables that are files, and what the engine needs. Who asks, and how, is not known
//! here.

mod either;
mod entry;
mod error;
mod event;
mod log_level;
mod message;
mod registry;
mod request;
mod result_stream;
mod results;
mod state;
mod variables;
mod work_dir;

pub(super) use either::either;
pub use entry::Snapshot;
pub use error::{NoSuchJob, RunError};
pub use event::Event;
pub use log_level::log_level;
pub use registry::Jobs;
pub use request::Settings;
pub use result_stream::Steps;
pub use state::{State, StateError};
pub use variables::{VariableError, Variables};
