//! `container-hook doctor`.

mod limits;
mod names;
mod ownership;
mod root;
mod runner;
mod user;

use clap::Args;
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::sys::privilege::Privilege;

use crate::environment;
use crate::error::Error;
use crate::pods;
use crate::settings::{Kind, Settings};

pub(crate) use runner::{own_listeners, settings};

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
    if environment::backend(&loaded.settings) == Kind::Kubernetes {
        return pods::doctor(&loaded, context);
    }
    if Privilege::is_root_of_host() {
        root::run(&loaded, context)
    } else {
        user::run(loaded, context)
    }
}
