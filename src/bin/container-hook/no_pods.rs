//! What stands for `pods` in a program that was built without Kubernetes.

use std::path::PathBuf;

use oci_hooks::container_hook::request::Request;
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::settings_file::Loaded;

use crate::error::Error;
use crate::logs::LogsArgs;
use crate::prune::PruneArgs;
use crate::settings::Settings;

pub(crate) fn ps(_: &Settings, _: &mut Context) -> Result<Exit, Error> {
    Err(Error::NoKubernetes)
}

pub(crate) fn logs(_: &LogsArgs, _: &Settings, _: &mut Context) -> Result<Exit, Error> {
    Err(Error::NoKubernetes)
}

pub(crate) fn prune(_: &PruneArgs, _: &Settings, _: &mut Context) -> Result<Exit, Error> {
    Err(Error::NoKubernetes)
}

pub(crate) fn template(_: &Request, _: Option<PathBuf>, _: &mut Context) -> Result<Exit, Error> {
    Err(Error::NoKubernetes)
}

pub(crate) fn doctor(_: &Loaded<Settings>, _: &mut Context) -> Result<Exit, Error> {
    Err(Error::NoKubernetes)
}
