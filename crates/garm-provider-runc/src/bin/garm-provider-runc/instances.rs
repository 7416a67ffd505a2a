//! `garm-provider-runc instances`.

use std::collections::BTreeSet;

use clap::Args;
use clap_complete::engine::CompletionCandidate;
use garm_provider_runc::record::{
    ControllerRecords, InstanceFiles, InstanceRecord, recorded_controllers,
};
use garm_provider_runc::{
    FoundInstance, InstanceProcesses, InstanceStatus, ProviderError, controllers, find_all,
    instance,
};
use jiff::Timestamp;
use oci_hooks_cli::completions::candidates;
use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_cli::table::{self, format_age};
use oci_hooks_engine_cli::settings_file::{self, FileSettings as _};
use oci_hooks_files::error::chain;
use oci_hooks_files::quantity::format_count;
use serde::Serialize;

use crate::backend::InstanceBackend;
use crate::error::AdminError;
use crate::settings::GarmFileSettings;

/// List the instances of all pools
#[derive(Debug, Args)]
pub struct InstancesArgs {}

/// An instance in the output of `instances --format json`.
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
    status: InstanceStatus,
    fault: Option<String>,
}

impl InstanceEntry {
    fn new(
        processes: &InstanceProcesses,
        files: &InstanceFiles,
        record: InstanceRecord,
    ) -> Result<Self, ProviderError> {
        let instance = instance(processes, files, record.clone())?;
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
            InstanceStatus::Running => "running",
            InstanceStatus::Stopped => "stopped",
            InstanceStatus::Error => "error",
        };
        match &self.fault {
            Some(fault) => format!("{status}: {fault}"),
            None => status.to_owned(),
        }
    }
}

pub fn run(_: &InstancesArgs, context: &mut CliContext) -> Result<CliExit, AdminError> {
    let mut instances = Vec::new();
    InstanceBackend::of(settings_file::load::<GarmFileSettings>(context)?.settings).with_access(
        |run, access| {
            for records in controllers(run, access)? {
                for FoundInstance { name, files, record, error } in find_all(&records, access)? {
                    if let Some(error) = &error {
                        context.note(&chain(error));
                    }
                    if let Some(record) = record {
                        let processes = access.processes(records.controller(), &name)?;
                        instances.push(InstanceEntry::new(&processes, &files, record)?);
                    }
                }
            }
            Ok::<_, AdminError>(())
        },
    )?;
    instances.sort_by_key(|instance| instance.created);
    if context.is_json() {
        context.json(&instances)?;
        return Ok(CliExit::Done);
    }
    let row = |instance: &InstanceEntry| {
        [
            instance.name.clone(),
            instance.controller.clone(),
            instance.pool.clone(),
            instance.image.clone(),
            instance.flavor.clone(),
            format_age(instance.created),
            instance.status(),
        ]
        .map(|cell| escape_control(&cell))
    };
    let rows: Vec<_> = instances.iter().map(row).collect();
    table::write(
        ["NAME", "CONTROLLER", "POOL", "IMAGE", "FLAVOR", "CREATED", "STATUS"],
        &rows,
        context,
    )?;
    let running =
        instances.iter().filter(|instance| instance.status == InstanceStatus::Running).count();
    context.note(&format!("{}, {running} running", format_count(instances.len(), "instance")));
    Ok(CliExit::Done)
}

/// Replaces control characters in text from users of GARM, for the terminal.
pub fn escape_control(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Returns the names of all instances, for shell completion.
pub fn names() -> Vec<CompletionCandidate> {
    candidates(all_records().into_iter().flat_map(|records| records.names().unwrap_or_default()))
}

/// Returns the ids of all controllers, for shell completion.
pub fn controller_ids() -> Vec<CompletionCandidate> {
    candidates(all_records().into_iter().map(|records| records.controller().to_owned()))
}

/// Returns the pools of all instances, for shell completion.
pub fn pools() -> Vec<CompletionCandidate> {
    let pools = all_records().into_iter().flat_map(|records| {
        let files = records.names().unwrap_or_default().into_iter();
        let files = files.filter_map(move |name| records.files(&name));
        files.filter_map(|files| Some(files.record().ok()??.pool))
    });
    candidates(pools.collect::<BTreeSet<_>>())
}

fn all_records() -> Vec<ControllerRecords> {
    let Ok(loaded) = GarmFileSettings::load(None) else { return Vec::new() };
    recorded_controllers(&loaded.settings.store.run).unwrap_or_default()
}
