//! A runner that writes down what it was given, and whose job is any shell script.
//!
//! GARM's part hands the job over where the real one gets its own from the forge: in `.runner`, or
//! in the registration token.

use super::super::images::{Layer, Tree};

const RUN: &str = include_str!("runner/run.sh");
const CONFIG: &str = include_str!("runner/config.sh");
const LISTENER: &str = include_str!("runner/listener.sh");
const DEPENDENCIES: &str = include_str!("runner/installdependencies.sh");

/// Gitea's runner.
pub(crate) const ACT_RUNNER: &str = include_str!("runner/act_runner.sh");

/// Puts the runner into a directory, which is there; further text is run before the listener does
/// anything.
pub(crate) fn fill(tree: &mut Tree, directory: &str, before: &str) {
    tree.script(&format!("{directory}run.sh"), RUN);
    tree.script(&format!("{directory}config.sh"), CONFIG);
    tree.directory(&format!("{directory}bin"), 0o755);
    let listener = LISTENER.replace("# before\n", before);
    tree.script(&format!("{directory}bin/Runner.Listener"), &listener);
    tree.script(&format!("{directory}bin/installdependencies.sh"), DEPENDENCIES);
    tree.directory(&format!("{directory}externals"), 0o755);
    tree.file(&format!("{directory}externals/node20"), 0o755, "");
}

/// Returns Gitea's runner as it was before it took a token from a file or a variable.
pub(super) fn old_act_runner() -> String {
    let mut parts = ACT_RUNNER.split("# new\n");
    let first = parts.next().unwrap_or_default().to_owned();
    // Of each part that is new, the first line is what is.
    parts.fold(first, |text, part| text + part.split_once('\n').map_or("", |(_, rest)| rest))
}

/// Returns the archive that is downloaded.
pub(crate) fn archive(before: &str) -> Vec<u8> {
    Layer::new(|tree| fill(tree, "", before)).blob
}

/// Runs before the listener of a runner that needs a library that no image has.
pub(crate) const NEEDS_LIBRARY: &str =
    "[ -e /usr/lib/libicu ] || { echo 'libicu is missing' >&2; exit 134; }\n";
