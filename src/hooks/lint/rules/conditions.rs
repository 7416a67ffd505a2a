//! OH201–OH206: conditions.

use super::refused::{GOOD, GOOD_ANNOTATION};
use super::{Example, FixPolicy, Rule};
use crate::hooks::lint::Severity::Warning;

pub static NO_CONDITION: Rule = Rule {
    code: "OH201",
    name: "no-condition",
    severity: Warning,
    rejects: false,
    summary: "no condition, so the hook never runs",
    explanation: "\
A hook applies if its conditions hold, and none hold where there are none: without \"when\", or with an
empty one, the hook is loaded and never injected, with nothing said. A hook for all containers needs
\"always\": true. On purpose this is the way to turn off a hook of the same file name in a directory of lower
precedence; there it is not reported.",
    bad: Example::Hook(
        r#"{
  "version": "1.0.0",
  "hook": {"path": "/usr/bin/gpu-hook"},
  "when": {},
  "stages": ["createRuntime"]
}"#,
    ),
    good: GOOD,
    fix: FixPolicy::Manual("for which containers the hook is meant is not known"),
};

pub static ALWAYS_FALSE: Rule = Rule {
    code: "OH202",
    name: "always-false",
    severity: Warning,
    rejects: false,
    summary: "`always: false`, so the hook never runs",
    explanation: "\
In version 1.0.0 all conditions must hold, and \"always\": false never does: the other conditions are not
even looked at. It does not mean \"not always, but if the rest holds\"; that is said by leaving it out.",
    bad: Example::Hook(
        r#"{
  "version": "1.0.0",
  "hook": {"path": "/usr/bin/gpu-hook"},
  "when": {"always": false, "annotations": {"^com\\.example\\.gpu$": "^all$"}},
  "stages": ["createRuntime"]
}"#,
    ),
    good: GOOD_ANNOTATION,
    fix: FixPolicy::Manual("without it the hook would run, which may not be wanted"),
};

pub static BIND_MOUNTS_FALSE: Rule = Rule {
    code: "OH203",
    name: "bind-mounts-false",
    severity: Warning,
    rejects: false,
    summary: "`hasBindMounts: false`, which does not mean \"has none\"",
    explanation: "\
For podman and CRI-O \"hasBindMounts\": false is a condition that never holds, so that a hook of version
1.0.0 with it never runs; in 0.1.0 it has no effect. There is no way to ask for containers without bind
mounts.",
    bad: Example::Hook(
        r#"{
  "version": "1.0.0",
  "hook": {"path": "/usr/bin/gpu-hook"},
  "when": {"hasBindMounts": false},
  "stages": ["createRuntime"]
}"#,
    ),
    good: Example::Hook(
        r#"{
  "version": "1.0.0",
  "hook": {"path": "/usr/bin/gpu-hook"},
  "when": {"hasBindMounts": true},
  "stages": ["createRuntime"]
}"#,
    ),
    fix: FixPolicy::Manual("without it the hook would run, which may not be wanted"),
};

pub static REDUNDANT_ALWAYS: Rule = Rule {
    code: "OH204",
    name: "redundant-always",
    severity: Warning,
    rejects: false,
    summary: "`always: true` next to other conditions, which still must hold",
    explanation: "\
All conditions of version 1.0.0 must hold: \"always\": true adds nothing to the others, and does not make
the hook run if they fail. With \"commands\" it even makes things worse: a container without a command cannot
be started then. If the other conditions match everything anyway, this is a note.",
    bad: Example::Hook(
        r#"{
  "version": "1.0.0",
  "hook": {"path": "/usr/bin/gpu-hook"},
  "when": {"always": true, "annotations": {"^com\\.example\\.gpu$": "^all$"}},
  "stages": ["createRuntime"]
}"#,
    ),
    good: GOOD_ANNOTATION,
    fix: FixPolicy::Manual("either `always` or the other conditions are too much"),
};

pub static UNREACHABLE_COMMANDS: Rule = Rule {
    code: "OH205",
    name: "unreachable-commands",
    severity: Warning,
    rejects: false,
    summary: "command patterns that have no effect",
    explanation: "\
\"commands\" is looked at last. After a condition that never holds (\"always\": false, \"hasBindMounts\":
false) it is not looked at any more, whatever it says; and a pattern that cannot match any program name,
such as one with text after $ or before ^, never matches.",
    bad: Example::Hook(
        r#"{
  "version": "1.0.0",
  "hook": {"path": "/usr/bin/gpu-hook"},
  "when": {"always": false, "commands": ["/bash$"]},
  "stages": ["createRuntime"]
}"#,
    ),
    good: Example::Hook(
        r#"{
  "version": "1.0.0",
  "hook": {"path": "/usr/bin/gpu-hook"},
  "when": {"commands": ["/bash$"]},
  "stages": ["createRuntime"]
}"#,
    ),
    fix: FixPolicy::Manual("the condition before it or the pattern may be the mistake"),
};

pub static COMMAND_LINE_PATTERN: Rule = Rule {
    code: "OH206",
    name: "command-line-pattern",
    severity: Warning,
    rejects: false,
    summary: "a command pattern with a space in it",
    explanation: "\
\"commands\" is matched against the first element of process.args alone: the program, without its
arguments. A pattern for a whole command line such as ^nginx -g never matches, unless a program has a
space in its name.",
    bad: Example::Hook(
        r#"{
  "version": "1.0.0",
  "hook": {"path": "/usr/bin/gpu-hook"},
  "when": {"commands": ["^/usr/bin/python3 -m train"]},
  "stages": ["createRuntime"]
}"#,
    ),
    good: Example::Hook(
        r#"{
  "version": "1.0.0",
  "hook": {"path": "/usr/bin/gpu-hook"},
  "when": {"commands": ["^/usr/bin/python3$"]},
  "stages": ["createRuntime"]
}"#,
    ),
    fix: FixPolicy::Manual("arguments cannot be asked for"),
};
