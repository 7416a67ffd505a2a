//! Removing what is left over, of all controllers: what the admin does, not GARM.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use super::error::ProviderError;
use super::record::{Claim, Files, Outcome, controllers};
use super::runner::{PrunedRunners, Runners};
use super::settings::Settings;
use super::{logs, provider, remove};
use crate::container::Engine;
use crate::network::{NetworkOptions, remove_trial};

/// How long it may take from the moment that a runner is found until it is known who has it.
const BETWEEN: Duration = Duration::from_secs(60);

/// What was removed.
#[derive(Debug, Default)]
pub struct Pruned {
    /// The names of instances.
    pub instances: Vec<String>,
    /// Things of containers of an earlier boot.
    pub strays: usize,
    /// Logs.
    pub logs: usize,
    /// Runners that no instance has.
    pub runners: PrunedRunners,
}

/// Removes instances whose creation was interrupted, and those that ended so long ago; what is left
/// of containers of an earlier boot; old logs; and runners that nothing was made with for so long.
///
/// GARM deletes its instances itself: what is found here it has given up or was killed over.
pub fn prune(
    engine: &Engine,
    network: &NetworkOptions,
    settings: &Settings,
    ended_for: Duration,
) -> Result<Pruned, ProviderError> {
    let mut pruned = Pruned::default();
    let mut runners_in_use = BTreeSet::new();
    for records in controllers(&engine.run)? {
        for claim in records.claims()? {
            let Some(files) = records.files(&claim.name) else { continue };
            if !is_over(engine, &files, &claim, ended_for)? {
                runners_in_use.extend(claim.layer);
                continue;
            }
            let lock = files.lock()?;
            // It may have been made to the end since it was read, or be another one by now.
            match files.claim()? {
                Some(claim) if is_over(engine, &files, &claim, ended_for)? => {
                    remove::remove(engine, network, &files, &claim)?;
                    files.forget(lock)?;
                    pruned.instances.push(claim.name);
                }
                Some(claim) => runners_in_use.extend(claim.layer),
                None => files.forget(lock)?,
            }
        }
    }
    remove_trial(network)?;
    pruned.strays = engine.remove_strays()?;
    pruned.logs = logs::prune(&settings.log.directory, settings.log.keep_age.0)?;
    pruned.runners = Runners::of(&engine.disk).prune(&runners_in_use, ended_for.max(BETWEEN))?;
    Ok(pruned)
}

/// Tells if nobody will miss an instance.
fn is_over(
    engine: &Engine,
    files: &Files,
    claim: &Claim,
    ended_for: Duration,
) -> Result<bool, ProviderError> {
    // Without its supervisor it was not made to the end.
    if claim.made.is_none() || files.supervisor()?.is_none() {
        return Ok(!claim.maker.is_some_and(|maker| maker.is_running()));
    }
    if provider::is_attended(files, claim)? && provider::is_running(engine, claim) {
        return Ok(false);
    }
    let ended = match files.outcome()? {
        Some(Outcome::Ended { at, .. } | Outcome::Failed { at, .. }) => at,
        // Its supervisor was killed.
        None => claim.created,
    };
    let since = Timestamp::now().duration_since(ended);
    Ok(since.unsigned_abs() >= ended_for && !since.is_negative())
}
