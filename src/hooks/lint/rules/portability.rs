//! OH501–OH503: what other consumers make of a file.

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

pub static WHOLE_MATCH: Rule = Rule {
    code: "OH502",
    name: "whole-match",
    severity: Note,
    rejects: false,
    summary: "a pattern that Sarus matches against the whole text",
    explanation: "\
podman and CRI-O search for a pattern; Sarus asks that the whole text match it. A pattern that is not
anchored at both ends, such as /bash$, means something else there: with .*/bash$ both agree. This is a
warning for Sarus, and a note for others only if they are asked to agree with it.",
    bad: Example::HookFor(
        "sarus",
        r#"{
  "version": "1.0.0",
  "hook": {"path": "/usr/bin/gpu-hook"},
  "when": {"commands": ["/bash$"]},
  "stages": ["createRuntime"]
}"#,
    ),
    good: Example::HookFor(
        "sarus",
        r#"{
  "version": "1.0.0",
  "hook": {"path": "/usr/bin/gpu-hook"},
  "when": {"commands": ["^.*/bash$"]},
  "stages": ["createRuntime"]
}"#,
    ),
    fix: FixPolicy::Manual("which of the two meanings is meant is not known"),
};

pub static NOT_PORTABLE: Rule = Rule {
    code: "OH503",
    name: "not-portable",
    severity: Note,
    rejects: false,
    summary: "a file that another consumer rejects",
    explanation: "\
Sarus checks hook files by a schema that is stricter than what podman reads: version 1.0.0 only, no unknown
keys, at least one condition, an absolute path, a timeout of at least one second. Reported if Sarus is named
as another consumer.",
    bad: Example::HookFor(
        "podman and sarus",
        r#"{
  "version": "1.0.0",
  "hook": {"path": "/usr/bin/gpu-hook"},
  "stages": ["createRuntime"]
}"#,
    ),
    good: GOOD,
    fix: FixPolicy::Manual("what is missing is not known"),
};
