//! Names of images and containers, for shells that complete them.
//!
//! Those of root are root's to read: other users get their own.

use clap_complete::engine::CompletionCandidate;
use oci_hooks::program::completions::candidates;
use oci_hooks::program::settings_file::FileSettings as _;

use crate::door;
use crate::settings::Settings;

/// Returns the references of the images in the store.
pub(crate) fn images() -> Vec<CompletionCandidate> {
    let Ok(loaded) = Settings::load(None) else { return Vec::new() };
    // Who looks makes no store.
    if !loaded.settings.store.root.exists() {
        return Vec::new();
    }
    let store = loaded.settings.host().store();
    let images = store.ok().and_then(|store| store.images().ok()).unwrap_or_default();
    candidates(images.into_iter().map(|image| image.reference.to_string()))
}

/// Returns the names of the volumes.
pub(crate) fn volumes() -> Vec<CompletionCandidate> {
    let Ok(loaded) = Settings::load(None) else { return Vec::new() };
    let (volumes, _) = door::volumes(&loaded.settings).unwrap_or_default();
    candidates(volumes.into_iter().map(|volume| volume.name))
}

/// Returns the names and ids of the containers.
pub(crate) fn containers() -> Vec<CompletionCandidate> {
    let Ok(loaded) = Settings::load(None) else { return Vec::new() };
    let jobs = door::of_all_jobs(&loaded.settings).unwrap_or_default();
    let engines = jobs.iter().filter_map(|settings| settings.host().existing().ok());
    let records = engines.flat_map(|engine| engine.containers().unwrap_or_default());
    candidates(records.flat_map(|record| [record.name, record.id]))
}
