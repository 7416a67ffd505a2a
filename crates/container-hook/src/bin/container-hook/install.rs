//! `container-hook install`.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use oci_hooks::hooks::trust::{self, TrustOptions};
use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_engine_cli::checks::HostCheck;
use oci_hooks_engine_cli::checks::user::service::{self, CheckedProcess};
use oci_hooks_engine_cli::checks::user::{ids, namespaces};
use oci_hooks_engine_cli::programs::program_path;
use oci_hooks_engine_cli::settings_file;
use oci_hooks_files::fs::{
    FileAt, PathContext as _, ReplaceOptions, SymlinkPolicy, make_directories,
};
use oci_hooks_host::privilege::{IdMaps, PauseProcess};
use serde::Serialize;

use crate::doctor;
use crate::error::HookCommandError;
use crate::job_backend::JobBackend;
use crate::settings::HookFileSettings;

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
    /// Directory for the script, created if missing
    dir: PathBuf,

    /// Rejected: runners do not call the hook by sudo
    #[arg(long, hide = true)]
    sudo: bool,
}

/// The JSON output.
#[derive(Serialize)]
struct InstallReport {
    script: PathBuf,
    environment: String,
    /// Number of user ids of rootless containers; `None` for root and in a cluster.
    user_ids: Option<u32>,
}

/// Mode bits of directories such as `/tmp`: writable for all users, and sticky.
const STICKY_FOR_ALL: u32 = 0o1002;

const SCRIPT: &str = "container-hook.sh";

pub fn run(args: &InstallArgs, context: &mut CliContext) -> Result<CliExit, HookCommandError> {
    if args.sudo {
        return Err(HookCommandError::Sudo);
    }
    let dir = std::path::absolute(&args.dir).with_path("look up", &args.dir)?;
    let script = dir.join(SCRIPT);
    // The runner inserts the path into a command line without quoting.
    let script_text = require_plain(&script)?;
    let program = program_path()?;
    let program_text = require_plain(&program)?;

    // Everything is checked before anything is written.
    trust::check_path(&program, &TrustOptions::of_process())?;
    let user_ids = check_host(context)?;
    if let Some(emptied) = find_sticky_ancestor(&program) {
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
    FileAt::open(&script, SymlinkPolicy::Refuse)?.replace(text.as_bytes(), &options)?;
    let environment = format!("ACTIONS_RUNNER_CONTAINER_HOOKS={script_text}");
    report(&InstallReport { environment, script, user_ids }, context)
}

/// Fails if containers cannot run here. Returns [`InstallReport::user_ids`].
fn check_host(context: &CliContext) -> Result<Option<u32>, HookCommandError> {
    let settings = settings_file::load::<HookFileSettings>(context)?.settings;
    match JobBackend::of(&settings)? {
        JobBackend::Root => require_passed(&doctor::root::host_checks(&settings)).map(|()| None),
        JobBackend::User => check_user(&settings, context).map(Some),
        #[cfg(feature = "kubernetes")]
        JobBackend::Cluster => Ok(None),
    }
}

/// Checks this host for a rootless user, creates a job's namespaces as a trial, and prints warnings. Returns
/// the number of user ids of containers.
fn check_user(settings: &HookFileSettings, context: &CliContext) -> Result<u32, HookCommandError> {
    let map = IdMaps::of_process()?;
    require_passed(&doctor::user::host_checks(settings, &map))?;
    let mut checks = ids::checks(&map);
    checks.push(match PauseProcess::make(&map, None, None) {
        Ok(pause_process) => {
            drop(pause_process);
            namespaces::report_namespaces()
        }
        Err(error) => namespaces::report_namespace_error(&error, &program_path()?),
    });
    let services = doctor::own_listeners();
    checks.extend(
        services.iter().map(|(pid, name)| service::limits(CheckedProcess { pid: *pid, name })),
    );
    require_passed(&checks)?;
    for check in checks.iter().filter(|check| check.is_warning()) {
        context.warning(check.finding());
        for line in check.hint().lines() {
            context.hint(Some(line));
        }
    }
    Ok(map.privilege().ids().map_or(u32::MAX, |ids| ids.uids))
}

/// Fails with the first failed check.
fn require_passed(checks: &[HostCheck]) -> Result<(), HookCommandError> {
    checks.iter().find(|check| check.is_failure()).map_or(Ok(()), |check| {
        Err(HookCommandError::CannotRun {
            found: check.finding().to_owned(),
            hint: check.hint().to_owned(),
        })
    })
}

/// Returns the closest sticky directory above a file, such as `/tmp`: it is emptied on boot or earlier.
fn find_sticky_ancestor(file: &Path) -> Option<&Path> {
    let is_emptied = |dir: &&Path| {
        fs::metadata(dir).is_ok_and(|stat| stat.mode() & STICKY_FOR_ALL == STICKY_FOR_ALL)
    };
    file.ancestors().skip(1).find(is_emptied)
}

/// Creates a directory and its missing parents; fails if another user can change any of them. Checks the
/// existing parents before creating any.
fn make_trusted(dir: &Path) -> Result<(), HookCommandError> {
    let trusted = TrustOptions::of_process();
    let above = dir.ancestors().find(|above| above.symlink_metadata().is_ok());
    trust::check_path(above.unwrap_or(dir), &trusted)?;
    make_directories(dir, 0o755).map_err(HookCommandError::ScriptDirectory)?;
    Ok(trust::check_path(dir, &trusted)?)
}

fn report(
    installed: &InstallReport,
    context: &mut CliContext,
) -> Result<CliExit, HookCommandError> {
    if context.is_json() {
        context.json(installed)?;
        return Ok(CliExit::Done);
    }
    context.line(format!("Wrote {}", installed.script.display()))?;
    context.line(
        "\nPut this line into the file .env in the runner's directory, and restart the runner:\n",
    )?;
    context.line(format!("    {}", installed.environment))?;
    match installed.user_ids {
        Some(1) => context.line("\nContainers run without root, with user 0 only.")?,
        Some(ids) => {
            context.line(format!("\nContainers run without root, with {ids} user ids."))?;
        }
        None => {}
    }
    let who = if installed.user_ids.is_some() { " as this user" } else { "" };
    context.line(format!("\nThen run `container-hook doctor`{who} to check this machine."))?;
    Ok(CliExit::Done)
}

/// Returns the text of a path; fails if it needs quotes in a command line or a shell script.
fn require_plain(path: &Path) -> Result<&str, HookCommandError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@".contains(c);
    path.to_str()
        .filter(|text| text.chars().all(is_plain))
        .ok_or_else(|| HookCommandError::NotPlain { path: path.to_owned() })
}

#[test]
fn temporary_directories_are_recognized_by_their_mode() {
    use std::os::unix::fs::PermissionsExt as _;

    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("a");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o1777)).unwrap();
    assert_eq!(find_sticky_ancestor(&dir.join("b/program")), Some(dir.as_path()));
}
