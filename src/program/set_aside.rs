//! What an earlier call could not remove.

use crate::container::Engine;
use crate::sys::error::chain;
use crate::sys::fs::PathError;

/// Tries again to remove what was set aside, and returns why what stays does.
pub fn still_set_aside(engine: &Engine) -> Result<Vec<String>, PathError> {
    let left = engine.empty_trash()?.left;
    Ok(left.iter().map(|error| chain(error)).collect())
}
