//! What an earlier call could not remove.

use oci_hooks::container::Engine;
use oci_hooks::sys::error::chain;

use crate::error::Error;

/// Tries again to remove what was set aside, and returns why what stays does.
pub(crate) fn still_set_aside(engine: &Engine) -> Result<Vec<String>, Error> {
    let left = engine.empty_trash()?.left;
    Ok(left.iter().map(|error| chain(error)).collect())
}
