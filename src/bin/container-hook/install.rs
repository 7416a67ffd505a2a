//! `container-hook install`.

mod user;

use std::path::{Path, PathBuf};

use clap::Args;
use oci_hooks::hooks::trust::{self, TrustOptions};
use oci_hooks::program::checks::runtimes;
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::relayed::{AS_ROOT, check_this_program, this_program};
use oci_hooks::sys::caller::{is_root, own_ids};
use oci_hooks::sys::fs::{FileAt, PathContext as _, ReplaceOptions, Symlinks, make_directories};
use oci_hooks::sys::privilege::Privilege;
use serde::Serialize;

use crate::access::{self, Wanted};
use crate::directories::{Directories, Recorded, RunnerArgs};
use crate::environment;
use crate::error::Error;
use crate::settings::{self, Kind, Settings};

/// Write the script that GitHub's runner calls, and print what the runner needs
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  container-hook install ~/container-hook        As the user that runs the runner
  container-hook install /opt/container-hook     As root, for runners that are root
  container-hook install --sudo --runner-user runner \\
      --runner-dir /home/runner/actions-runner /opt/container-hook

The runner accepts a script, not a program. It is an error if no OCI runtime is installed. Without
root or --sudo, the namespaces of a job are made and taken away again: it is an error if that
fails, and there is a warning for what jobs would lack, such as user ids or limits. After an error
nothing is written. `container-hook doctor` checks the rest.

With --sudo, the script starts one process as the runner's user and one as root by sudo; the
first forwards the signals of the runner, which sudo would keep. The sudoers line that is
printed permits one command with one argument, and passes no variables. That command runs
containers within [policy] of the settings, and opens files as the runner's user, beneath the
directories that --runner-dir records: the runner's directory, and its work directory if that is
elsewhere. Comments and order of the settings stay. To check the line, as root:
  sudo --list --other-user USER container-hook as-root

With --sudo it is an error if the runner's user cannot execute the program, as in a directory of
mode 0700, and there is a warning if the settings make that user root of this machine. A program
in a directory such as /tmp, which is emptied when the machine starts, is warned of.

To uninstall, remove the line from .env, restart the runner, and remove the script and the
sudoers line; images, records and settings that stay are listed in
/usr/share/doc/container-hook/container-hook.md.")]
pub(crate) struct InstallArgs {
    /// The directory for the script, made if it does not exist
    dir: PathBuf,

    /// Use sudo, for a runner that does not run as root
    #[arg(long)]
    sudo: bool,

    #[command(flatten)]
    runner: RunnerArgs,
}

/// What was installed, and what has to be done.
#[derive(Serialize)]
struct Installed {
    script: PathBuf,
    environment: String,
    /// How many user ids containers have; none if all, as those of root.
    user_ids: Option<u32>,
    sudoers: Option<String>,
    /// What this call recorded, if it was to record something.
    recorded: Option<Recorded>,
}

const SCRIPT: &str = "container-hook.sh";

pub(crate) fn run(
    args: &InstallArgs,
    config: Option<&Path>,
    context: &mut Context,
) -> Result<Exit, Error> {
    let dir = std::path::absolute(&args.dir).at("look up", &args.dir)?;
    let script = dir.join(SCRIPT);
    // The runner puts the path into a command line as it is.
    let script_text = plain(&script)?;
    let program = this_program()?;
    let program_text = plain(&program)?;

    // All of it is checked before anything is written.
    if args.sudo && !is_root(own_ids().0) && settings::named(config).is_none() {
        return Err(Error::SudoOfRoot);
    }
    let directories = Directories::find(&args.runner)?;
    if args.sudo {
        let settings = context.settings::<Settings>()?.settings;
        if args.runner.runner_dir.is_empty() && settings.runner.directories.is_empty() {
            return Err(Error::NoRunnerDirectory);
        }
    }
    for (given, real) in directories.renamed(&args.runner) {
        context.note(&format!("{} is recorded as {}", given.display(), real.display()));
    }

    // With sudo the script runs with no more rights than the runner; else whoever can write one of
    // the two can do what this process may.
    if args.sudo {
        check_this_program()?;
    } else {
        trust::check_path(&program, &TrustOptions::of_process())?;
    }
    if args.sudo {
        access::check(&args.runner.runner_user, &program, Wanted::Execute)?;
        warn_of_policy(args, context)?;
    }
    check_runtime(context)?;
    let user_ids = match Privilege::is_root_of_host() || args.sudo {
        true => None,
        false => Some(user::try_out(context)?),
    };
    if let Some(emptied) = access::emptied(&program) {
        context.warning(&format!(
            "{} is emptied, at the latest when this machine starts, and {} is in it: put the program \
             elsewhere, such as /usr/local/bin, and install it from there",
            emptied.display(),
            program.display()
        ));
    }
    make_trusted(&dir)?;

    let command = if args.sudo { " relay" } else { "" };
    let options = ReplaceOptions { mode: Some(0o755), ..ReplaceOptions::default() };
    let text = format!(
        "#!/bin/sh\n\
         # GitHub's runner calls this for the containers of jobs: see container-hook(1).\n\
         exec {program_text}{command}\n"
    );
    FileAt::open(&script, Symlinks::Refuse)?.replace(text.as_bytes(), &options)?;
    if args.sudo {
        access::check(&args.runner.runner_user, &script, Wanted::Read)?;
    }

    let record = || directories.record(&settings::path(config));
    let recorded = (!args.runner.is_empty()).then(record).transpose()?;
    let sudoers =
        || format!("{} ALL=(root) NOPASSWD: {program_text} {AS_ROOT}", args.runner.runner_user);
    report(
        &Installed {
            environment: format!("ACTIONS_RUNNER_CONTAINER_HOOKS={script_text}"),
            script,
            user_ids,
            sudoers: args.sudo.then(sudoers),
            recorded,
        },
        context,
    )
}

/// Fails if there is no runtime for the containers of this machine.
fn check_runtime(context: &Context) -> Result<(), Error> {
    let settings = context.settings::<Settings>()?.settings;
    if environment::backend(&settings) == Kind::Kubernetes {
        return Ok(());
    }
    user::first_failure(&runtimes::checks(settings.host()))
}

/// Warns of settings with which the runner's user is as good as root.
fn warn_of_policy(args: &InstallArgs, context: &Context) -> Result<(), Error> {
    let loaded = context.settings::<Settings>()?;
    if loaded.settings.policy.gives_root() {
        let file = loaded.file_of("policy");
        context.warning(&format!(
            "whoever can change a workflow is root of this machine, and so is user {}, by [policy] in \
             {}",
            args.runner.runner_user,
            file.display()
        ));
    }
    Ok(())
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
    if let Some(sudoers) = &installed.sudoers {
        context
            .line("\nPut this line into a file by `visudo -f /etc/sudoers.d/container-hook`:\n")?;
        context.line(format!("    {sudoers}"))?;
    }
    if let Some(Recorded { settings, directories, tool_directories }) = &installed.recorded {
        context.line(format!("\nRecorded in {}:\n", settings.display()))?;
        for directory in directories {
            context.line(format!("    {}", directory.display()))?;
        }
        for directory in tool_directories {
            context.line(format!("    {} (tools)", directory.display()))?;
        }
    }
    let who = if installed.user_ids.is_some() { " as this user" } else { "" };
    context.line(format!("\nThen run `container-hook doctor`{who} to check this machine."))?;
    Ok(Exit::Done)
}

/// Returns a path that is the same in a command line, in a shell script and in sudoers.
fn plain(path: &Path) -> Result<&str, Error> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@".contains(c);
    path.to_str()
        .filter(|text| text.chars().all(is_plain))
        .ok_or_else(|| Error::NotPlain { path: path.to_owned() })
}
