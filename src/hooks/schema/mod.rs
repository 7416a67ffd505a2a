//! The content of hook files: schemas 1.0.0 and 0.1.0, the older one converted on load.

mod decode;
mod definition;
mod parse;
mod usual;

pub use definition::{
    DraftConditions, HookDefinition, HookDraft, ParseOptions, PathCheck, SchemaVersion,
};
pub use definition::{FoundPrograms, MASK_PROGRAM};
pub use parse::KEYS_0_1_0;
