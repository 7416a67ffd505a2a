//! OH101–OH107: keys and text.

use super::refused::GOOD;
use super::{FixPolicy, LintRule, RuleExample};
use crate::hooks::lint::Severity::{Note, Warning};

pub static UNKNOWN_KEY: LintRule = LintRule {
    code: "OH101",
    name: "unknown-key",
    severity: Warning,
    rejects: false,
    summary: "an unknown key, which is ignored",
    explanation: "\
Unknown keys are ignored, so a misspelt one silently changes the meaning of a file: a misspelt condition
is no condition, and a hook without conditions never runs. Keys that start with an underscore, a dollar
sign or x- and \"comment\" are taken for remarks and not reported.",
    bad: hook_example!(hook: r#"{"path": "/usr/bin/gpu-hook", "timout": 5}"#),
    good: hook_example!(hook: r#"{"path": "/usr/bin/gpu-hook", "timeout": 5}"#),
    fix: FixPolicy::Automatic(
        "a key one or two letters away from one that is missing is corrected, if the file still loads \
         then; a key with another meaning, such as `args` in `when`, is not changed",
    ),
};

pub static KEY_CASE: LintRule = LintRule {
    code: "OH102",
    name: "key-case",
    severity: Warning,
    rejects: false,
    summary: "a key in upper or mixed case that Go accepts all the same",
    explanation: "\
Go compares keys without regard to case, so \"Stages\" works for podman and CRI-O. Editors that check the
schema reject it, and next to \"stages\" it silently replaces that value.",
    bad: RuleExample::Hook(
        r#"{
  "version": "1.0.0",
  "hook": {"path": "/usr/bin/gpu-hook"},
  "when": {"always": true},
  "Stages": ["createRuntime"]
}"#,
    ),
    good: GOOD,
    fix: FixPolicy::Automatic("the key is written as documented; Go reads both alike"),
};

pub static DUPLICATE_KEY: LintRule = LintRule {
    code: "OH103",
    name: "duplicate-key",
    severity: Warning,
    rejects: false,
    summary: "a key that occurs more than once in an object",
    explanation: "\
Go applies every occurrence in turn: of strings, numbers and lists the last one counts, objects such as
\"when\" are merged field by field. Other readers take the first, or reject the file. Conditions that were
meant as alternatives become one condition, or two that must both hold.",
    bad: hook_example!(when: r#"{"commands": ["/bash$"], "commands": ["/zsh$"]}"#),
    good: hook_example!(when: r#"{"commands": ["/bash$", "/zsh$"]}"#),
    fix: FixPolicy::Manual("which of them is meant is not known"),
};

pub static OLD_SCHEMA: LintRule = LintRule {
    code: "OH104",
    name: "old-schema",
    severity: Warning,
    rejects: false,
    summary: "a file of the old version 0.1.0",
    explanation: "\
Version 0.1.0 still works with podman and CRI-O but was replaced in 2018. In it one condition is enough
where 1.0.0 asks for all, annotation patterns are joined and match values of any key, and neither
environment nor timeout can be set. `oci-hooks migrate` converts such a file to 1.0.0.",
    bad: RuleExample::Hook(r#"{"hook": "/usr/bin/gpu-hook", "cmds": ["/bash$"], "stages": ["prestart"]}"#),
    good: hook_example!(when: r#"{"commands": ["/bash$"]}"#, stages: r#"["prestart"]"#),
    fix: FixPolicy::Manual("one old file may need several new ones: that is what `migrate` is for"),
};

pub static NULL_VALUE: LintRule = LintRule {
    code: "OH105",
    name: "null-value",
    severity: Warning,
    rejects: false,
    summary: "null where a value is expected",
    explanation: "\
Go reads null as nothing: a field stays as if it were not there, and in a list or as the pattern of an
annotation it becomes the empty string, or what an earlier duplicate left in its place. An empty pattern
matches everything.",
    bad: hook_example!(when: r#"{"annotations": {"^com\\.example\\.gpu$": null}}"#),
    good: hook_example!(when: r#"{"annotations": {"^com\\.example\\.gpu$": ".*"}}"#),
    fix: FixPolicy::Manual("what was to be there is not known"),
};

pub static INVALID_TEXT: LintRule = LintRule {
    code: "OH106",
    name: "invalid-text",
    severity: Warning,
    rejects: false,
    summary: "a string that is not valid Unicode",
    explanation: "\
Bytes that are not UTF-8, as in a file saved in Latin-1, and halves of surrogate pairs are replaced by
U+FFFD when the file is read. A path or pattern with that character in it finds nothing.",
    bad: hook_example!(hook: r#"{"path": "/usr/bin/gpu-hook", "args": ["gpu-hook", "caf\ud83d"]}"#),
    good: hook_example!(hook: r#"{"path": "/usr/bin/gpu-hook", "args": ["gpu-hook", "café"]}"#),
    fix: FixPolicy::Manual("which character was lost is not known"),
};

pub static TOO_MANY_FINDINGS: LintRule = LintRule {
    code: "OH107",
    name: "too-many-findings",
    severity: Note,
    rejects: false,
    summary: "more findings in a file than are shown",
    explanation: "\
After two hundred findings the rest of a file is not reported. It is most likely no hook file at all.",
    bad: RuleExample::Shell(
        "$ oci-hooks lint data.json | tail -n 1\nnote[OH107]: more than 200 findings: the rest is left out",
    ),
    good: RuleExample::Shell("$ oci-hooks lint gpu.json"),
    fix: FixPolicy::Manual("fix the other findings first"),
};
