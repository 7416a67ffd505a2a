//! A runner that records its arguments, and whose job is a shell script.
//!
//! The fake GARM passes the job in `.runner` or in the registration token; the real runner gets its job from
//! the forge.

use super::super::images::{LayerArchive, TestLayer};

const RUN: &str = include_str!("runner/run.sh");
const CONFIG: &str = include_str!("runner/config.sh");
const LISTENER: &str = include_str!("runner/listener.sh");
const DEPENDENCIES: &str = include_str!("runner/installdependencies.sh");

/// Gitea's runner.
pub const ACT_RUNNER: &str = include_str!("runner/act_runner.sh");

/// Adds the runner to an existing directory. The script `before` runs before the listener.
pub fn fill(tree: &mut LayerArchive, directory: &str, before: &str) {
    tree.script(&format!("{directory}run.sh"), RUN);
    tree.script(&format!("{directory}config.sh"), CONFIG);
    tree.directory(&format!("{directory}bin"), 0o755);
    let listener = LISTENER.replace("# before\n", before);
    tree.script(&format!("{directory}bin/Runner.Listener"), &listener);
    tree.script(&format!("{directory}bin/installdependencies.sh"), DEPENDENCIES);
    tree.directory(&format!("{directory}externals"), 0o755);
    tree.file(&format!("{directory}externals/node20"), 0o755, "");
}

/// Returns the old version of Gitea's runner, which takes no token from a file or an environment variable.
pub fn old_act_runner() -> String {
    let mut parts = ACT_RUNNER.split("# new\n");
    let first = parts.next().unwrap_or_default().to_owned();
    // In each new part only the first line is new.
    parts.fold(first, |text, part| text + part.split_once('\n').map_or("", |(_, rest)| rest))
}

/// Returns the runner archive for download.
pub fn archive(before: &str) -> Vec<u8> {
    TestLayer::new(|tree| fill(tree, "", before)).blob
}

/// Script that runs before the listener and fails because a library is missing in every image.
pub const NEEDS_LIBRARY: &str =
    "[ -e /usr/lib/libicu ] || { echo 'libicu is missing' >&2; exit 134; }\n";
