//! The jobs of a server: started once by id, followed, cancelled, closed.
//!
//! A job has a thread, and a directory below that of the server for its log, its file variables, and the
//! scratch files of the engine. The next server in that directory knows the job until it is closed or pruned. The
//! gRPC services are above this module.

mod descriptors;
mod entry;
mod event;
mod kept;
mod registry;
mod request;
mod results;
mod settings;
mod state;
mod variables;

pub(super) use entry::wait_for_either;
pub use entry::{StepFollower, mask_message};
pub use event::{JobEvent, JobSnapshot, NoSuchJob, RunError};
pub use kept::EarlierJobError;
pub use registry::JobRegistry;
pub use settings::{ClientTimeoutPolicy, LOG_LEVEL, ServerSettings, log_level};
pub use state::{StateDir, StateError};
pub use variables::{VariableError, VariableMode};
