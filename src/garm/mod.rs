//! GARM's external provider: runner instances that are containers.
//!
//! GARM calls a program for each operation, with variables and, to create, a document on standard
//! input: [`Call`] reads both. [`plan`] makes of the document, the extra specs of the pool and the
//! [`Settings`] of the host what an instance is made of, and refuses what the admin does not allow.
//! A [`Provider`] makes and removes instances, and a [`Lookup`] finds those there are. Each has a supervisor, a process that outlives
//! the call: it [boots](boot) the runner and stays until that ends.

pub mod boot;
mod bootstrap;
mod call;
mod create;
mod error;
mod extra_specs;
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
mod site;
mod supervisor;

pub use bootstrap::{Bootstrap, BootstrapError, Tool};
pub use call::{
    COMMAND_VARIABLE, Call, CallError, Command, Exit, INTERFACE_VERSIONS, MAX_DOCUMENT_BYTES,
};
pub use error::ProviderError;
pub use extra_specs::{ExtraSpecs, ExtraSpecsError};
pub use http::{Body, Http, HttpError, HttpOptions, Proxy, Retry};
pub use instance::{Instance, Status};
pub use object::KindError;
pub use plan::{BootPlan, Bound, Plan, PlanError, plan};
pub use provider::{Listed, Lookup, Provider, instance};
pub use prune::{PruneOptions, Pruned, Swept, prune, prune_shared, sweep};
pub use rm::{RmOptions, RmReport, Selected, Selection, rm};
pub use settings::{
    Boot, Cache, Cpus, CpusError, Flavor, ImageSettings, Limits, Log, MountSettings,
    NetworkSettings, Pools, ProxySettings, Settings, Users,
};
pub use site::{Here, Removal, Site, Sites};
pub use supervisor::{SupervisorError, SupervisorProgram, supervise};
