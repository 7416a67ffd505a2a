//! `container-hook install`.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use oci_hooks::hooks::trust::{self, TrustOptions};
use oci_hooks::program::checks::Check;
use oci_hooks::program::checks::user::service::{self, Process};
use oci_hooks::program::checks::user::{ids, namespaces};
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::programs::this_program;
use oci_hooks::sys::fs::{FileAt, PathContext as _, ReplaceOptions, Symlinks, make_directories};
use oci_hooks::sys::privilege::{Holder, Map};
use serde::Serialize;

use crate::doctor;
use crate::error::Error;
use crate::job_backend::JobBackend;
use crate::settings::Settings;

/// Write the script that GitHub's runner calls, and print what the runner needs
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  container-hook install ~/container-hook        As the user that runs the runner
  container-hook install /opt/container-hook     As root, for runners that are root

The runner accepts a script, not a program. The command checks this machine as `container-hook
doctor` does and, as an ordinary user, creates the namespaces of a job and removes them again. If
containers cannot run, it is an error, and no script is written. There is a warning for what jobs
would lack, such as user ids or limits, and for a program in a directory that is emptied when the
machine starts, such as /tmp.

To uninstall, remove the line from .env, restart the runner, and remove the script; images,
records and settings that stay are listed in /usr/share/doc/container-hook/container-hook.md.")]
pub struct InstallArgs {
    /// The directory for the script, made if it does not exist
    dir: PathBuf,

    /// Rejected: no runner calls by sudo
    #[arg(long, hide = true)]
    sudo: bool,
}

/// The JSON output.
#[derive(Serialize)]
struct Installed {
    script: PathBuf,
    environment: String,
    /// The number of user ids that containers have; none for root's, which have all.
    user_ids: Option<u32>,
}

/// The mode bits of directories like `/tmp`: writable for all, and sticky.
const STICKY_FOR_ALL: u32 = 0o1002;

const SCRIPT: &str = "container-hook.sh";

pub fn run(args: &InstallArgs, context: &mut Context) -> Result<Exit, Error> {
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
    let user_ids = check_host(context)?;
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

/// Fails if containers cannot run here. Returns the number of their user ids; none for root, whose containers
/// have all.
fn check_host(context: &Context) -> Result<Option<u32>, Error> {
    let settings = context.settings::<Settings>()?.settings;
    match JobBackend::of(&settings)? {
        JobBackend::Root => pass(&doctor::root::host_checks(&settings)).map(|()| None),
        JobBackend::User => check_user(&settings, context).map(Some),
        #[cfg(feature = "kubernetes")]
        JobBackend::Cluster => Ok(None),
    }
}

/// Checks this host for an ordinary user, creates the namespaces of a job, and warns of what they lack.
fn check_user(settings: &Settings, context: &Context) -> Result<u32, Error> {
    let map = Map::of_process()?;
    pass(&doctor::user::host_checks(settings, &map))?;
    let mut checks = ids::checks(&map);
    checks.push(match Holder::make(&map, None, None) {
        Ok(holder) => {
            drop(holder);
            namespaces::made()
        }
        Err(error) => namespaces::not_made(&error, &this_program()?),
    });
    let services = doctor::own_listeners();
    checks.extend(services.iter().map(|(pid, name)| service::limits(Process { pid: *pid, name })));
    pass(&checks)?;
    for check in checks.iter().filter(|check| check.is_warning()) {
        context.warning(check.found());
        for line in check.hint().lines() {
            context.hint(Some(line));
        }
    }
    Ok(map.privilege().ids().map_or(u32::MAX, |ids| ids.uids))
}

/// Fails with the first check that fails.
fn pass(checks: &[Check]) -> Result<(), Error> {
    checks.iter().find(|check| check.is_failure()).map_or(Ok(()), |check| {
        Err(Error::CannotRun { found: check.found().to_owned(), hint: check.hint().to_owned() })
    })
}

/// Returns the sticky directory for all that a file is in, such as `/tmp`: it is emptied at the latest when the
/// machine starts.
fn emptied(file: &Path) -> Option<&Path> {
    let is_emptied = |dir: &&Path| {
        fs::metadata(dir).is_ok_and(|stat| stat.mode() & STICKY_FOR_ALL == STICKY_FOR_ALL)
    };
    file.ancestors().skip(1).find(is_emptied)
}

/// Creates a directory and its missing parents where no other user can change them. Checks the existing parents
/// before it creates anything.
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

/// Returns a path that needs no quotes in a command line and in a shell script.
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
