//! OH001–OH020: files that are rejected.

use super::{FixPolicy, LintRule, RuleExample};
use crate::hooks::lint::Severity::Error;

pub static UNREADABLE_FILE: LintRule = LintRule {
    code: "OH001",
    name: "unreadable-file",
    severity: Error,
    rejects: true,
    summary: "an entry named *.json that cannot be read as a file",
    explanation: "\
podman and CRI-O open every entry whose name ends in .json: also a directory of that name, a FIFO, a
file without read permission or of many megabytes. What they cannot read makes them refuse to start
any container; a FIFO makes them wait forever.",
    bad: RuleExample::Shell("$ mkdir /etc/containers/oci/hooks.d/old.json"),
    good: RuleExample::Shell("$ mv /etc/containers/oci/hooks.d/old.json /etc/containers/oci/old"),
    fix: FixPolicy::Manual("existing files are not removed"),
};

pub static INVALID_JSON: LintRule = LintRule {
    code: "OH002",
    name: "invalid-json",
    severity: Error,
    rejects: true,
    summary: "the text is not JSON",
    explanation: "\
Hook files are decoded by Go's encoding/json, which is strict: double quotes around keys and strings,
no control characters in strings, nothing after the closing brace. One file that is not JSON stops
podman from starting any container, and CRI-O from starting at all; podman's message does not always
name the file.",
    bad: RuleExample::Hook(
        r#"{
  "version": "1.0.0",
  "hook": {"path": "/usr/bin/gpu-hook"}
  "when": {"always": true},
  "stages": ["createRuntime"]
}"#,
    ),
    good: GOOD,
    fix: FixPolicy::Manual("there is more than one way to complete a broken text"),
};

pub static TRAILING_COMMA: LintRule = LintRule {
    code: "OH003",
    name: "trailing-comma",
    severity: Error,
    rejects: true,
    summary: "a comma before a closing bracket",
    explanation: "\
JSON has no comma after the last item, and Go's decoder rejects the file: no container starts any
more. Even an example in the manual page oci-hooks(5) has this mistake.",
    bad: hook_example!(hook: r#"{"path": "/usr/bin/gpu-hook", "args": ["gpu-hook", "--debug"],}"#),
    good: GOOD,
    fix: FixPolicy::Automatic("the comma is removed; it cannot mean anything else"),
};

pub static COMMENT: LintRule = LintRule {
    code: "OH004",
    name: "comment",
    severity: Error,
    rejects: true,
    summary: "a comment, which JSON does not have",
    explanation: "\
JSON knows neither // nor /* */ nor #. Go's decoder rejects the file, and no container starts any
more. Put explanations into a README beside the file (names that do not end in .json are not read), or
into an unknown key, which is ignored, such as \"_comment\".",
    bad: RuleExample::Hook(
        r#"{
  "version": "1.0.0",
  "hook": {"path": "/usr/bin/gpu-hook"}, // from the gpu-tools package
  "when": {"always": true},
  "stages": ["createRuntime"]
}"#,
    ),
    good: RuleExample::Hook(
        r#"{
  "_comment": "gpu-hook is from the gpu-tools package",
  "version": "1.0.0",
  "hook": {"path": "/usr/bin/gpu-hook"},
  "when": {"always": true},
  "stages": ["createRuntime"]
}"#,
    ),
    fix: FixPolicy::Automatic("the comment is removed; no program reads it"),
};

pub static BYTE_ORDER_MARK: LintRule = LintRule {
    code: "OH005",
    name: "byte-order-mark",
    severity: Error,
    rejects: true,
    summary: "an invisible byte order mark at the start of the file",
    explanation: "\
Some editors, mostly on Windows, start a UTF-8 file with the bytes EF BB BF. Go's decoder does not skip
them and rejects the file with \"invalid character 'ï' looking for beginning of value\".",
    bad: RuleExample::Hook(
        "\u{feff}{\"version\": \"1.0.0\", \"hook\": {\"path\": \"/usr/bin/gpu-hook\"},
 \"when\": {\"always\": true}, \"stages\": [\"createRuntime\"]}",
    ),
    good: GOOD,
    fix: FixPolicy::Automatic("the three bytes are removed; they have no meaning"),
};

pub static INVALID_ESCAPE: LintRule = LintRule {
    code: "OH006",
    name: "invalid-escape",
    severity: Error,
    rejects: true,
    summary: "a backslash before a character that JSON does not escape",
    explanation: "\
In a JSON string a backslash may only stand before \" \\ / b f n r t and u with four digits. A regular
expression such as com\\.example is therefore written \"com\\\\.example\": JSON takes away one backslash, the
regular expression needs the other. A single one makes Go reject the file.",
    bad: hook_example!(when: r#"{"annotations": {"^com\.example\.gpu$": "^all$"}}"#),
    good: GOOD_ANNOTATION,
    fix: FixPolicy::Automatic("the backslash is doubled: in a hook file it belongs to a pattern"),
};

pub static EMPTY_FILE: LintRule = LintRule {
    code: "OH007",
    name: "empty-file",
    severity: Error,
    rejects: true,
    summary: "an empty file, or a link to /dev/null",
    explanation: "\
systemd units and udev rules are turned off by an empty file or a link to /dev/null in a directory of
higher precedence. Hooks are not: podman reads the file, finds no JSON and refuses to start any
container. To turn a hook off, put a hook of the same file name there that never matches.",
    bad: RuleExample::Hook(""),
    good: RuleExample::Shell(
        r#"$ cat /etc/containers/oci/hooks.d/gpu.json
{"version": "1.0.0", "hook": {"path": "/usr/bin/gpu-hook"}, "when": {}, "stages": []}"#,
    ),
    fix: FixPolicy::Manual("whether a hook is to be turned off or was lost is not known"),
};

pub static WRONG_TYPE: LintRule = LintRule {
    code: "OH008",
    name: "wrong-type",
    severity: Error,
    rejects: true,
    summary: "a value of another type than the field has",
    explanation: "\
Go decodes each field into a fixed type: true and false without quotes, numbers without quotes and
without fraction, lists of strings in brackets, annotation patterns as strings. Any other type in a
known field makes it reject the whole file, even if a later duplicate of the field is right.",
    bad: RuleExample::Hook(
        r#"{
  "version": "1.0.0",
  "hook": {"path": "/usr/bin/gpu-hook"},
  "when": {"always": "true"},
  "stages": "createRuntime"
}"#,
    ),
    good: GOOD,
    fix: FixPolicy::Automatic(
        "quotes around true, false and integers are removed, those missing in lists of strings and \
         annotations added, and a single string is put into a list; other types are not changed",
    ),
};

pub static UNKNOWN_VERSION: LintRule = LintRule {
    code: "OH009",
    name: "unknown-version",
    severity: Error,
    rejects: true,
    summary: "a version that is neither 1.0.0 nor 0.1.0",
    explanation: "\
\"version\" is the version of the hook file format, not that of the hook. There are 1.0.0 and, without
a version or with 0.1.0, the old format; a file with any other version is rejected.",
    bad: RuleExample::Hook(
        r#"{
  "version": "1.0",
  "hook": {"path": "/usr/bin/gpu-hook"},
  "when": {"always": true},
  "stages": ["createRuntime"]
}"#,
    ),
    good: GOOD,
    fix: FixPolicy::Automatic(
        "1.0.0 is written if `hook` is an object, and 0.1.0 if it is a string and there is no `when`",
    ),
};

pub static MISSING_VERSION: LintRule = LintRule {
    code: "OH010",
    name: "missing-version",
    severity: Error,
    rejects: true,
    summary: "a file of version 1.0.0 without `version`",
    explanation: "\
Without \"version\" a file is read as 0.1.0, the old format, in which \"hook\" is a string. A file written
for 1.0.0 then fails with \"json: cannot unmarshal object into Go struct field Hook.hook of type
string\", and no container starts.",
    bad: RuleExample::Hook(
        r#"{
  "hook": {"path": "/usr/bin/gpu-hook"},
  "when": {"always": true},
  "stages": ["createRuntime"]
}"#,
    ),
    good: GOOD,
    fix: FixPolicy::Automatic("the version is added: only version 1.0.0 has these keys"),
};

pub static MISSING_HOOK: LintRule = LintRule {
    code: "OH011",
    name: "missing-hook",
    severity: Error,
    rejects: true,
    summary: "a file of version 0.1.0 without `hook`",
    explanation: "\
A file without \"version\" is read as 0.1.0, which needs \"hook\", the path of the program, as a string.
Without it the file is rejected with \"missing required property: hook\". New files should use 1.0.0.",
    bad: RuleExample::Hook(r#"{"cmds": ["/bash$"], "stages": ["prestart"]}"#),
    good: GOOD,
    fix: FixPolicy::Manual("which program is meant is not known"),
};

pub static MISSING_PATH: LintRule = LintRule {
    code: "OH012",
    name: "missing-path",
    severity: Error,
    rejects: true,
    summary: "no `hook.path`, or an empty one",
    explanation: "\
\"hook.path\" is the program to run. Without it podman and CRI-O reject the file with \"missing required
property: hook.path\", which does not name the file.",
    bad: hook_example!(hook: r#"{"args": ["/usr/bin/gpu-hook"]}"#),
    good: GOOD,
    fix: FixPolicy::Manual("which program is meant is not known"),
};

pub static MISSING_STAGES: LintRule = LintRule {
    code: "OH013",
    name: "missing-stages",
    severity: Error,
    rejects: true,
    summary: "no `stages`",
    explanation: "\
\"stages\" says when in a container's life the hook runs. Without it the file is rejected with \"missing
required property: stages\". An empty list is accepted, and the hook is injected nowhere.",
    bad: RuleExample::Hook(
        r#"{
  "version": "1.0.0",
  "hook": {"path": "/usr/bin/gpu-hook"},
  "when": {"always": true}
}"#,
    ),
    good: GOOD,
    fix: FixPolicy::Manual("when the hook is to run is not known"),
};

pub static BOTH_SPELLINGS: LintRule = LintRule {
    code: "OH014",
    name: "both-spellings",
    severity: Error,
    rejects: true,
    summary: "two spellings of one field in a file of version 0.1.0",
    explanation: "\
Version 0.1.0 knows \"stage\" and \"stages\", \"cmd\" and \"cmds\", \"annotation\" and \"annotations\": the
same field in two spellings. A file that sets both of a pair is rejected, even if they agree.",
    bad: RuleExample::Hook(
        r#"{"hook": "/usr/bin/gpu-hook", "cmds": ["/bash$"], "stage": ["prestart"], "stages": ["prestart"]}"#,
    ),
    good: RuleExample::Hook(r#"{"hook": "/usr/bin/gpu-hook", "cmds": ["/bash$"], "stages": ["prestart"]}"#),
    fix: FixPolicy::Manual("the two may differ, and then either may be meant"),
};

pub static UNKNOWN_STAGE: LintRule = LintRule {
    code: "OH015",
    name: "unknown-stage",
    severity: Error,
    rejects: true,
    summary: "a stage that the consumer does not know",
    explanation: "\
The stages are prestart, createRuntime, createContainer, startContainer, poststart and poststop, written
exactly so. podman adds precreate, which runs before the container is made and may change its
configuration; buildah, `podman build`, CRI-O and containerd's hook-injector reject a file that names it,
and then refuse to start any container.",
    bad: hook_example!(stages: r#"["createruntime"]"#),
    good: GOOD,
    fix: FixPolicy::Automatic("wrong case and slight misspellings are corrected; the file was rejected anyway"),
};

pub static INVALID_PATTERN: LintRule = LintRule {
    code: "OH016",
    name: "invalid-pattern",
    severity: Error,
    rejects: true,
    summary: "a pattern that is not a regular expression of Go",
    explanation: "\
Patterns are compiled by Go's regexp package (RE2 syntax). It has no look-ahead, no look-behind, no
backreferences and no possessive repetition, because it matches in linear time; and shell patterns such as
*.sh are no regular expressions. A pattern that does not compile makes podman and CRI-O reject the file.",
    bad: hook_example!(when: r#"{"commands": ["^(?!/bin/sh).*$"]}"#),
    good: hook_example!(when: r#"{"commands": ["^/opt/gpu/bin/"]}"#),
    fix: FixPolicy::Manual("unsupported syntax must be rewritten by hand"),
};

pub static MISSING_PROGRAM: LintRule = LintRule {
    code: "OH017",
    name: "missing-program",
    severity: Error,
    rejects: true,
    summary: "the hook's program does not exist",
    explanation: "\
podman and CRI-O silently drop a hook when hook.path does not exist: containers start without it, which
for a firewall or an audit hook is worse than an error. Worse, if it is the first bad file of its directory,
all other errors of that directory are overlooked too; and a hook of the same name in a directory of lower
precedence stays in force.

If a program of that name is in bin or ../bin beside a hook file that is named on the command line, this is
a note: both are still to be installed.",
    bad: RuleExample::Shell(
        r#"$ grep path /etc/containers/oci/hooks.d/gpu.json
  "hook": {"path": "/usr/bin/gpu-hok"},
$ ls /usr/bin/gpu-hok
ls: cannot access '/usr/bin/gpu-hok': No such file or directory"#,
    ),
    good: RuleExample::Shell(
        r#"$ grep path /etc/containers/oci/hooks.d/gpu.json
  "hook": {"path": "/usr/bin/gpu-hook"},"#,
    ),
    fix: FixPolicy::Manual("the program may be misspelt or not installed yet"),
};

pub static PROGRAM_LOOKUP: LintRule = LintRule {
    code: "OH018",
    name: "program-lookup",
    severity: Error,
    rejects: true,
    summary: "the hook's program cannot be looked up",
    explanation: "\
The path leads through a file that is no directory, a directory that may not be searched, a circle of
symbolic links, or is too long. Unlike a program that does not exist, this makes podman and CRI-O refuse
to work.",
    bad: RuleExample::Shell(
        r#"$ grep path /etc/containers/oci/hooks.d/gpu.json
  "hook": {"path": "/usr/bin/gpu-hook/run"},
$ ls /usr/bin/gpu-hook/run
ls: cannot access '/usr/bin/gpu-hook/run': Not a directory"#,
    ),
    good: RuleExample::Shell(
        r#"$ grep path /etc/containers/oci/hooks.d/gpu.json
  "hook": {"path": "/usr/bin/gpu-hook"},"#,
    ),
    fix: FixPolicy::Manual("which program is meant is not known"),
};

pub static RUNTIME_HOOKS: LintRule = LintRule {
    code: "OH020",
    name: "runtime-hooks",
    severity: Error,
    rejects: true,
    summary: "the `hooks` object of a container's config.json in a hook file",
    explanation: "\
config.json of the OCI runtime specification has \"hooks\": {\"createRuntime\": [{\"path\": …}]}. A hook file
is something else: it describes one program in \"hook\", and in \"when\" and \"stages\" where podman and CRI-O
write it into config.json. Pasted here, \"hooks\" is an unknown key and ignored, and the file is rejected
because it names no program.",
    bad: RuleExample::Hook(
        r#"{
  "version": "1.0.0",
  "hooks": {"createRuntime": [{"path": "/usr/bin/gpu-hook"}]},
  "when": {"always": true},
  "stages": ["createRuntime"]
}"#,
    ),
    good: GOOD,
    fix: FixPolicy::Manual("several hooks need several files"),
};

/// The good example of most rules.
pub const GOOD: RuleExample = hook_example!();

/// The good example with an annotation.
pub const GOOD_ANNOTATION: RuleExample =
    hook_example!(when: r#"{"annotations": {"^com\\.example\\.gpu$": "^all$"}}"#);
