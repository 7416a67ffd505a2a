//! hooks.d: load hook files, match them against a container, inject what matches.

mod config;
pub mod consumer;
mod error;
mod hook;
pub mod json;
mod load;
#[cfg(feature = "monitor")]
pub mod monitor;
pub mod pattern;
mod schema;
mod select;
mod set;
mod stage;
mod target;
mod when;

pub use config::{Config, ConfigError, InjectOptions};
pub use consumer::Consumer;
pub use error::{Fault, HookError, MatchError, PatternPlace, Problem};
pub use hook::Hook;
pub use load::{Entry, EntryState, LoadOptions, Loaded, load};
#[cfg(feature = "monitor")]
pub use monitor::Monitor;
pub use pattern::{Pattern, PatternError};
pub use schema::{Definition, PathCheck, SchemaOptions, Version};
pub use select::{Injection, Selection};
pub use set::{HookFile, HookSet, Verdict};
pub use stage::{OciStage, Stage};
pub use target::{Command, Target};
pub use when::{AnnotationPattern, Combine, EmptyArgs, Outcome, Reason, When};
