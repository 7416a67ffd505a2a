//! The jobs of a server: started once by id, followed, cancelled, closed.
//!
//! A job has a thread, and a directory below that of the server with its log, its file variables, and the
//! scratch files of the engine. The gRPC services are above this module.

mod either;
mod entry;
mod error;
mod event;
mod log_format;
mod log_level;
mod message;
mod registry;
mod request;
mod result_stream;
mod results;
mod state;
mod time_limit;
mod variables;
mod work_dir;

pub(super) use either::either;
pub use entry::Snapshot;
pub use error::{NoSuchJob, RunError};
pub use event::Event;
pub use log_level::log_level;
pub use message::masked_message;
pub use registry::Jobs;
pub use request::Settings;
pub use result_stream::Steps;
pub use state::{StateDir, StateError};
pub use time_limit::ClientTimeout;
pub use variables::{VariableError, Variables};
