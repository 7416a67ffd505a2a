//! What a step is: the two YAML documents of a step file, and references to step files.

mod types;

pub use types::{
    Action, Definition, Exec, Input, Output, Outputs, Reference, Run, Spec, Step, StepFile,
};
