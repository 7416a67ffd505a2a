//! `container-hook install`.

mod user;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use oci_hooks::hooks::trust::{self, TrustOptions};
use oci_hooks::program::checks::runtimes;
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::programs::this_program;
use oci_hooks::sys::fs::{FileAt, PathContext as _, ReplaceOptions, Symlinks, make_directories};
use oci_hooks::sys::privilege::Privilege;
use serde::Serialize;

use crate::environment;
use crate::error::Error;
use crate::settings::{Kind, Settings};

/// Write the script that GitHub's runner calls, and print what the runner needs
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  container-hook install ~/container-hook        As the user that runs the runner
  container-hook install /opt/container-hook     As root, for runners that are root

The runner accepts a script, not a program. It is an error if no OCI runtime is installed. As an
ordinary user, the command creates the namespaces of a job and removes them again: it is an error
if that fails, and there is a warning for what jobs would lack, such as user ids or limits. After
an error nothing is written. `container-hook doctor` checks the rest. A program in a directory such
as /tmp, which is emptied when the machine starts, is warned of.

To uninstall, remove the line from .env, restart the runner, and remove the script; images,
records and settings that stay are listed in /usr/share/doc/container-hook/container-hook.md.")]
pub(crate) struct InstallArgs {
    /// The directory for the script, made if it does not exist
    dir: PathBuf,

    /// Rejected: no runner calls by sudo
    #[arg(long, hide = true)]
    sudo: bool,
}

/// What was installed, and what has to be done.
#[derive(Serialize)]
struct Installed {
    script: PathBuf,
    environment: String,
    /// How many user ids containers have; none if all, as those of root.
    user_ids: Option<u32>,
}

/// The bits of a directory in which everybody makes files, and removes only their own: `/tmp` and others.
const STICKY_FOR_ALL: u32 = 0o1002;

const SCRIPT: &str = "container-hook.sh";

pub(crate) fn run(args: &InstallArgs, context: &mut Context) -> Result<Exit, Error> {
    if args.sudo {
        return Err(Error::Sudo);
    }
    let dir = std::path::absolute(&args.dir).at("look up", &args.dir)?;
    let script = dir.join(SCRIPT);
    // The runner puts the path into a command line as it is.
    let script_text = plain(&script)?;
    let program = this_program()?;
    let program_text = plain(&program)?;

    // Everything is checked before anything is written.
    trust::check_path(&program, &TrustOptions::of_process())?;
    check_runtime(context)?;
    let user_ids = match Privilege::is_root_of_host() {
        true => None,
        false => Some(user::try_out(context)?),
    };
    if let Some(emptied) = emptied(&program) {
        context.warning(&format!(
            "{} is emptied, at the latest when this machine starts, and {} is in it: put the program \
             elsewhere, such as /usr/local/bin, and install it from there",
            emptied.display(),
            program.display()
        ));
    }
    make_trusted(&dir)?;

    let options = ReplaceOptions { mode: Some(0o755), ..ReplaceOptions::default() };
    let text = format!(
        "#!/bin/sh\n\
         # GitHub's runner calls this for the containers of jobs: see container-hook(1).\n\
         exec {program_text}\n"
    );
    FileAt::open(&script, Symlinks::Refuse)?.replace(text.as_bytes(), &options)?;
    let environment = format!("ACTIONS_RUNNER_CONTAINER_HOOKS={script_text}");
    report(&Installed { environment, script, user_ids }, context)
}

/// Fails if there is no runtime for the containers of this machine.
fn check_runtime(context: &Context) -> Result<(), Error> {
    let settings = context.settings::<Settings>()?.settings;
    if environment::backend(&settings) == Kind::Kubernetes {
        return Ok(());
    }
    user::first_failure(&runtimes::checks(settings.host()))
}

/// Returns the directory above a file in which everybody makes files: such directories are emptied, at the
/// latest when the machine starts.
fn emptied(file: &Path) -> Option<&Path> {
    let is_emptied = |dir: &&Path| {
        fs::metadata(dir).is_ok_and(|stat| stat.mode() & STICKY_FOR_ALL == STICKY_FOR_ALL)
    };
    file.ancestors().skip(1).find(is_emptied)
}

/// Makes a directory, and those above it that are missing, where nobody else can change it. What is there
/// is looked at before anything is made.
fn make_trusted(dir: &Path) -> Result<(), Error> {
    let trusted = TrustOptions::of_process();
    let above = dir.ancestors().find(|above| above.symlink_metadata().is_ok());
    trust::check_path(above.unwrap_or(dir), &trusted)?;
    make_directories(dir, 0o755)?;
    Ok(trust::check_path(dir, &trusted)?)
}

fn report(installed: &Installed, context: &mut Context) -> Result<Exit, Error> {
    if context.is_json() {
        context.json(installed)?;
        return Ok(Exit::Done);
    }
    context.line(format!("Wrote {}", installed.script.display()))?;
    context.line(
        "\nPut this line into the file .env in the runner's directory, and restart the runner:\n",
    )?;
    context.line(format!("    {}", installed.environment))?;
    match installed.user_ids {
        Some(1) => context.line("\nContainers run without root, and have user 0 alone.")?,
        Some(ids) => {
            context.line(format!("\nContainers run without root, with {ids} user ids."))?;
        }
        None => {}
    }
    let who = if installed.user_ids.is_some() { " as this user" } else { "" };
    context.line(format!("\nThen run `container-hook doctor`{who} to check this machine."))?;
    Ok(Exit::Done)
}

/// Returns a path that is the same in a command line and in a shell script.
fn plain(path: &Path) -> Result<&str, Error> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@".contains(c);
    path.to_str()
        .filter(|text| text.chars().all(is_plain))
        .ok_or_else(|| Error::NotPlain { path: path.to_owned() })
}

#[test]
fn directories_that_are_emptied_are_known_by_their_mode() {
    use std::os::unix::fs::PermissionsExt as _;

    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("a");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o1777)).unwrap();
    assert_eq!(emptied(&dir.join("b/program")), Some(dir.as_path()));
}
