//! `oci-hooks doctor`: which engines of this machine apply hook files.

mod buildkit;
mod config_file;
pub mod containerd;
pub mod crio;
pub mod docker;
pub mod host;
pub mod native;
mod prove;
pub mod wrapper;

use std::path::PathBuf;

use clap::Args;
use oci_hooks_cli::check::{CheckSummary, HostCheck};
use oci_hooks_cli::exit::CliExit;

use crate::context::CommandContext;
use crate::error::HooksCommandError;
use host::DoctorHost;

/// Check which engines apply hook files here, and print a fix for each that does not
#[derive(Debug, Args)]
#[command(after_help = "\
Asks podman, CRI-O, Docker and containerd for their configuration, as far as they are installed:

  podman      `podman info`, and hooks_dir in containers.conf(5)
  podman build, buildah    the directories it reads without options
  CRI-O       hooks_dir in `crio config`
  Docker      the runtimes and the default runtime in `docker info`
  docker build             the builder, and the runtime that it calls
  containerd  BinaryName of the default runtime, or NRI and its plugins, in `containerd config dump`
  BuildKit    the binary of [worker.oci] in buildkitd.toml

The configuration files of an engine that does not answer are read instead. Programs below --root
are not run. Options on the command line of a daemon are not checked, except those of dockerd.
With --as, only the engine of that consumer is checked. Run it as the user who runs the containers.

Examples:
  oci-hooks doctor
  oci-hooks doctor --format json
  oci-hooks doctor --root /mnt/image
  oci-hooks doctor --prove

Exit status is 0 if everything that is installed applies hook files, and 1 otherwise.")]
pub struct EngineDoctorArgs {
    /// Check the system mounted at DIR instead of this one, for engines that root runs
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,

    /// Install a temporary hook for each engine, start a container for it, report if the hook ran, and remove both
    #[arg(long, conflicts_with = "root")]
    prove: bool,
}

const OUTCOME: CheckSummary =
    CheckSummary { good: "all engines apply hook files", bad: "not all engines apply hook files" };

pub fn run(
    args: &EngineDoctorArgs,
    context: &mut CommandContext,
) -> Result<CliExit, HooksCommandError> {
    if context.has_hooks_dirs() {
        return Err(HooksCommandError::Usage {
            message: "doctor checks the directories that engines read, not those of --hooks-dir"
                .to_owned(),
            hint: Some("`oci-hooks lint --hooks-dir DIR` checks hook files".to_owned()),
        });
    }
    let host = match &args.root {
        None => DoctorHost::current(),
        Some(dir) if dir.is_dir() => DoctorHost::mounted_at(dir),
        Some(dir) => {
            return Err(HooksCommandError::Usage {
                message: format!("invalid --root {dir:?}: it is not a directory"),
                hint: Some("pass the directory where the system's root is mounted".to_owned()),
            });
        }
    };
    let consumer = context.is_consumer_given.then_some(context.consumer.name);
    let wants = |engine| consumer.is_none_or(|consumer| engine_of(consumer) == engine);
    let mut checks = Vec::new();
    if wants("podman") {
        checks.extend(native::podman(&host));
    }
    if wants("crio") {
        checks.extend(native::crio(&host));
    }
    if wants("docker") {
        checks.extend(docker::checks(&host));
    }
    if wants("containerd") {
        checks.extend(containerd::checks(&host));
    }
    if wants("buildkit") {
        checks.extend(buildkit::checks(&host));
    }
    if args.prove {
        checks.extend(prove::checks(&host, wants));
    }
    if checks.is_empty() {
        let all = "none of podman, buildah, crio, dockerd, containerd and buildkitd is installed";
        let found = consumer
            .map_or(all.to_owned(), |name| format!("the engine of {name} is not installed"));
        checks.push(HostCheck::ok("engines", found));
        let outcome = CheckSummary { good: "no engine applies hook files here", ..OUTCOME };
        return context.report(&checks, outcome);
    }
    context.report(&checks, OUTCOME)
}

fn engine_of(consumer: &str) -> &'static str {
    match consumer {
        "crio" => "crio",
        "nri" | "hook-injector" => "containerd",
        _ => "podman",
    }
}
