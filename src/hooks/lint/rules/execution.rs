//! OH315–OH322: programs that the kernel cannot run, and interpreters that `env` cannot find.

use super::{FixPolicy, LintRule, RuleExample};
use crate::hooks::lint::Severity::{Error, Warning};

/// A good example for the rules about scripts.
const GOOD_SCRIPT: RuleExample =
    RuleExample::Shell("$ head -1 /usr/bin/gpu-hook | cat -A\n#!/bin/sh$");

/// Reason why programs are not fixed.
const NOT_CHANGED: FixPolicy = FixPolicy::Manual("files other than the hook file are not changed");

pub static CRLF_SCRIPT: LintRule = LintRule {
    code: "OH315",
    name: "crlf-script",
    severity: Error,
    rejects: false,
    summary: "a script whose first line ends in CRLF, as on Windows",
    explanation: "\
The carriage return belongs to the name of the interpreter or to its argument: the kernel looks for \"/bin/sh\\r\",
and the container fails with \"no such file or directory\"; `env` looks for \"python3\\r\". In a git repository,
`*.sh text eol=lf` in .gitattributes keeps LF.",
    bad: RuleExample::Shell("$ head -1 /usr/bin/gpu-hook | cat -A\n#!/bin/sh^M$"),
    good: GOOD_SCRIPT,
    fix: FixPolicy::Automatic(
        "the lines of the program are changed to LF if all of them end in CRLF: it never ran before; programs that \
         other users can change are not changed",
    ),
};

pub static MISSING_INTERPRETER: LintRule = LintRule {
    code: "OH316",
    name: "missing-interpreter",
    severity: Error,
    rejects: false,
    summary: "a script whose interpreter does not exist",
    explanation: "\
The kernel runs the program that the first line names after #!. If it does not exist, runtimes report \"no such file
or directory\" about the script, which does exist, and every container the hook applies to fails to start.",
    bad: RuleExample::Shell("$ head -1 /usr/bin/gpu-hook\n#!/usr/bin/pyhton3"),
    good: RuleExample::Shell("$ head -1 /usr/bin/gpu-hook\n#!/usr/bin/python3"),
    fix: NOT_CHANGED,
};

pub static INTERPRETER_NOT_EXECUTABLE: LintRule = LintRule {
    code: "OH317",
    name: "interpreter-not-executable",
    severity: Error,
    rejects: false,
    summary: "a script whose interpreter is not executable, or not a file",
    explanation: "\
The kernel runs the program that the first line names after #!. If it has no execute permission, or is a directory,
every container the hook applies to fails with \"permission denied\".",
    bad: RuleExample::Shell(
        "$ head -1 /usr/bin/gpu-hook; ls -l /opt/run\n#!/opt/run\n-rw-r--r-- 1 root root 812 Jan  1 12:00 /opt/run",
    ),
    good: RuleExample::Shell(
        "$ head -1 /usr/bin/gpu-hook; ls -l /opt/run\n#!/opt/run\n-rwxr-xr-x 1 root root 812 Jan  1 12:00 /opt/run",
    ),
    fix: NOT_CHANGED,
};

pub static RELATIVE_INTERPRETER: LintRule = LintRule {
    code: "OH318",
    name: "relative-interpreter",
    severity: Error,
    rejects: false,
    summary: "a script whose interpreter is not an absolute path",
    explanation: "\
The kernel does not search PATH for the interpreter after #!. It looks from the directory that the runtime runs the
hook in: at best the container fails with \"no such file or directory\", at worst another program runs.",
    bad: RuleExample::Shell("$ head -1 /usr/bin/gpu-hook\n#!python3"),
    good: RuleExample::Shell("$ head -1 /usr/bin/gpu-hook\n#!/usr/bin/python3"),
    fix: NOT_CHANGED,
};

pub static MISSING_ENV_PROGRAM: LintRule = LintRule {
    code: "OH319",
    name: "missing-env-program",
    severity: Error,
    rejects: false,
    summary: "a script whose `#!/usr/bin/env` line names a program that is not in PATH",
    explanation: "\
`#!/usr/bin/env X` runs the X that it finds in the PATH of `hook.env`; without PATH in it, in /bin and /usr/bin. If
there is no X, the hook fails with exit code 127, and the container does not start. Without `hook.env` the PATH is
that of the engine, which may have directories that this check does not know: then this is a warning. The rest of
the line is one name, unless it begins with -S.",
    bad: RuleExample::Shell(
        "$ head -1 /usr/bin/gpu-hook; command -v pyhton3 || echo none\n#!/usr/bin/env pyhton3\nnone",
    ),
    good: RuleExample::Shell(
        "$ head -1 /usr/bin/gpu-hook; command -v python3 || echo none\n#!/usr/bin/env python3\n/usr/bin/python3",
    ),
    fix: NOT_CHANGED,
};

pub static NO_SEARCH_PATH: LintRule = LintRule {
    code: "OH320",
    name: "no-search-path",
    severity: Warning,
    rejects: false,
    summary: "a script for `env`, with a `hook.env` without PATH",
    explanation: "\
`hook.env` is the whole environment of the hook. Without PATH in it, `env` searches only the default directories of
its C library, and so may the programs that the script runs: those in /usr/local/bin or /usr/sbin are not found.",
    bad: RuleExample::Shell(
        "$ head -1 /usr/bin/gpu-hook; grep env /etc/containers/oci/hooks.d/gpu.json\n\
         #!/usr/bin/env python3\n    \"env\": [\"DEBUG=1\"]",
    ),
    good: RuleExample::Shell(
        "$ head -1 /usr/bin/gpu-hook; grep env /etc/containers/oci/hooks.d/gpu.json\n\
         #!/usr/bin/env python3\n    \"env\": [\"DEBUG=1\", \"PATH=/usr/sbin:/usr/bin:/sbin:/bin\"]",
    ),
    fix: FixPolicy::Manual("what the hook needs is not known"),
};

pub static UNKNOWN_FORMAT: LintRule = LintRule {
    code: "OH321",
    name: "unknown-format",
    severity: Error,
    rejects: false,
    summary: "the program is neither an ELF program nor a script with #!",
    explanation: "\
The kernel knows a program by its first bytes: ELF, or #! and an interpreter. An empty file, a script without #!,
and one with a byte order mark before it are neither. A shell runs such a script all the same, but runtimes fail
with \"exec format error\", and the container does not start. Formats registered with binfmt_misc are not reported.",
    bad: RuleExample::Shell("$ head -1 /usr/bin/gpu-hook | cat -A\nM-oM-;M-?#!/bin/sh$"),
    good: GOOD_SCRIPT,
    fix: NOT_CHANGED,
};

pub static FOREIGN_ARCHITECTURE: LintRule = LintRule {
    code: "OH322",
    name: "foreign-architecture",
    severity: Error,
    rejects: false,
    summary: "the program is for another architecture than this host",
    explanation: "\
Every container the hook applies to fails with \"exec format error\". Programs that binfmt_misc runs in an emulator
such as QEMU are not reported. 32-bit programs of the same family count as those of the host.",
    bad: RuleExample::Shell(
        "$ uname -m; file -b /usr/bin/gpu-hook\nx86_64\nELF 64-bit LSB executable, ARM aarch64",
    ),
    good: RuleExample::Shell(
        "$ uname -m; file -b /usr/bin/gpu-hook\nx86_64\nELF 64-bit LSB executable, x86-64",
    ),
    fix: NOT_CHANGED,
};
