//! Expressions in `${{ }}`.

mod context;

pub use context::{Context, Expanded, Status, StepState};
