//! `step-runner bootstrap`.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use clap::Args;
use oci_hooks::sys::fs::{PathContext as _, PathError, random_u64};

use crate::Exit;
use crate::error::Error;

/// Copy this program to a directory, as step-runner
#[derive(Args, Debug)]
#[command(after_help = "\
The directory is created if missing. An existing program is replaced atomically: a process that executes \
it meanwhile gets the old one or the new one.

Examples:
  step-runner bootstrap /opt/step-runner       Prepare a directory to mount into a container")]
pub(crate) struct BootstrapArgs {
    /// Directory to copy the program to
    dir: PathBuf,
}

pub(crate) fn run(args: &BootstrapArgs) -> Result<Exit, Error> {
    let dir = &args.dir;
    fs::create_dir_all(dir).at("make", dir)?;
    let scratch = dir.join(format!(".step-runner-{:016x}", random_u64()));
    let copied = copy(&scratch, &dir.join("step-runner"));
    if copied.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&scratch);
    }
    copied?;
    Ok(Exit::Done)
}

fn copy(scratch: &Path, target: &Path) -> Result<(), PathError> {
    // The running executable, even if its path was replaced.
    let own = Path::new("/proc/self/exe");
    let mut from = File::open(own).at("open", own)?;
    let mut options = OpenOptions::new();
    let mut to =
        options.write(true).create_new(true).mode(0o700).open(scratch).at("make", scratch)?;
    io::copy(&mut from, &mut to).at("write", scratch)?;
    to.set_permissions(Permissions::from_mode(0o755)).at("change the mode of", scratch)?;
    to.sync_all().at("write", scratch)?;
    fs::rename(scratch, target).at("replace", target)
}
