//! Names of hooks, for shells that complete them.
//!
//! Options that stand beside them on the command line are not known here: they are the names in the
//! directories that podman reads.

use std::fs;

use clap_complete::engine::CompletionCandidate;
use oci_hooks::hooks::consumer::PODMAN;
use oci_hooks::program::completions::candidates;

use crate::directories::Directories;

/// Returns the names of hook files that are in force.
pub(crate) fn active() -> Vec<CompletionCandidate> {
    candidates(file_names(".json"))
}

/// Returns the names of hook files that are disabled.
pub(crate) fn disabled() -> Vec<CompletionCandidate> {
    candidates(file_names(".json.disabled"))
}

/// Returns the names of files with this end, without it.
fn file_names(end: &str) -> impl Iterator<Item = String> {
    let configured = Directories::configured(&PODMAN).map(|directories| directories.dirs);
    let dirs = configured.unwrap_or_default().into_iter();
    let entries = dirs.flat_map(|dir| fs::read_dir(dir).into_iter().flatten().flatten());
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(move |name| Some(name.strip_suffix(end)?.to_owned()))
}
