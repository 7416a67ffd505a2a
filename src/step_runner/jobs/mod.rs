//! The jobs of a server: started once by id, followed, cancelled, closed.
//!
//! A job has a thread, and a directory below that of the server with its log, its file variables, and the
//! scratch files of the engine. The gRPC services are above this module.

mod entry;
mod event;
mod registry;
mod request;
mod settings;
mod state;
mod variables;

pub(super) use entry::either;
pub use entry::{Steps, masked_message};
pub use event::{Event, NoSuchJob, RunError, Snapshot};
pub use registry::Jobs;
pub use settings::{ClientTimeout, Settings, log_level};
pub use state::{StateDir, StateError};
pub use variables::{VariableError, Variables};
