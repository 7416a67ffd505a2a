//! What stands for `kubernetes` in a program that was built without it.

use oci_hooks::program::exit::Exit;

use crate::error::Error;
use crate::fill::FillArgs;

pub(crate) fn fill(_filling: &FillArgs) -> Result<Exit, Error> {
    Err(Error::NoKubernetes)
}
