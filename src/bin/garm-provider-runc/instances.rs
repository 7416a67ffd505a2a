//! `garm-provider-runc instances`.

use std::collections::BTreeSet;

use clap::Args;
use clap_complete::engine::CompletionCandidate;
use jiff::Timestamp;
use oci_hooks::garm::record::{Files, InstanceRecord, Records, controllers};
use oci_hooks::garm::{ProviderError, Site, Status, instance};
use oci_hooks::program::completions::candidates;
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::settings_file::FileSettings as _;
use oci_hooks::program::table::{self, ago};
use oci_hooks::sys::error::chain;
use oci_hooks::sys::quantity::counted;
use serde::Serialize;

use crate::backend::Backend;
use crate::error::Error;
use crate::settings::Settings;

/// List the instances of all pools
#[derive(Debug, Args)]
pub struct InstancesArgs {}

/// An instance, as `instances --format json` prints it.
#[derive(Serialize)]
struct InstanceEntry {
    name: String,
    controller: String,
    pool: String,
    image: String,
    flavor: String,
    arch: String,
    os_name: String,
    os_version: String,
    addresses: Vec<std::net::IpAddr>,
    container: String,
    created: Timestamp,
    status: Status,
    fault: Option<String>,
}

impl InstanceEntry {
    fn new(site: &Site, files: &Files, record: InstanceRecord) -> Result<Self, ProviderError> {
        let instance = instance(site, files, record.clone())?;
        Ok(InstanceEntry {
            name: record.name,
            controller: record.controller,
            pool: record.pool,
            image: record.image,
            flavor: record.flavor,
            arch: record.arch,
            os_name: instance.os_name,
            os_version: instance.os_version,
            addresses: instance.addresses,
            container: record.container,
            created: record.created,
            status: instance.status,
            fault: instance.fault,
        })
    }

    fn status(&self) -> String {
        let status = match self.status {
            Status::Running => "running",
            Status::Stopped => "stopped",
            Status::Error => "error",
            Status::Unknown => "unknown",
        };
        match &self.fault {
            Some(fault) => format!("{status}: {fault}"),
            None => status.to_owned(),
        }
    }
}

pub fn run(_: &InstancesArgs, context: &mut Context) -> Result<Exit, Error> {
    let mut instances = Vec::new();
    Backend::of(context.settings::<Settings>()?.settings).with_sites(|run, sites| {
        for records in controllers(run)? {
            let found = records.read_all()?;
            for (_, error) in &found.unreadable {
                context.note(&chain(error));
            }
            for record in found.known {
                if let Some(files) = records.files(&record.name) {
                    let site = sites.site(records.controller(), &record.name)?;
                    instances.push(InstanceEntry::new(&site, &files, record)?);
                }
            }
        }
        Ok::<_, Error>(())
    })?;
    instances.sort_by_key(|instance| instance.created);
    if context.is_json() {
        context.json(&instances)?;
        return Ok(Exit::Done);
    }
    let row = |instance: &InstanceEntry| {
        [
            instance.name.clone(),
            instance.controller.clone(),
            instance.pool.clone(),
            instance.image.clone(),
            instance.flavor.clone(),
            ago(instance.created),
            instance.status(),
        ]
        .map(|cell| shown(&cell))
    };
    let rows: Vec<_> = instances.iter().map(row).collect();
    table::write(
        ["NAME", "CONTROLLER", "POOL", "IMAGE", "FLAVOR", "CREATED", "STATUS"],
        &rows,
        context,
    )?;
    let running = instances.iter().filter(|instance| instance.status == Status::Running).count();
    context.note(&format!("{}, {running} running", counted(instances.len(), "instance")));
    Ok(Exit::Done)
}

/// Returns a text, most of which users of GARM chose, without what would change a terminal.
pub fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Returns the names of all instances, for shells that complete them.
pub fn names() -> Vec<CompletionCandidate> {
    candidates(all_records().into_iter().flat_map(|records| records.names().unwrap_or_default()))
}

/// Returns the ids of all controllers, for shells that complete them.
pub fn controller_ids() -> Vec<CompletionCandidate> {
    candidates(all_records().into_iter().map(|records| records.controller().to_owned()))
}

/// Returns the pools of all instances, for shells that complete them.
pub fn pools() -> Vec<CompletionCandidate> {
    let instances = all_records().into_iter().flat_map(|records| records.read_all());
    let pools = instances.flat_map(|instances| instances.known).map(|record| record.pool);
    candidates(pools.collect::<BTreeSet<_>>())
}

fn all_records() -> Vec<Records> {
    let Ok(loaded) = Settings::load(None) else { return Vec::new() };
    controllers(&loaded.settings.store.run).unwrap_or_default()
}
