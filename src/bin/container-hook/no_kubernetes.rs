//! What stands for `kubernetes` in a program that was built without it.

use oci_hooks::container_hook::request::Request;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::settings_file::Loaded;

use crate::environment::Seen;
use crate::error::Error;
use crate::fill::FillArgs;
use crate::hook::CallError;
use crate::log::Log;
use crate::settings::Settings;

/// Whether the program has the backend.
pub(crate) const IS_BUILT: bool = false;

pub(crate) fn run(
    _loaded: &Loaded<Settings>,
    _request: &Request,
    _seen: &Seen,
    _log: &Log,
) -> Result<Exit, CallError> {
    Err(CallError::NoKubernetes)
}

pub(crate) fn fill(_filling: &FillArgs) -> Result<Exit, Error> {
    Err(Error::NoKubernetes)
}
