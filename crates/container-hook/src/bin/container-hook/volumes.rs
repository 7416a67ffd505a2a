//! `container-hook volumes`.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::{Args, Subcommand};
use clap_complete::ArgValueCandidates;
use container_hook::RunnerVolume;
use jiff::Timestamp;
use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_cli::table::{self, format_age};
use oci_hooks_engine_cli::settings_file;
use oci_hooks_files::quantity::{Age, format_count, format_size};

use crate::error::HookCommandError;
use crate::settings::HookFileSettings;
use crate::{jobs, names};

/// List the named volumes of runners, or remove them
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true,
    subcommand_value_name = "rm|prune",
    after_help = "\
Each runner has its own named volumes, which are kept from job to job: a workflow's
`volumes: [\"cache:/root/.cache\"]` makes the volume `cache`. VOLUME is a volume's name; if several
runners have one of that name, RUNNER/NAME, where RUNNER is the runner's name or the beginning of
its id. A volume that a container uses is not removed. `prune` needs --age or --all.

Examples:
  container-hook volumes                     List volumes with runner and size
  container-hook volumes rm cache            Remove the volume of the only runner that has one
  container-hook volumes rm runner-1/cache   Remove that of the runner `runner-1`
  container-hook volumes prune --age 30d     Remove volumes unused for 30 days
  container-hook volumes prune --all         Remove all volumes that no container uses"
)]
pub struct VolumesArgs {
    #[command(subcommand)]
    command: Option<VolumesCommand>,
}

#[derive(Debug, Subcommand)]
enum VolumesCommand {
    /// Remove volumes
    Rm {
        /// Volume to remove, as NAME or RUNNER/NAME (can be repeated)
        #[arg(required = true, value_name = "VOLUME", add = ArgValueCandidates::new(names::volumes))]
        volumes: Vec<String>,
    },
    /// Remove unused volumes by age
    Prune {
        /// Remove volumes unused for this long, e.g. 30d
        #[arg(long, required_unless_present = "all", conflicts_with = "all")]
        age: Option<Age>,

        /// Remove all volumes that no container uses
        #[arg(long)]
        all: bool,
    },
}

pub fn run(args: &VolumesArgs, context: &mut CliContext) -> Result<CliExit, HookCommandError> {
    let settings = settings_file::load::<HookFileSettings>(context)?.settings;
    let (volumes, problems) = jobs::volumes(&settings.store)?;
    for problem in &problems {
        context.note(problem);
    }
    match &args.command {
        None => list(&volumes, context),
        Some(VolumesCommand::Rm { volumes: names }) => {
            let chosen = choose(&volumes, names)?;
            let is_chosen = |volume: &RunnerVolume| chosen.contains(&key(volume));
            let owners = chosen.iter().map(|(owner, _)| owner.clone()).collect();
            let in_use = remove(&settings, &owners, is_chosen, context)?;
            if in_use.is_empty() {
                Ok(CliExit::Done)
            } else {
                Err(HookCommandError::VolumesInUse { in_use })
            }
        }
        Some(VolumesCommand::Prune { age, .. }) => {
            let age = age.map_or(Duration::ZERO, |age| age.0);
            let is_old = |volume: &RunnerVolume| {
                let unused = Timestamp::now().duration_since(volume.used);
                unused.unsigned_abs() >= age && !unused.is_negative() || age.is_zero()
            };
            let owners = jobs::owners_of_volumes(&settings.store)?.into_iter().collect();
            remove(&settings, &owners, is_old, context)?;
            Ok(CliExit::Done)
        }
    }
}

/// Owner and name, which identify a volume in the store.
type VolumeKey = (String, String);

fn key(volume: &RunnerVolume) -> VolumeKey {
    (volume.owner.clone(), volume.name.clone())
}

fn list(volumes: &[RunnerVolume], context: &mut CliContext) -> Result<CliExit, HookCommandError> {
    if context.is_json() {
        context.json(&volumes)?;
        return Ok(CliExit::Done);
    }
    let row = |volume: &RunnerVolume| {
        [
            volume.name.clone(),
            runner(volume),
            format_size(volume.size_bytes),
            format_age(volume.used),
            users(volume),
        ]
    };
    let rows: Vec<_> = volumes.iter().map(row).collect();
    table::write(["VOLUME", "RUNNER", "SIZE", "USED", "CONTAINERS"], &rows, context)?;
    let all = volumes.iter().map(|volume| volume.size_bytes).sum();
    context.note(&format!(
        "{}, {} on disk",
        format_count(volumes.len(), "volume"),
        format_size(all)
    ));
    Ok(CliExit::Done)
}

/// Removes the selected volumes of these owners. Returns the volumes in use, as text for messages.
fn remove(
    settings: &HookFileSettings,
    owners: &BTreeSet<String>,
    is_selected: impl Fn(&RunnerVolume) -> bool + Sync,
    context: &mut CliContext,
) -> Result<Vec<String>, HookCommandError> {
    let (mut removed, mut in_use, mut problems) = (Vec::new(), Vec::new(), Vec::new());
    let result = owners.iter().try_for_each(|owner| {
        let all = jobs::remove_volumes(&settings.store, owner, &is_selected)?;
        removed.extend(all.removed);
        in_use.extend(all.in_use);
        problems.extend(all.problems);
        Ok::<_, HookCommandError>(())
    });
    // Reports the volumes removed before an error.
    for problem in problems {
        context.note(&problem);
    }
    if context.is_json() {
        context.json(&removed)?;
    } else {
        for volume in &removed {
            let size = format_size(volume.size_bytes);
            context.line(format!("removed {} of {} ({size})", volume.name, runner(volume)))?;
        }
    }
    result?;
    let named = |volume: &RunnerVolume| {
        format!("{} of {}, used by {}", volume.name, runner(volume), users(volume))
    };
    Ok(in_use.iter().map(named).collect())
}

/// Returns the volumes with these names.
fn choose(
    volumes: &[RunnerVolume],
    names: &[String],
) -> Result<BTreeSet<VolumeKey>, HookCommandError> {
    let (mut chosen, mut missing) = (BTreeSet::new(), Vec::new());
    for name in names {
        let found: Vec<_> = volumes.iter().filter(|volume| is_named(volume, name)).collect();
        match found[..] {
            [] => missing.push(name.clone()),
            [volume] => drop(chosen.insert(key(volume))),
            _ => {
                let choices = found.iter().map(|volume| choice(volume)).collect();
                return Err(HookCommandError::AmbiguousVolume { name: name.clone(), choices });
            }
        }
    }
    // All names are checked before any volume is removed.
    if missing.is_empty() { Ok(chosen) } else { Err(HookCommandError::NoSuchVolume { missing }) }
}

fn is_named(volume: &RunnerVolume, name: &str) -> bool {
    // Names of volumes contain no slash, but those of runners may.
    match name.rsplit_once('/') {
        None => volume.name == name,
        Some((runner, name)) => {
            let is_id = !runner.is_empty() && volume.owner.starts_with(runner);
            volume.name == name && (is_id || volume.runner.as_deref() == Some(runner))
        }
    }
}

/// Returns a name that identifies only this volume, and the location of its runner.
fn choice(volume: &RunnerVolume) -> String {
    let name = format!("{}/{}", shorten_id(&volume.owner), volume.name);
    match (&volume.runner, &volume.work) {
        (Some(runner), Some(work)) => format!("{name} (runner {runner} in {})", work.display()),
        _ => name,
    }
}

/// Returns the name of a volume's runner, or the runner's id if no name is recorded.
fn runner(volume: &RunnerVolume) -> String {
    volume.runner.clone().unwrap_or_else(|| shorten_id(&volume.owner))
}

fn users(volume: &RunnerVolume) -> String {
    let named = volume.containers.iter().map(|user| match (&user.role, &user.name) {
        (Some(role), Some(name)) => format!("{role} {name} ({})", shorten_id(&user.id)),
        _ => shorten_id(&user.id),
    });
    named.collect::<Vec<_>>().join(", ")
}

fn shorten_id(id: &str) -> String {
    id.chars().take(12).collect()
}
