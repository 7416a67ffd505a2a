//! External provider of GARM whose runner instances are containers.
//!
//! GARM runs a program for each operation, with environment variables and, to create an instance, a document on
//! standard input: [`GarmCall`] reads both. [`plan`] combines the document, the extra specs of the pool and the
//! [`ProviderSettings`] of the host into an [`InstancePlan`], and rejects options that the settings do not permit. A
//! [`GarmProvider`] creates and removes instances, and [`ControllerInstances`] finds existing ones. Each instance has a
//! supervisor, a process that outlives the call: it [boots](boot) the runner and exits after the runner.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod access;
pub mod boot;
mod bootstrap;
mod call;
mod create;
mod error;
mod extra_specs;
mod found;
mod guest_root;
mod http;
mod instance;
pub mod logs;
mod object;
mod pause;
mod plan;
mod provider;
mod prune;
pub mod record;
mod remove;
mod rm;
pub mod runner;
pub mod schema;
mod settings;
mod supervisor;

pub use access::{EngineAccess, InstanceAccess, InstanceProcesses, RemovalOptions};
pub use bootstrap::{Bootstrap, BootstrapError, RunnerArchive};
pub use call::{
    COMMAND_VARIABLE, CallExit, GarmCall, GarmCommand, INTERFACE_VERSIONS, MAX_DOCUMENT_BYTES,
    ReadCallError,
};
pub use create::SWEEP_MARKER;
pub use error::ProviderError;
pub use extra_specs::{ExtraSpecs, ExtraSpecsError};
pub use found::{FoundInstance, InstanceFilter, controllers, find_all, rebuild_records};
pub use http::{HttpBody, HttpClient, HttpError, HttpOptions, HttpRetry, ProxyUrls};
pub use instance::{GarmInstance, InstanceStatus};
pub use object::JsonValueError;
pub use plan::{BootPlan, InstancePlan, PlanError, plan};
pub use provider::{ControllerInstances, GarmProvider, InstanceList, instance};
pub use prune::{PruneOptions, PruneReport, SweepResult, prune, prune_shared, sweep};
pub use rm::{InstanceSelection, RmOptions, RmReport, SelectedInstance, rm};
pub use settings::{
    BootSettings, CacheSettings, Cpus, CpusError, ExtraSpecLimits, Flavor, ImageNameError,
    ImageSettings, InstanceUserNamespace, LogSettings, MountSettings, NetworkSettings, PoolIds,
    ProviderSettings, ProxySettings, find_image,
};
pub use supervisor::{SupervisorError, SupervisorProgram, supervise};
