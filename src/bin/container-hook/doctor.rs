//! `container-hook doctor`.

mod limits;
mod names;
mod ownership;
pub(crate) mod root;
mod runner;
pub(crate) mod user;

use clap::Args;
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;

use crate::error::Error;
use crate::job_backend::JobBackend;
use crate::settings::Settings;

pub(crate) use runner::settings;

/// Check this machine for problems, and print a fix for each
#[derive(Debug, Args)]
#[command(after_help = "\
Run it as the user that runs the runner; in a cluster in the pod of a runner, where it checks each
permission. For a user who is not root it creates what a job would have, such as namespaces and
mounts, and tries it. Exit status is 0 if containers will run as jobs need them, and 1 otherwise.
Messages of jobs are explained in
/usr/share/doc/container-hook/container-hook.md, Troubleshooting.")]
pub(crate) struct DoctorArgs {}

pub(crate) fn run(_: &DoctorArgs, context: &mut Context) -> Result<Exit, Error> {
    let loaded = context.settings::<Settings>()?;
    match JobBackend::of(&loaded.settings)? {
        JobBackend::Root => root::run(&loaded, context),
        JobBackend::User => user::run(loaded, context),
        #[cfg(feature = "kubernetes")]
        JobBackend::Cluster => crate::pods::doctor(&loaded, context),
    }
}
