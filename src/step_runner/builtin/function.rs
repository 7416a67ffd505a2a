//! The table of functions.

use std::collections::BTreeMap;

use super::super::Value;
use super::super::document::Builtin;
use super::error::BuiltinError;
use super::host::Host;
use super::{concrete, script_legacy};

/// The inputs of a function by name, with defaults.
pub type Inputs = BTreeMap<String, Value>;

/// Runs a function. Returns its outputs by name.
///
/// # Errors
///
/// Fails if an input is invalid, or with the command that failed.
pub fn run(
    function: Builtin,
    inputs: &Inputs,
    host: &mut dyn Host,
) -> Result<BTreeMap<String, Value>, BuiltinError> {
    match function {
        // The engine runs it as a command: it records what it executed.
        Builtin::Script { .. } => {}
        // The engine runs them on threads of their own: they wait for registries, not for commands.
        Builtin::FunctionOciBuild | Builtin::FunctionOciPublish => {}
        Builtin::ScriptLegacy => script_legacy::run(inputs, host)?,
        Builtin::Concrete => concrete::run(inputs, host)?,
    }
    Ok(BTreeMap::new())
}
