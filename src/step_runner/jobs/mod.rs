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
mod settings;
mod state;
mod variables;
mod work_dir;

pub(super) use either::either;
pub use error::{NoSuchJob, RunError};
pub use event::{Event, Snapshot};
pub use log_level::log_level;
pub use message::masked_message;
pub use registry::Jobs;
pub use result_stream::Steps;
pub use settings::{ClientTimeout, Settings};
pub use state::{StateDir, StateError};
pub use variables::{VariableError, Variables};
