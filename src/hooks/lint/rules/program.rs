//! OH301–OH314, OH323–OH325, OH501: stages and programs.

use super::refused::GOOD;
use super::{FixPolicy, LintRule, RuleExample};
use crate::hooks::lint::Severity::{Error, Note, Warning};

pub static PRESTART_DEPRECATED: LintRule = LintRule {
    code: "OH301",
    name: "prestart-deprecated",
    severity: Note,
    rejects: false,
    summary: "the deprecated stage prestart",
    explanation: "\
The runtime specification replaced prestart by createRuntime, createContainer and startContainer. podman 5,
CRI-O and containerd's hook-injector inject prestart hooks at createRuntime; podman 4 at prestart,
which runtimes run at nearly the same moment.",
    bad: hook_example!(stages: r#"["prestart"]"#),
    good: GOOD,
    fix: FixPolicy::Automatic(
        "createRuntime is written if the consumer injects prestart hooks there anyway",
    ),
};

pub static DOUBLED_PRESTART: LintRule = LintRule {
    code: "OH302",
    name: "doubled-prestart",
    severity: Warning,
    rejects: false,
    summary: "prestart and createRuntime in one file, so the hook runs twice",
    explanation: "\
Files name both stages to work with old and new runtimes. But podman 5 and CRI-O inject prestart at
createRuntime too, so the hook is injected twice; podman 4 injects it at both stages, and the runtime
runs both.",
    bad: hook_example!(stages: r#"["prestart", "createRuntime"]"#),
    good: GOOD,
    fix: FixPolicy::Automatic(
        "prestart is removed if the consumer injects it at createRuntime: the hook then runs once, as meant",
    ),
};

pub static REPEATED_STAGE: LintRule = LintRule {
    code: "OH303",
    name: "repeated-stage",
    severity: Warning,
    rejects: false,
    summary: "a stage that is named twice, so the hook runs twice",
    explanation: "\
podman and CRI-O inject a hook once for each stage in the list: a stage that is listed twice gets the
hook twice.",
    bad: hook_example!(stages: r#"["createRuntime", "createRuntime"]"#),
    good: GOOD,
    fix: FixPolicy::Automatic("the repetition is removed: the hook then runs once, as meant"),
};

pub static NO_STAGES: LintRule = LintRule {
    code: "OH304",
    name: "no-stages",
    severity: Warning,
    rejects: false,
    summary: "an empty list of stages, so the hook never runs",
    explanation: "\
An empty list is accepted, and the hook injected nowhere. On purpose this turns off a hook of the same file
name in a directory of lower precedence; there it is not reported.",
    bad: hook_example!(stages: "[]"),
    good: GOOD,
    fix: FixPolicy::Manual("when the hook is to run is not known"),
};

pub static RELATIVE_PROGRAM: LintRule = LintRule {
    code: "OH305",
    name: "relative-program",
    severity: Error,
    rejects: false,
    summary: "a program whose path is not absolute",
    explanation: "\
The runtime specification asks for an absolute path. podman looks a relative one up from the directory it
was started in and then passes it on, to a runtime that looks from another directory: at best the hook is
silently dropped, at worst another program runs. PATH is not searched, ~ and variables are not expanded,
and placeholders of a template such as @BINDIR@ must be filled in.",
    bad: hook_example!(hook: r#"{"path": "gpu-hook"}"#),
    good: GOOD,
    fix: FixPolicy::Manual("the location of the program is not known"),
};

pub static PROGRAM_NOT_A_FILE: LintRule = LintRule {
    code: "OH306",
    name: "program-not-a-file",
    severity: Error,
    rejects: false,
    summary: "the program is a directory or a device",
    explanation: "\
podman and CRI-O only check that the path exists. The runtime then cannot run it, and every container the
hook applies to fails to start.",
    bad: RuleExample::Shell(
        r#"$ grep path /etc/containers/oci/hooks.d/gpu.json
  "hook": {"path": "/usr/libexec/oci/hooks.d"},"#,
    ),
    good: RuleExample::Shell(
        r#"$ grep path /etc/containers/oci/hooks.d/gpu.json
  "hook": {"path": "/usr/libexec/oci/hooks.d/gpu-hook"},"#,
    ),
    fix: FixPolicy::Manual("which program is meant is not known"),
};

pub static PROGRAM_NOT_EXECUTABLE: LintRule = LintRule {
    code: "OH307",
    name: "program-not-executable",
    severity: Error,
    rejects: false,
    summary: "the program is not executable",
    explanation: "\
podman and CRI-O only check that the path exists. A program without execute permission makes every
container the hook applies to fail with \"permission denied\".",
    bad: RuleExample::Shell(
        "$ ls -l /usr/bin/gpu-hook\n-rw-r--r-- 1 root root 812 Jan  1 12:00 /usr/bin/gpu-hook",
    ),
    good: RuleExample::Shell(
        "$ ls -l /usr/bin/gpu-hook\n-rwxr-xr-x 1 root root 812 Jan  1 12:00 /usr/bin/gpu-hook",
    ),
    fix: FixPolicy::Manual("files other than the hook file are not changed"),
};

pub static WRONG_ARGS0: LintRule = LintRule {
    code: "OH308",
    name: "wrong-args0",
    severity: Warning,
    rejects: false,
    summary: "args[0] is not the name of the program",
    explanation: "\
\"args\" is the whole argument vector: args[0] is what the program sees as its own name, and the first real
argument is args[1]. Where the program's name is missing, its first argument is lost. Programs that act by
their name, such as busybox, are not reported.",
    bad: hook_example!(hook: r#"{"path": "/usr/bin/gpu-hook", "args": ["--all"]}"#),
    good: hook_example!(hook: r#"{"path": "/usr/bin/gpu-hook", "args": ["gpu-hook", "--all"]}"#),
    fix: FixPolicy::Manual("the name may be missing, misspelt or intended"),
};

pub static MISSING_TIMEOUT: LintRule = LintRule {
    code: "OH309",
    name: "missing-timeout",
    severity: Note,
    rejects: false,
    summary: "no timeout, so a hook that hangs hangs the container",
    explanation: "\
Without \"timeout\" no runtime kills a hook that hangs: the container stays in creation, and the program that
started it waits as well. \"timeout\" is in seconds; after it the runtime kills the hook and, except
after the container's end, the container.",
    bad: GOOD,
    good: hook_example!(hook: r#"{"path": "/usr/bin/gpu-hook", "timeout": 10}"#),
    fix: FixPolicy::Manual("how long the hook may take is not known"),
};

pub static USELESS_TIMEOUT: LintRule = LintRule {
    code: "OH310",
    name: "useless-timeout",
    severity: Error,
    rejects: false,
    summary: "a timeout that is too short for any hook",
    explanation: "\
The runtime specification asks for a timeout greater than zero. podman and CRI-O pass on any number;
runtimes kill the hook at once if it is zero or negative, or overflows when seconds become nanoseconds
(above 9223372036), and the container fails. For no timeout at all, leave it out.",
    bad: hook_example!(hook: r#"{"path": "/usr/bin/gpu-hook", "timeout": 0}"#),
    good: hook_example!(hook: r#"{"path": "/usr/bin/gpu-hook", "timeout": 10}"#),
    fix: FixPolicy::Manual("how long the hook may take is not known"),
};

pub static MISSING_ENV: LintRule = LintRule {
    code: "OH311",
    name: "missing-env",
    severity: Note,
    rejects: false,
    summary: "no `env`: the hook inherits an unspecified environment",
    explanation: "\
Without \"env\" (an empty list counts as none) runc and crun pass on the environment they have themselves:
that of the engine, or of its caller. But runc runs createContainer hooks in the container's process,
which has the variables of the image by then: LD_PRELOAD from an image then runs the image's code with the
rights of the host (CVE-2025-23266), so there this is a warning. Stages that podman runs by itself, such as
precreate, get an empty environment, without PATH. Write down what the hook needs, at least PATH.",
    bad: hook_example!(stages: r#"["createContainer"]"#),
    good: hook_example!(
        hook: r#"{"path": "/usr/bin/gpu-hook", "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]}"#,
        stages: r#"["createContainer"]"#
    ),
    fix: FixPolicy::Manual("what the hook needs is not known"),
};

pub static MALFORMED_ENV: LintRule = LintRule {
    code: "OH312",
    name: "malformed-env",
    severity: Warning,
    rejects: false,
    summary: "an environment entry that is not NAME=value",
    explanation: "\
\"env\" holds NAME=value. A name alone does not pass on the variable of that name, as it does with podman's
--env: it stays in the environment as it is, and programs do not find it.",
    bad: hook_example!(hook: r#"{"path": "/usr/bin/gpu-hook", "env": ["PATH"]}"#),
    good: hook_example!(hook: r#"{"path": "/usr/bin/gpu-hook", "env": ["PATH=/usr/bin:/bin"]}"#),
    fix: FixPolicy::Manual("which value is meant is not known"),
};

pub static PROGRAM_IN_CONTAINER: LintRule = LintRule {
    code: "OH313",
    name: "program-in-container",
    severity: Note,
    rejects: false,
    summary: "a startContainer hook, whose program is looked up in the container",
    explanation: "\
Hooks of the stage startContainer run inside the container: the path must exist in the image. podman and
CRI-O check that it exists on the host, so it must be in both. A program that only the host has makes the
container fail.",
    bad: hook_example!(stages: r#"["startContainer"]"#),
    good: GOOD,
    fix: FixPolicy::Manual("the image may have the program"),
};

pub static REPLACED_BY_CDI: LintRule = LintRule {
    code: "OH314",
    name: "replaced-by-cdi",
    severity: Warning,
    rejects: false,
    summary: "a vendor's hook for devices, which CDI has replaced",
    explanation: "\
Vendors gave containers access to devices by prestart hooks: oci-nvidia-hook.json runs
nvidia-container-runtime-hook or, as it was called before, nvidia-container-toolkit. Devices have since moved
to the Container Device Interface (CDI): the engine reads a specification in /etc/cdi or /var/run/cdi and adds
devices, mounts and hooks itself. It works rootless and with SELinux, where the hook does not, and a container
that gets devices both ways gets them twice, or does not start.",
    bad: hook_example!(
        hook: r#"{"path": "/usr/bin/nvidia-container-toolkit", "args": ["nvidia-container-toolkit", "prestart"]}"#,
        when: r#"{"always": true, "commands": [".*"]}"#,
        stages: r#"["prestart"]"#
    ),
    good: RuleExample::Shell(
        "\
nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml
oci-hooks disable oci-nvidia-hook
podman run --device nvidia.com/gpu=all IMAGE",
    ),
    fix: FixPolicy::Manual("containers must be started with --device, or an annotation"),
};

pub static REPEATED_VARIABLE: LintRule = LintRule {
    code: "OH323",
    name: "repeated-variable",
    severity: Warning,
    rejects: false,
    summary: "an environment variable that is set twice",
    explanation: "\
Which value counts depends on the runtime and the program: runc keeps the last one, crun passes on both, of which
C programs see the first and shells the last.",
    bad: hook_example!(hook: r#"{"path": "/usr/bin/gpu-hook", "env": ["PATH=/usr/bin", "PATH=/opt/bin"]}"#),
    good: hook_example!(hook: r#"{"path": "/usr/bin/gpu-hook", "env": ["PATH=/usr/bin:/opt/bin"]}"#),
    fix: FixPolicy::Manual("which value is meant is not known"),
};

pub static LONG_TIMEOUT: LintRule = LintRule {
    code: "OH324",
    name: "long-timeout",
    severity: Warning,
    rejects: false,
    summary: "a timeout so long that milliseconds were probably meant",
    explanation: "\
\"timeout\" is in seconds: 30000 is more than eight hours, in which a hook that hangs hangs the container. Reported
are 1000 seconds and more, except multiples of ten minutes up to an hour.",
    bad: hook_example!(hook: r#"{"path": "/usr/bin/gpu-hook", "timeout": 30000}"#),
    good: hook_example!(hook: r#"{"path": "/usr/bin/gpu-hook", "timeout": 30}"#),
    fix: FixPolicy::Manual("how long the hook may take is not known"),
};

pub static VARIABLE_IN_ENV: LintRule = LintRule {
    code: "OH325",
    name: "variable-in-env",
    severity: Warning,
    rejects: false,
    summary: "a variable in the value of another, which nothing expands",
    explanation: "\
There is no shell between the runtime and the hook: \"PATH=/opt/bin:$PATH\" looks programs up in a directory named
$PATH.",
    bad: hook_example!(hook: r#"{"path": "/usr/bin/gpu-hook", "env": ["PATH=/opt/bin:$PATH"]}"#),
    good: hook_example!(hook: r#"{"path": "/usr/bin/gpu-hook", "env": ["PATH=/opt/bin:/usr/bin"]}"#),
    fix: FixPolicy::Manual("the value is not known"),
};

pub static STAGE_NOT_PORTABLE: LintRule = LintRule {
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
    bad: hook_example!(stages: r#"["precreate"]"#),
    good: GOOD,
    fix: FixPolicy::Manual("no other stage can do what precreate does"),
};
