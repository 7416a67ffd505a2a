//! OH501: what other consumers make of a file.

use super::refused::GOOD;
use super::{Example, FixPolicy, Rule};
use crate::hooks::lint::Severity::Note;

pub static STAGE_NOT_PORTABLE: Rule = Rule {
    code: "OH501",
    name: "stage-not-portable",
    severity: Note,
    rejects: false,
    summary: "a stage that other consumers of the directory reject",
    explanation: "\
Only podman knows precreate, and only when it runs containers. buildah and `podman build` read the same
directories and refuse to build while such a file is there; CRI-O and containerd's hook-injector refuse to
start. Put the file into a directory of its own, named by --hooks-dir or in containers.conf, on hosts that
also build.",
    bad: Example::Hook(
        r#"{
  "version": "1.0.0",
  "hook": {"path": "/usr/bin/gpu-hook"},
  "when": {"always": true},
  "stages": ["precreate"]
}"#,
    ),
    good: GOOD,
    fix: FixPolicy::Manual("no other stage can do what precreate does"),
};
