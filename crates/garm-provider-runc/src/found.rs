//! Search for instances, by their records and by their containers.
//!
//! A record may be missing or unreadable while its instance is running. The container's own record names the instance and
//! its controller, and the annotations of its bundle have the rest.

use std::collections::BTreeSet;
use std::path::Path;

use oci_hooks_engine::container::{ContainerError, RecordDirectory, container_ids};
use oci_hooks_files::fs::read_bounded;
use serde_json::Value;

use super::access::InstanceAccess;
use super::error::ProviderError;
use super::record::{
    ControllerRecords, InstanceFiles, InstanceRecord, NETWORK, OWNER, RunningDetails,
    recorded_controllers,
};

/// Prefix of this provider's annotations.
pub(super) const ANNOTATION: &str = "io.github.cloudbase.garm.";

/// Size limit of a bundle's configuration, larger than any that this program writes.
const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// An instance of a controller, found by its record or by its container.
#[derive(Debug)]
pub struct FoundInstance {
    pub name: String,
    pub files: InstanceFiles,
    /// The record, or else one rebuilt from the container. None if the instance has only other files.
    pub record: Option<InstanceRecord>,
    /// Error of an unreadable record.
    pub error: Option<ContainerError>,
}

/// A filter of instances: returns whether one is wanted, by its controller id and name.
pub type InstanceFilter<'a> = &'a dyn Fn(&str, &str) -> bool;

/// Returns all instances of a controller: first those with neither a readable record nor a
/// container, then the others, oldest first.
pub fn find_all(
    records: &ControllerRecords,
    access: &dyn InstanceAccess,
) -> Result<Vec<FoundInstance>, ProviderError> {
    let mut all = Vec::new();
    for name in records.recorded_names()? {
        all.extend(read(records, &name)?);
    }
    let recorded: BTreeSet<_> =
        all.iter().filter(|it| it.record.is_some()).map(|it| it.name.clone()).collect();
    let is_wanted =
        |controller: &str, name: &str| records.are_of(controller) && !recorded.contains(name);
    for record in access.containers(&is_wanted)? {
        match all.iter_mut().find(|it| it.name == record.name) {
            // With two containers of one name, either stands for both: they are removed together.
            Some(found) => found.record = found.record.take().or(Some(record)),
            // The instance may have been created meanwhile, with a record.
            None => all.extend(
                read(records, &record.name)?
                    .map(|found| FoundInstance { record: found.record.or(Some(record)), ..found }),
            ),
        }
    }
    all.sort_by_key(|it| it.record.as_ref().map(|record| record.created));
    Ok(all)
}

/// Returns an instance of a controller, running or not; none if there is neither a record nor a container.
pub(super) fn find(
    records: &ControllerRecords,
    access: &dyn InstanceAccess,
    name: &str,
) -> Result<Option<FoundInstance>, ProviderError> {
    let Some(mut found) = read(records, name)? else { return Ok(None) };
    if found.record.is_none() {
        let is_wanted = |controller: &str, it: &str| records.are_of(controller) && it == name;
        found.record = access.containers(&is_wanted)?.pop();
    }
    let is_there = found.record.is_some() || found.error.is_some();
    Ok(is_there.then_some(found))
}

/// Reads the record of an instance; returns none if the name is invalid.
fn read(records: &ControllerRecords, name: &str) -> Result<Option<FoundInstance>, ContainerError> {
    let Some(files) = records.files(name) else { return Ok(None) };
    let (record, error) = match files.record() {
        Err(error) if error.is_unreadable_record() => (None, Some(error)),
        record => (record?, None),
    };
    Ok(Some(FoundInstance { name: name.to_owned(), files, record, error }))
}

/// Returns the records of all controllers that have records or containers.
pub fn controllers(
    run: &Path,
    access: &dyn InstanceAccess,
) -> Result<Vec<ControllerRecords>, ProviderError> {
    let mut all = recorded_controllers(run)?;
    let is_wanted =
        |controller: &str, _: &str| !all.iter().any(|records| records.are_of(controller));
    let others = access.containers(&is_wanted)?.into_iter().map(|record| record.controller);
    let others: BTreeSet<_> = others.collect();
    all.extend(others.iter().map(|controller| ControllerRecords::of(run, controller)));
    Ok(all)
}

/// Returns the records of instances, rebuilt from the containers below the run directory of an engine.
pub fn rebuild_records(
    run: &Path,
    is_wanted: InstanceFilter<'_>,
) -> Result<Vec<InstanceRecord>, ContainerError> {
    let ids = container_ids(run)?;
    Ok(ids.iter().filter_map(|id| rebuild_record(run, id, is_wanted)).collect())
}

/// Returns the records of one instance, rebuilt as by [`rebuild_records`]. Reads no containers of other instances, of
/// which there may be hundreds.
pub(super) fn rebuild_records_of(
    run: &Path,
    records: &ControllerRecords,
    name: &str,
) -> Result<Vec<InstanceRecord>, ContainerError> {
    let is_wanted = |controller: &str, it: &str| records.are_of(controller) && it == name;
    let mut ids = container_ids(run)?;
    ids.retain(|id| records.is_container_of(name, id));
    Ok(ids.iter().filter_map(|id| rebuild_record(run, id, &is_wanted)).collect())
}

fn rebuild_record(run: &Path, id: &str, is_wanted: InstanceFilter<'_>) -> Option<InstanceRecord> {
    let directory = RecordDirectory::of(run, id);
    let container = directory.read().ok();
    if let Some(container) = &container {
        // Other containers need not be read further.
        let controller = container.owner.strip_prefix(OWNER)?;
        if !is_wanted(controller, &container.name) {
            return None;
        }
    }
    let config = read_bounded(&directory.bundle().join("config.json"), MAX_CONFIG_BYTES).ok();
    let config: Value = serde_json::from_slice(&config.unwrap_or_default()).unwrap_or_default();
    let annotation = |key: &str| {
        let text = config.get("annotations")?.get(format!("{ANNOTATION}{key}"))?.as_str()?;
        Some(text.to_owned())
    };
    let text = |key: &str| annotation(key).unwrap_or_default();
    let record = InstanceRecord {
        pool: text("pool"),
        image: text("image"),
        flavor: text("flavor"),
        arch: text("arch"),
        ..InstanceRecord::default()
    };
    let Some(container) = container else {
        let (controller, name) = (annotation("controller")?, annotation("instance")?);
        return is_wanted(&controller, &name).then(|| InstanceRecord {
            name,
            controller,
            network: format!("{NETWORK}{}", id.get(..16).unwrap_or(id)),
            container: id.to_owned(),
            info: Some(RunningDetails::default()),
            ..record
        });
    };
    Some(InstanceRecord {
        controller: container.owner.trim_start_matches(OWNER).to_owned(),
        name: container.name,
        network: container.network.unwrap_or_default(),
        container: container.id,
        created: container.created,
        image: annotation("image").unwrap_or(container.image),
        info: container.process.map(|_| RunningDetails::default()),
        ..record
    })
}
