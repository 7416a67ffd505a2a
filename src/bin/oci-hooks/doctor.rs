//! `oci-hooks doctor`: which engines of this machine apply hook files.

mod buildkit;
mod config_file;
mod containerd;
mod docker;
mod host;
mod native;
mod wrapper;

use std::path::PathBuf;

use clap::Args;
use oci_hooks::program::check::{Check, Outcome};

use crate::Exit;
use crate::context::Context;
use crate::error::Error;
use host::Host;

/// Check which engines apply hook files here, and print a fix for each that does not
#[derive(Debug, Args)]
#[command(after_help = "\
Looks at the configuration of podman, CRI-O, Docker, containerd and BuildKit, as far as they are installed:

  podman      hooks_dir in containers.conf(5)
  podman build, buildah    the directories it reads without options
  CRI-O       hooks_dir in crio.conf(5)
  Docker      runtimes and default-runtime in daemon.json
  docker build             which builder it is, and what that runs
  containerd  BinaryName of the default runtime, or NRI and its plugins, in config.toml
  BuildKit    the binary of [worker.oci] in buildkitd.toml

Options on the command lines of daemons are not looked at. Run it as who runs the containers.

Examples:
  oci-hooks doctor
  oci-hooks doctor --format json
  oci-hooks doctor --root /mnt/image

Exit status is 0 if everything that is installed applies hook files, and 1 otherwise.")]
pub struct DoctorArgs {
    /// Look at the system that is mounted at DIR, as root would run it
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

const OUTCOME: Outcome = Outcome {
    good: "hook files apply to all containers",
    bad: "hook files do not apply to all containers",
};

pub fn run(args: &DoctorArgs, context: &mut Context) -> Result<Exit, Error> {
    let host = match &args.root {
        None => Host::this(),
        Some(dir) if dir.is_dir() => Host::mounted_at(dir),
        Some(dir) => {
            return Err(Error::Usage {
                message: format!("invalid --root {dir:?}: it is not a directory"),
                hint: Some("name where the system's root directory is mounted".to_owned()),
            });
        }
    };
    let mut checks = native::podman(&host);
    checks.extend(native::crio(&host));
    checks.extend(docker::checks(&host));
    checks.extend(containerd::checks(&host));
    checks.extend(buildkit::checks(&host));
    if checks.is_empty() {
        let found = "none of podman, buildah, crio, dockerd, containerd and buildkitd is installed";
        checks.push(Check::ok("engines", found));
        let outcome = Outcome { good: "no engine applies hook files here", ..OUTCOME };
        return context.report(&checks, outcome);
    }
    context.report(&checks, OUTCOME)
}
