//! OH601–OH603: specifications of the Container Device Interface.

use super::{FixPolicy, LintRule, RuleExample};
use crate::hooks::lint::Severity::Error;

pub static INVALID_SPECIFICATION: LintRule = LintRule {
    code: "OH601",
    name: "invalid-cdi-specification",
    severity: Error,
    rejects: true,
    summary: "a CDI specification that engines cannot use, or a directory that they cannot list",
    explanation: "\
Engines skip a CDI specification that is no YAML or JSON, has unknown keys, values of another type or a version
without the features in use, and report a missing device when a container asks for it. After a directory that
cannot be listed, they read no other directory.",
    bad: RuleExample::Shell(
        "$ head -n 2 /etc/cdi/gpu.yaml\n\
         cdiVersion: 0.2.0\n\
         kind: vendor.com/gpu",
    ),
    good: RuleExample::Shell(
        "$ head -n 2 /etc/cdi/gpu.yaml\n\
         cdiVersion: 0.5.0\n\
         kind: vendor.com/gpu",
    ),
    fix: FixPolicy::Manual("the file's generator would write the mistake again"),
};

pub static CONFLICTING_DEVICE: LintRule = LintRule {
    code: "OH602",
    name: "conflicting-cdi-device",
    severity: Error,
    rejects: false,
    summary: "a device that several CDI specifications of one directory define",
    explanation: "\
No container gets such a device, even if a specification in a later directory defines it too. A device of a later
directory replaces that of an earlier one, which is no conflict.",
    bad: RuleExample::Shell(
        "$ grep -l 'kind: vendor.com/gpu' /etc/cdi/*\n\
         /etc/cdi/gpu.yaml\n\
         /etc/cdi/vendor.com-gpu.yaml",
    ),
    good: RuleExample::Shell(
        "$ grep -l 'kind: vendor.com/gpu' /etc/cdi/*\n\
         /etc/cdi/gpu.yaml",
    ),
    fix: FixPolicy::Manual("the administrator decides which file is obsolete"),
};

pub static MISSING_DEVICE_PROGRAM: LintRule = LintRule {
    code: "OH603",
    name: "missing-cdi-program",
    severity: Error,
    rejects: false,
    summary: "a hook of a CDI specification whose program does not exist",
    explanation: "\
Engines inject hooks of devices without a check, unlike those of hook files. The runtime cannot start the program,
and the container with the device does not start.",
    bad: RuleExample::Shell(
        "$ grep 'path: .*ctk' /etc/cdi/gpu.yaml; ls /usr/bin/nvidia-ctk\n\
         \x20   path: /usr/bin/nvidia-ctk\n\
         ls: cannot access '/usr/bin/nvidia-ctk': No such file or directory",
    ),
    good: RuleExample::Shell(
        "$ grep 'path: .*ctk' /etc/cdi/gpu.yaml; ls /usr/bin/nvidia-ctk\n\
         \x20   path: /usr/bin/nvidia-ctk\n\
         /usr/bin/nvidia-ctk",
    ),
    fix: FixPolicy::Manual("the program has to be installed, or the specification generated again"),
};
