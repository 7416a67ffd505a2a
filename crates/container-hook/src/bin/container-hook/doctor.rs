//! `container-hook doctor`.

mod limits;
mod names;
mod ownership;
pub mod root;
mod runner;
pub mod user;

use clap::Args;
use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_engine_cli::settings_file;

use crate::error::HookCommandError;
use crate::job_backend::JobBackend;
use crate::settings::HookFileSettings;
use crate::try_job;

pub use runner::{own_listeners, settings};

/// Check this machine for problems, and print a fix for each
#[derive(Debug, Args)]
#[command(after_help = "\
Run it as the user that runs the runner; in a cluster in the pod of a runner, where it checks each
permission. With each runtime of the settings it runs a container of the programs of this machine.
For a user who is not root it creates what a job would have, such as namespaces and mounts, and
tries it. Exit status is 0 if containers will run as jobs need them, and 1 otherwise.
Messages of jobs are explained in
/usr/share/doc/container-hook/container-hook.md, Troubleshooting.

Examples:
  container-hook doctor                          What is missing on this machine?
  container-hook doctor --probe                  What do jobs reach that they must not?
  container-hook doctor --probe --format json    The same, machine-readable

With --probe, two jobs and a build run. Meanwhile this program listens on all addresses of this
machine, and has sockets and files in /tmp, /var/tmp, /dev/shm, /run and the store. One of the jobs
and the build try to reach these, a process of this program, the other job, addresses of metadata
services, and kernel files; of a runner that is root, also limits that the kernel counts for each
user. No image is needed. The exit status is 1 if one of them was reached, or if no job could be
run. Targets that could not be tried, or that did not answer and may not exist, are warnings.")]
pub struct HookDoctorArgs {
    /// Run jobs and a build, and test that they cannot reach what SECURITY.md excludes
    #[arg(long)]
    probe: bool,
}

pub fn run(args: &HookDoctorArgs, context: &mut CliContext) -> Result<CliExit, HookCommandError> {
    let loaded = settings_file::load::<HookFileSettings>(context)?;
    let backend = JobBackend::of(&loaded.settings)?;
    match backend {
        #[cfg(feature = "kubernetes")]
        JobBackend::Cluster if args.probe => Err(try_job::TryJobError::Cluster.into()),
        _ if args.probe => try_job::probe(&loaded.settings, context),
        JobBackend::Root => root::run(&loaded, context),
        JobBackend::User => user::run(loaded, context),
        #[cfg(feature = "kubernetes")]
        JobBackend::Cluster => crate::pods::doctor(&loaded, context),
    }
}
