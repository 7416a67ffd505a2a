//! Removing what is left over, of all controllers: what the admin does, not GARM.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use super::error::ProviderError;
use super::record::{Claim, Claims, Files, NETWORK, Outcome, Records, controllers};
use super::runner::{PrunedRunners, Runners};
use super::settings::Settings;
use super::{logs, provider, remove};
use crate::container::{ContainerError, Engine};
use crate::network::{Network, NetworkOptions, remove_trial};
use crate::sys::error::chain;

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
    /// Which records cannot be read, and why. What is damaged is removed unless it is in use, what another
    /// version may have written is not.
    pub unreadable: Vec<String>,
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
    // Before the claims, which are there before their networks are.
    let networks = Network::ids(network)?;
    let mut sweep = Sweep::new(engine, network, ended_for);
    for records in controllers(&engine.run)? {
        let Claims { known, unreadable } = records.claims()?;
        for (name, error) in unreadable {
            sweep.unreadable(&records, name, &error)?;
        }
        for claim in known {
            sweep.known(&records, claim)?;
        }
    }
    remove_trial(network)?;
    let Sweep { mut pruned, runners_in_use, named, knows_all, .. } = sweep;
    pruned.strays = engine.remove_strays()?;
    pruned.logs = logs::prune(&settings.log.directory, settings.log.keep_age.0)?;
    pruned.unreadable.extend(engine.unreadable()?.iter().map(|error| chain(error)));
    let broken = Network::unreadable(network)?;
    pruned.unreadable.extend(broken.iter().map(|(_, error)| chain(error)));
    // What nobody can tell the owner of may be in use.
    if knows_all {
        let runners = Runners::of(engine);
        pruned.runners = runners.prune(&runners_in_use, ended_for.max(BETWEEN))?;
        for id in networks.iter().filter(|id| id.starts_with(NETWORK) && !named.contains(*id)) {
            Network::remove_id(network, id)?;
        }
    }
    Ok(pruned)
}

/// A look at all instances, and what came of it so far.
struct Sweep<'a> {
    engine: &'a Engine,
    network: &'a NetworkOptions,
    ended_for: Duration,
    pruned: Pruned,
    runners_in_use: BTreeSet<String>,
    /// The networks of claims.
    named: BTreeSet<String>,
    /// Whether all claims that stay can be read.
    knows_all: bool,
}

impl<'a> Sweep<'a> {
    fn new(engine: &'a Engine, network: &'a NetworkOptions, ended_for: Duration) -> Self {
        Sweep {
            engine,
            network,
            ended_for,
            pruned: Pruned::default(),
            runners_in_use: BTreeSet::new(),
            named: BTreeSet::new(),
            knows_all: true,
        }
    }

    /// Removes an instance whose claim is damaged, unless it runs.
    fn unreadable(
        &mut self,
        records: &Records,
        name: String,
        error: &ContainerError,
    ) -> Result<(), ProviderError> {
        self.pruned.unreadable.push(chain(error));
        let claim = records.unclaimed(self.engine, &name)?;
        let runs = claim.as_ref().is_some_and(|claim| provider::is_running(self.engine, claim));
        let files = records.files(&name).filter(|_| !runs && !error.is_of_other_version());
        let Some(files) = files else {
            self.knows_all = false;
            return Ok(());
        };
        let lock = files.lock()?;
        // It may be another one by now.
        if files.claim().is_err() {
            if let Some(claim) = claim {
                remove::remove(self.engine, self.network, &files, &claim)?;
            }
            files.remove()?;
            files.forget(lock)?;
            self.pruned.instances.push(name);
        }
        Ok(())
    }

    /// Removes an instance if it is over.
    fn known(&mut self, records: &Records, claim: Claim) -> Result<(), ProviderError> {
        self.named.insert(claim.network.clone());
        let Some(files) = records.files(&claim.name) else { return Ok(()) };
        let is_over = |claim: &Claim| is_over(self.engine, &files, claim, self.ended_for);
        if !is_over(&claim)? {
            self.runners_in_use.extend(claim.layer);
            return Ok(());
        }
        let lock = files.lock()?;
        // It may have been made to the end since it was read, or be another one by now.
        match files.claim()? {
            Some(claim) if is_over(&claim)? => {
                remove::remove(self.engine, self.network, &files, &claim)?;
                files.forget(lock)?;
                self.pruned.instances.push(claim.name);
            }
            Some(claim) => self.runners_in_use.extend(claim.layer),
            None => files.forget(lock)?,
        }
        Ok(())
    }
}

/// Tells if nobody will miss an instance.
fn is_over(
    engine: &Engine,
    files: &Files,
    claim: &Claim,
    ended_for: Duration,
) -> Result<bool, ProviderError> {
    let supervisor = match files.supervisor() {
        Err(error) if error.is_unreadable_record() => {
            return Ok(!provider::is_running(engine, claim));
        }
        supervisor => supervisor?,
    };
    // Without its supervisor it was not made to the end.
    if claim.made.is_none() || supervisor.is_none() {
        return Ok(!claim.maker.is_some_and(|maker| maker.is_running()));
    }
    if provider::is_attended(files, claim)? && provider::is_running(engine, claim) {
        return Ok(false);
    }
    let ended = match files.outcome() {
        Ok(Some(Outcome::Ended { at, .. } | Outcome::Failed { at, .. })) => at,
        Err(error) if !error.is_unreadable_record() => return Err(error.into()),
        // Its supervisor was killed, or nobody can read what it wrote.
        Ok(None) | Err(_) => claim.created,
    };
    let since = Timestamp::now().duration_since(ended);
    Ok(since.unsigned_abs() >= ended_for && !since.is_negative())
}
