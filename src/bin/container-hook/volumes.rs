//! `container-hook volumes`.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::{Args, Subcommand};
use clap_complete::ArgValueCandidates;
use jiff::Timestamp;
use oci_hooks::container_hook::engine::RunnerVolume;
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::table::{self, ago};
use oci_hooks::sys::quantity::{Age, counted, human};

use crate::error::Error;
use crate::jobs;
use crate::names;
use crate::settings::Settings;

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
its id. A volume that a container has is not removed. `prune` needs --age or --all.

Examples:
  container-hook volumes                     Whose volumes are there, and how large are they?
  container-hook volumes rm cache            Remove the volume of the only runner that has one
  container-hook volumes rm runner-1/cache   Remove that of the runner `runner-1`
  container-hook volumes prune --age 30d     Remove what no job has used for 30 days
  container-hook volumes prune --all         Remove all volumes that no container has"
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
    /// Remove the volumes that no container has, by age
    Prune {
        /// Remove volumes unused for this long, e.g. 30d
        #[arg(long, required_unless_present = "all", conflicts_with = "all")]
        age: Option<Age>,

        /// Remove all volumes that no container has
        #[arg(long)]
        all: bool,
    },
}

pub fn run(args: &VolumesArgs, context: &mut Context) -> Result<Exit, Error> {
    let settings = context.settings::<Settings>()?.settings;
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
            if in_use.is_empty() { Ok(Exit::Done) } else { Err(Error::VolumesInUse { in_use }) }
        }
        Some(VolumesCommand::Prune { age, .. }) => {
            let age = age.map_or(Duration::ZERO, |age| age.0);
            let is_old = |volume: &RunnerVolume| {
                let unused = Timestamp::now().duration_since(volume.used);
                unused.unsigned_abs() >= age && !unused.is_negative() || age.is_zero()
            };
            let owners = jobs::owners_of_volumes(&settings.store)?.into_iter().collect();
            remove(&settings, &owners, is_old, context)?;
            Ok(Exit::Done)
        }
    }
}

/// Identifies a volume in the store: its owner and its name.
type Key = (String, String);

fn key(volume: &RunnerVolume) -> Key {
    (volume.owner.clone(), volume.name.clone())
}

fn list(volumes: &[RunnerVolume], context: &mut Context) -> Result<Exit, Error> {
    if context.is_json() {
        context.json(&volumes)?;
        return Ok(Exit::Done);
    }
    let row = |volume: &RunnerVolume| {
        [
            volume.name.clone(),
            runner(volume),
            human(volume.size_bytes),
            ago(volume.used),
            users(volume),
        ]
    };
    let rows: Vec<_> = volumes.iter().map(row).collect();
    table::write(["VOLUME", "RUNNER", "SIZE", "USED", "CONTAINERS"], &rows, context)?;
    let all = volumes.iter().map(|volume| volume.size_bytes).sum();
    context.note(&format!("{}, {} on disk", counted(volumes.len(), "volume"), human(all)));
    Ok(Exit::Done)
}

/// Removes the volumes of these owners that are selected. Returns those that containers have, as messages name
/// them.
fn remove(
    settings: &Settings,
    owners: &BTreeSet<String>,
    is_selected: impl Fn(&RunnerVolume) -> bool + Sync,
    context: &mut Context,
) -> Result<Vec<String>, Error> {
    let (mut removed, mut in_use, mut problems) = (Vec::new(), Vec::new(), Vec::new());
    let result = owners.iter().try_for_each(|owner| {
        let all = jobs::remove_volumes(&settings.store, owner, &is_selected)?;
        removed.extend(all.removed);
        in_use.extend(all.in_use);
        problems.extend(all.problems);
        Ok::<_, Error>(())
    });
    // Whatever went wrong, these are gone.
    for problem in problems {
        context.note(&problem);
    }
    if context.is_json() {
        context.json(&removed)?;
    } else {
        for volume in &removed {
            let size = human(volume.size_bytes);
            context.line(format!("removed {} of {} ({size})", volume.name, runner(volume)))?;
        }
    }
    result?;
    let named = |volume: &RunnerVolume| {
        format!("{} of {} by {}", volume.name, runner(volume), users(volume))
    };
    Ok(in_use.iter().map(named).collect())
}

/// Returns the volumes that these names mean.
fn choose(volumes: &[RunnerVolume], names: &[String]) -> Result<BTreeSet<Key>, Error> {
    let (mut chosen, mut missing) = (BTreeSet::new(), Vec::new());
    for name in names {
        let found: Vec<_> = volumes.iter().filter(|volume| is_named(volume, name)).collect();
        match found[..] {
            [] => missing.push(name.clone()),
            [volume] => drop(chosen.insert(key(volume))),
            _ => {
                let choices = found.iter().map(|volume| choice(volume)).collect();
                return Err(Error::AmbiguousVolume { name: name.clone(), choices });
            }
        }
    }
    // All names are checked before anything is removed.
    if missing.is_empty() { Ok(chosen) } else { Err(Error::NoSuchVolume { missing }) }
}

fn is_named(volume: &RunnerVolume, name: &str) -> bool {
    // Names of volumes have no slash, those of runners may.
    match name.rsplit_once('/') {
        None => volume.name == name,
        Some((runner, name)) => {
            let is_id = !runner.is_empty() && volume.owner.starts_with(runner);
            volume.name == name && (is_id || volume.runner.as_deref() == Some(runner))
        }
    }
}

/// Returns a name that means this volume alone, and where its runner is.
fn choice(volume: &RunnerVolume) -> String {
    let name = format!("{}/{}", short(&volume.owner), volume.name);
    match (&volume.runner, &volume.work) {
        (Some(runner), Some(work)) => format!("{name} (runner {runner} in {})", work.display()),
        _ => name,
    }
}

/// Returns the name of a volume's runner, or the runner's id if no name is recorded.
fn runner(volume: &RunnerVolume) -> String {
    volume.runner.clone().unwrap_or_else(|| short(&volume.owner))
}

fn users(volume: &RunnerVolume) -> String {
    let named = volume.containers.iter().map(|user| match (&user.role, &user.name) {
        (Some(role), Some(name)) => format!("{role} {name} ({})", short(&user.id)),
        _ => short(&user.id),
    });
    named.collect::<Vec<_>>().join(", ")
}

fn short(id: &str) -> String {
    id.chars().take(12).collect()
}
