//! Names of images and containers for shell completion.
//!
//! Only root can read the names of root's images and containers: other users get their own.

use clap_complete::engine::CompletionCandidate;
use oci_hooks_cli::completions::candidates;
use oci_hooks_engine_cli::settings_file::FileSettings as _;

use crate::jobs;
use crate::settings::HookFileSettings;

/// Returns the references of the images in the store.
pub fn images() -> Vec<CompletionCandidate> {
    let Ok(loaded) = HookFileSettings::load(None) else { return Vec::new() };
    // Listing does not create a store.
    if !loaded.settings.store.root.exists() {
        return Vec::new();
    }
    let store = loaded.settings.host().store();
    let images = store.ok().and_then(|store| store.images().ok()).unwrap_or_default();
    candidates(images.into_iter().map(|image| image.reference.to_string()))
}

/// Returns the names of the volumes.
pub fn volumes() -> Vec<CompletionCandidate> {
    let Ok(loaded) = HookFileSettings::load(None) else { return Vec::new() };
    let (volumes, _) = jobs::volumes(&loaded.settings.store).unwrap_or_default();
    candidates(volumes.into_iter().map(|volume| volume.name))
}

/// Returns the names and ids of the containers.
pub fn containers() -> Vec<CompletionCandidate> {
    let Ok(loaded) = HookFileSettings::load(None) else { return Vec::new() };
    let settings = loaded.settings;
    let stores = jobs::of(&settings.store).stores().unwrap_or_default();
    let engines = stores
        .iter()
        .filter_map(|store| settings.with_store(store).host().into_existing_engine().ok());
    let records = engines.flat_map(|engine| engine.containers().unwrap_or_default());
    candidates(records.flat_map(|record| [record.name, record.id]))
}
