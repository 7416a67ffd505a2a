//! OH401–OH412: files and directories.

use super::{FixPolicy, LintRule, RuleExample};
use crate::hooks::lint::Severity::{Error, Note, Warning};

pub static WRITABLE_BY_OTHERS: LintRule = LintRule {
    code: "OH401",
    name: "writable-by-others",
    severity: Error,
    rejects: false,
    summary: "a hook file, its program or a directory above is writable by other users",
    explanation: "\
Hooks run with the permissions of the container engine, mostly root. A user who may write to the hook file, the
program, or any directory on the way to them decides what runs. podman and CRI-O do not check this;
`oci-hooks-runtime` rejects such hooks. Access control lists count: with one, the group's bits are its mask, and a
file of root with mode 0775 may be writable by any user; a default list applies to new files in a directory. The
interpreter of a script counts too, and the program that `env` finds in the `PATH` of `hook.env` for
`#!/usr/bin/env X`. A directory with the sticky bit such as /tmp is good enough on the way, but not as the
directory of the hook files.",
    bad: RuleExample::Shell(
        "$ ls -ld /opt/hooks /opt/hooks/gpu-hook\n\
         drwxrwxrwx 2 root root 4096 Jan  1 12:00 /opt/hooks\n\
         -rwxr-xr-x 1 root root  812 Jan  1 12:00 /opt/hooks/gpu-hook",
    ),
    good: RuleExample::Shell(
        "$ chmod go-w /opt/hooks; ls -ld /opt/hooks\n\
         drwxr-xr-x 2 root root 4096 Jan  1 12:00 /opt/hooks",
    ),
    fix: FixPolicy::Manual("permissions are not changed: other programs may depend on them"),
};

pub static WRONG_OWNER: LintRule = LintRule {
    code: "OH402",
    name: "wrong-owner",
    severity: Error,
    rejects: false,
    summary: "a hook file, its program or a directory above is owned by another user",
    explanation: "\
The owner of a file may change it, regardless of its mode. The hook file, the program and all directories on the
way to them must belong to root, or to the user who runs the engine if that is not root.",
    bad: RuleExample::Shell(
        "$ ls -l /etc/containers/oci/hooks.d/gpu.json\n\
         -rw-r--r-- 1 alice alice 214 Jan  1 12:00 /etc/containers/oci/hooks.d/gpu.json",
    ),
    good: RuleExample::Shell(
        "$ chown root:root /etc/containers/oci/hooks.d/gpu.json",
    ),
    fix: FixPolicy::Manual("owners are not changed: the content was not written by a trusted user"),
};

pub static DANGLING_SYMLINK: LintRule = LintRule {
    code: "OH403",
    name: "dangling-symlink",
    severity: Warning,
    rejects: false,
    summary: "a dangling symlink, silently skipped",
    explanation: "\
podman and CRI-O follow symbolic links in a hook directory and silently skip dangling ones. In
a directory of higher precedence such a link does not mask the hook of its name either.",
    bad: RuleExample::Shell(
        "$ ls -l /etc/containers/oci/hooks.d/gpu.json\n\
         lrwxrwxrwx 1 root root 18 Jan  1 12:00 gpu.json -> /opt/gpu/hook.json\n\
         $ cat /opt/gpu/hook.json\n\
         cat: /opt/gpu/hook.json: No such file or directory",
    ),
    good: RuleExample::Shell("$ rm /etc/containers/oci/hooks.d/gpu.json"),
    fix: FixPolicy::Manual("the target of the link may be created later"),
};

pub static IGNORED_NAME: LintRule = LintRule {
    code: "OH404",
    name: "ignored-name",
    severity: Note,
    rejects: false,
    summary: "a file that looks like a hook file, or a subdirectory with hook files, that is never read",
    explanation: "\
Only names that end in .json, in lower case, are read: not gpu.json.bak, gpu.json~ or gpu.json.disabled,
which is a good way to put a hook aside, not gpu.conf, and not gpu.JSON, which is more likely a mistake and a
warning. Subdirectories are not read.",
    bad: RuleExample::Shell("$ ls /etc/containers/oci/hooks.d\ngpu.JSON"),
    good: RuleExample::Shell("$ mv gpu.JSON gpu.json"),
    fix: FixPolicy::Manual("reading it may not be wanted"),
};

pub static HIDDEN_FILE: LintRule = LintRule {
    code: "OH405",
    name: "hidden-file",
    severity: Note,
    rejects: false,
    summary: "a hook file whose name starts with a dot",
    explanation: "\
ls does not show .gpu.json, but podman and CRI-O read it like any other, and even a file named just
.json.",
    bad: RuleExample::Shell("$ ls -A /etc/containers/oci/hooks.d\n.gpu.json"),
    good: RuleExample::Shell("$ mv .gpu.json gpu.json"),
    fix: FixPolicy::Manual("another name changes the order"),
};

pub static NAMES_DIFFER_IN_CASE: LintRule = LintRule {
    code: "OH406",
    name: "names-differ-in-case",
    severity: Warning,
    rejects: false,
    summary: "hook files whose names differ only in case",
    explanation: "\
Names are compared exactly when one directory masks another, so GPU.json does not mask gpu.json: both are
in force. But hooks are ordered by their names in lower case, and Go gives equal ones a random order, so
that the two run in another order each time.",
    bad: RuleExample::Shell("$ ls /usr/share/containers/oci/hooks.d /etc/containers/oci/hooks.d\n\
        /etc/containers/oci/hooks.d:\nGPU.json\n\n/usr/share/containers/oci/hooks.d:\ngpu.json"),
    good: RuleExample::Shell("$ mv /etc/containers/oci/hooks.d/GPU.json /etc/containers/oci/hooks.d/gpu.json"),
    fix: FixPolicy::Manual("masking or another order may be meant"),
};

pub static MASKED_BUT_BROKEN: LintRule = LintRule {
    code: "OH407",
    name: "masked-but-broken",
    severity: Error,
    rejects: false,
    summary: "a broken file that a later directory masks: podman and CRI-O reject it all the same",
    explanation: "\
podman and CRI-O read every file of every directory before they look at names. A broken file makes them
refuse to work even if a directory of higher precedence has a good one of the same name.",
    bad: RuleExample::Shell(
        "$ cat /usr/share/containers/oci/hooks.d/gpu.json\n{\n\
         $ cat /etc/containers/oci/hooks.d/gpu.json\n\
         {\"version\": \"1.0.0\", \"hook\": {\"path\": \"/usr/bin/gpu-hook\"}, \"when\": {}, \"stages\": []}",
    ),
    good: RuleExample::Shell("$ rm /usr/share/containers/oci/hooks.d/gpu.json"),
    fix: FixPolicy::Manual("other rules report what is wrong with the file"),
};

pub static BROKEN_MASK: LintRule = LintRule {
    code: "OH408",
    name: "broken-mask",
    severity: Error,
    rejects: false,
    summary: "a file that is to mask another and cannot be used, so the other stays in force",
    explanation: "\
A file in a directory of higher precedence replaces the one of the same name only if it can be used. If its
program does not exist or it is a dangling link, podman and CRI-O silently continue with the file it was to
replace; a hook that was to be turned off still runs.",
    bad: RuleExample::Shell(
        "$ cat /etc/containers/oci/hooks.d/gpu.json\n\
         {\"version\": \"1.0.0\", \"hook\": {\"path\": \"/gone\"}, \"when\": {}, \"stages\": []}\n\
         $ ls /usr/share/containers/oci/hooks.d\ngpu.json",
    ),
    good: RuleExample::Shell(
        "$ cat /etc/containers/oci/hooks.d/gpu.json\n\
         {\"version\": \"1.0.0\", \"hook\": {\"path\": \"/bin/true\"}, \"when\": {}, \"stages\": []}",
    ),
    fix: FixPolicy::Manual("other rules report what is wrong with the file"),
};

pub static MASKING_HOOK: LintRule = LintRule {
    code: "OH409",
    name: "masking-hook",
    severity: Note,
    rejects: false,
    summary: "a hook that never matches and disables the one it masks",
    explanation: "\
A valid file that never matches, in a directory of higher precedence, is the only way to turn off a hook
without removing its file. This note reports such a file; other warnings and notes about it are suppressed.",
    bad: RuleExample::Shell(
        "$ cat /etc/containers/oci/hooks.d/gpu.json\n\
         {\"version\": \"1.0.0\", \"hook\": {\"path\": \"/bin/true\"}, \"when\": {}, \"stages\": []}\n\
         $ ls /usr/share/containers/oci/hooks.d\ngpu.json",
    ),
    good: RuleExample::Shell("$ rm /etc/containers/oci/hooks.d/gpu.json"),
    fix: FixPolicy::Manual("it is most likely intentional"),
};

pub static MISSING_DIRECTORY: LintRule = LintRule {
    code: "OH410",
    name: "missing-directory",
    severity: Note,
    rejects: false,
    summary: "a hook directory that does not exist",
    explanation: "\
podman ignores directories that do not exist, CRI-O makes them. It is no mistake, unless the directory was
named for a purpose.",
    bad: RuleExample::Shell(
        "$ ls /etc/containers/oci/hooks.d\n\
         ls: cannot access '/etc/containers/oci/hooks.d': No such file or directory",
    ),
    good: RuleExample::Shell("$ mkdir -p /etc/containers/oci/hooks.d"),
    fix: FixPolicy::Manual("it need not exist"),
};

pub static UNREADABLE_DIRECTORY: LintRule = LintRule {
    code: "OH411",
    name: "unreadable-directory",
    severity: Error,
    rejects: false,
    summary: "a hook directory that cannot be listed",
    explanation: "\
A hook directory that is a file, or that may not be read, makes podman refuse to start any container. CRI-O
skips a file with a warning.",
    bad: RuleExample::Shell(
        "$ ls /etc/containers/oci/hooks.d/\n\
         ls: cannot access '/etc/containers/oci/hooks.d/': Not a directory",
    ),
    good: RuleExample::Shell("$ rm /etc/containers/oci/hooks.d; mkdir /etc/containers/oci/hooks.d"),
    fix: FixPolicy::Manual("existing files are not removed"),
};

pub static UNREAD_DIRECTORY: LintRule = LintRule {
    code: "OH412",
    name: "unread-directory",
    severity: Warning,
    rejects: false,
    summary: "hook files in a directory that the consumer is not configured to read",
    explanation: "\
podman reads the directories of hooks_dir in containers.conf(5), CRI-O those of hooks_dir in crio.conf(5).
Where no file sets it, both read /usr/share/containers/oci/hooks.d and nothing else: a hook file in
/etc/containers/oci/hooks.d is silently ignored.",
    bad: RuleExample::Shell(
        "\
/etc/containers/oci/hooks.d/gpu.json
no hooks_dir in containers.conf",
    ),
    good: RuleExample::Shell(
        "\
/etc/containers/oci/hooks.d/gpu.json
in /etc/containers/containers.conf, under [engine]:
hooks_dir = [\"/usr/share/containers/oci/hooks.d\", \"/etc/containers/oci/hooks.d\"]",
    ),
    fix: FixPolicy::Manual("which directories a consumer reads is up to the administrator"),
};
