//! OH201–OH218: conditions and patterns.

use super::refused::{GOOD, GOOD_ANNOTATION};
use super::{FixPolicy, LintRule, RuleExample};
use crate::hooks::lint::Severity::{Note, Warning};

pub static NO_CONDITION: LintRule = LintRule {
    code: "OH201",
    name: "no-condition",
    severity: Warning,
    rejects: false,
    summary: "no condition, so the hook never runs",
    explanation: "\
A hook applies if its conditions hold. Without \"when\", or with an empty one, there is no condition that holds:
the hook is loaded and silently never injected. A hook for all containers needs \"always\": true. Used on
purpose, this turns off a hook of the same file name in a directory of lower precedence; there it is not
reported.",
    bad: hook_example!(when: "{}"),
    good: GOOD,
    fix: FixPolicy::Manual("for which containers the hook is meant is not known"),
};

pub static ALWAYS_FALSE: LintRule = LintRule {
    code: "OH202",
    name: "always-false",
    severity: Warning,
    rejects: false,
    summary: "`always: false`, so the hook never runs",
    explanation: "\
In version 1.0.0 all conditions must hold, and \"always\": false never does: the other conditions are not
even evaluated. It does not mean \"not always, but if the rest holds\"; leave it out to express that.",
    bad: hook_example!(when: r#"{"always": false, "annotations": {"^com\\.example\\.gpu$": "^all$"}}"#),
    good: GOOD_ANNOTATION,
    fix: FixPolicy::Manual("without it the hook would run, which may not be wanted"),
};

pub static BIND_MOUNTS_FALSE: LintRule = LintRule {
    code: "OH203",
    name: "bind-mounts-false",
    severity: Warning,
    rejects: false,
    summary: "`hasBindMounts: false`, which does not mean \"has none\"",
    explanation: "\
For podman and CRI-O \"hasBindMounts\": false is a condition that never holds, so that a hook of version
1.0.0 with it never runs; in 0.1.0 it has no effect. There is no way to ask for containers without bind
mounts.",
    bad: hook_example!(when: r#"{"hasBindMounts": false}"#),
    good: hook_example!(when: r#"{"hasBindMounts": true}"#),
    fix: FixPolicy::Manual("without it the hook would run, which may not be wanted"),
};

pub static REDUNDANT_ALWAYS: LintRule = LintRule {
    code: "OH204",
    name: "redundant-always",
    severity: Warning,
    rejects: false,
    summary: "`always: true` next to other conditions, which still must hold",
    explanation: "\
All conditions of version 1.0.0 must hold: \"always\": true adds nothing to the others, and does not make
the hook run if they fail. With \"commands\" it even makes things worse: a container without a command cannot
be started then. If the other conditions match everything anyway, this is a note.",
    bad: hook_example!(when: r#"{"always": true, "annotations": {"^com\\.example\\.gpu$": "^all$"}}"#),
    good: GOOD_ANNOTATION,
    fix: FixPolicy::Manual("either `always` or the other conditions are too much"),
};

pub static UNREACHABLE_COMMANDS: LintRule = LintRule {
    code: "OH205",
    name: "unreachable-commands",
    severity: Warning,
    rejects: false,
    summary: "command patterns that have no effect",
    explanation: "\
\"commands\" is evaluated last. After a condition that never holds (\"always\": false, \"hasBindMounts\":
false) it is not evaluated at all; and a pattern that cannot match any program name,
such as one with text after $ or before ^, never matches.",
    bad: hook_example!(when: r#"{"always": false, "commands": ["/bash$"]}"#),
    good: hook_example!(when: r#"{"commands": ["/bash$"]}"#),
    fix: FixPolicy::Manual("the condition before it or the pattern may be the mistake"),
};

pub static COMMAND_LINE_PATTERN: LintRule = LintRule {
    code: "OH206",
    name: "command-line-pattern",
    severity: Warning,
    rejects: false,
    summary: "a command pattern with a space in it",
    explanation: "\
\"commands\" is matched against the first element of process.args alone: the program, without its
arguments. A pattern for a whole command line such as ^nginx -g never matches, unless a program has a
space in its name.",
    bad: hook_example!(when: r#"{"commands": ["^/usr/bin/python3 -m train"]}"#),
    good: hook_example!(when: r#"{"commands": ["^/usr/bin/python3$"]}"#),
    fix: FixPolicy::Manual("arguments cannot be asked for"),
};

pub static UNANCHORED_PATTERN: LintRule = LintRule {
    code: "OH207",
    name: "unanchored-pattern",
    severity: Note,
    rejects: false,
    summary: "a pattern that matches anywhere in the text",
    explanation: "\
podman and CRI-O search: a pattern matches if any part of the text does. \"true\" matches the value
\"untrue\", and \"/usr/bin/python\" the command /usr/bin/python3-config. Write ^ and $ around what is to be
the whole; write .* where anything may stand. Patterns anchored at one end are not reported.",
    bad: hook_example!(when: r#"{"annotations": {"^com\\.example\\.gpu$": "all"}}"#),
    good: GOOD_ANNOTATION,
    fix: FixPolicy::Manual("matching a part may be wanted"),
};

pub static UNESCAPED_DOT: LintRule = LintRule {
    code: "OH208",
    name: "unescaped-dot",
    severity: Warning,
    rejects: false,
    summary: "a dot between letters or digits that matches any character",
    explanation: "\
In a regular expression a dot matches any character: com.example matches comXexample too, which others can
use as an annotation to be matched. A full stop is \\., which in JSON is written \"\\\\.\".",
    bad: hook_example!(when: r#"{"annotations": {"^com.example.gpu$": "^all$"}}"#),
    good: GOOD_ANNOTATION,
    fix: FixPolicy::Automatic(
        "the dot is escaped: between two letters or digits a full stop is meant. The names with a dot \
         still match, others no longer do",
    ),
};

pub static DOUBLE_ESCAPE: LintRule = LintRule {
    code: "OH209",
    name: "double-escape",
    severity: Warning,
    rejects: false,
    summary: "a pattern that asks for a backslash in the text",
    explanation: "\
JSON takes away one level of backslashes. \"com\\\\.example\" is the pattern com\\.example, with an escaped dot;
\"com\\\\\\\\.example\" is com\\\\.example, which asks for a backslash and then any character, and matches no
annotation there is. It comes from files written by programs that escape once too often.",
    bad: hook_example!(when: r#"{"annotations": {"^com\\\\.example\\\\.gpu$": "^all$"}}"#),
    good: GOOD_ANNOTATION,
    fix: FixPolicy::Automatic(
        "two of the four backslashes are removed if the rest is an escape that Go knows: no annotation or \
         command has a backslash before such a character",
    ),
};

pub static NOT_POSIX: LintRule = LintRule {
    code: "OH210",
    name: "not-posix",
    severity: Note,
    rejects: false,
    summary: "a pattern that POSIX extended regular expressions do not have",
    explanation: "\
The manual page oci-hooks(5) says that patterns are POSIX extended regular expressions. They never were:
they are Go's. \\d, \\w, \\s, \\b, non-greedy repetition, (?i) and (?:) work in podman and CRI-O, but grep -E
and programs that follow the manual page read them differently or not at all.",
    bad: hook_example!(when: r#"{"commands": ["^/usr/bin/python\\d$"]}"#),
    good: hook_example!(when: r#"{"commands": ["^/usr/bin/python[0-9]$"]}"#),
    fix: FixPolicy::Manual("it works as it is"),
};

pub static MISLEADING_ESCAPE: LintRule = LintRule {
    code: "OH211",
    name: "misleading-escape",
    severity: Warning,
    rejects: false,
    summary: "an escape that means a boundary elsewhere and itself here",
    explanation: "\
In grep, sed and vi, \\< and \\> are the ends of a word, \\` and \\' those of the text. In Go they are the
characters themselves, so that the pattern asks for a < in the text. A word's ends are \\b, the text's \\A
and \\z.",
    bad: hook_example!(when: r#"{"commands": ["\\<python3\\>"]}"#),
    good: hook_example!(when: r#"{"commands": ["/python3$"]}"#),
    fix: FixPolicy::Manual("a < may be meant, though it is unlikely"),
};

pub static CONTROL_CHARACTER: LintRule = LintRule {
    code: "OH212",
    name: "control-character",
    severity: Warning,
    rejects: false,
    summary: "a control character in a pattern",
    explanation: "\
JSON has escapes of its own: \"\\b\" is a backspace, not the word boundary \\b, which is written \"\\\\b\". Annotations
and commands rarely have a control character, so such a pattern usually matches none.",
    bad: hook_example!(when: r#"{"commands": ["\bpython3$"]}"#),
    good: hook_example!(when: r#"{"commands": ["\\bpython3$"]}"#),
    fix: FixPolicy::Automatic("the backslash of \\b is doubled: no text contains a backspace"),
};

pub static EMPTY_PATTERN: LintRule = LintRule {
    code: "OH213",
    name: "empty-pattern",
    severity: Warning,
    rejects: false,
    summary: "an empty pattern, which matches everything",
    explanation: "\
The empty pattern is found in every text. For an annotation without a value write ^$, for any value .*,
so that readers see it. In version 0.1.0 an empty list of annotations becomes an empty pattern too, and
matches every container that has an annotation at all.",
    bad: hook_example!(when: r#"{"annotations": {"^com\\.example\\.gpu$": ""}}"#),
    good: hook_example!(when: r#"{"annotations": {"^com\\.example\\.gpu$": ".*"}}"#),
    fix: FixPolicy::Manual("the empty value or any value may be meant"),
};

pub static GLOB_PATTERN: LintRule = LintRule {
    code: "OH214",
    name: "glob-pattern",
    severity: Warning,
    rejects: false,
    summary: "a file name pattern where a regular expression is expected",
    explanation: "\
In a shell /usr/bin/* is every file in /usr/bin. As a regular expression the star repeats the slash before
it, so that the pattern matches /usr/bin, /usr/binary and /usr/bin///. Any text is .* in a regular
expression, any text without a slash [^/]*.",
    bad: hook_example!(when: r#"{"commands": ["^/opt/gpu/bin/*"]}"#),
    good: hook_example!(when: r#"{"commands": ["^/opt/gpu/bin/.*"]}"#),
    fix: FixPolicy::Manual("whether slashes are to match is not known"),
};

pub static JOINED_PATTERNS: LintRule = LintRule {
    code: "OH215",
    name: "joined-patterns",
    severity: Warning,
    rejects: false,
    summary: "patterns of version 0.1.0 that change each other",
    explanation: "\
In version 0.1.0 the annotation patterns are joined with | before they are compiled. A flag such as (?i)
then holds for all that follow, \\Q quotes the bar and the next pattern, and halves of a group that are no
patterns by themselves become one.",
    bad: RuleExample::Hook(
        r#"{"hook": "/usr/bin/gpu-hook", "annotations": ["(?i)^all$", "^none$"], "stages": ["prestart"]}"#,
    ),
    good: RuleExample::Hook(
        r#"{"hook": "/usr/bin/gpu-hook", "annotations": ["(?i:^all$)", "^none$"], "stages": ["prestart"]}"#,
    ),
    fix: FixPolicy::Manual("whether they are to change each other is not known"),
};

pub static UNMATCHABLE_PATTERN: LintRule = LintRule {
    code: "OH216",
    name: "unmatchable-pattern",
    severity: Warning,
    rejects: false,
    summary: "an annotation pattern that matches no text at all",
    explanation: "\
$ is the end of the text and ^ its start, wherever they stand: a pattern that asks for more after $ or
before ^ never matches, and neither does the hook. The characters themselves are \\$ and \\^, each with
two backslashes in JSON. For commands this is unreachable-commands.",
    bad: hook_example!(when: r#"{"annotations": {"^com\\.example\\.price$": "^$5$"}}"#),
    good: hook_example!(when: r#"{"annotations": {"^com\\.example\\.price$": "^\\$5$"}}"#),
    fix: FixPolicy::Manual("an end of the text or a character may be meant"),
};

pub static VALUE_IN_KEY: LintRule = LintRule {
    code: "OH217",
    name: "value-in-key",
    severity: Warning,
    rejects: false,
    summary: "a pattern of an annotation's key with =",
    explanation: "\
--annotation key=value is split at the first =, and keys of Kubernetes have none: no key contains it. In a hook
file the pattern of the key is a key of the object, and the pattern of the value its value.",
    bad: hook_example!(when: r#"{"annotations": {"^com\\.example\\.gpu=all$": ".*"}}"#),
    good: hook_example!(when: r#"{"annotations": {"^com\\.example\\.gpu$": "^all$"}}"#),
    fix: FixPolicy::Manual("the pattern of the value may be wrong, too"),
};

pub static COMMAND_NAME: LintRule = LintRule {
    code: "OH218",
    name: "command-name",
    severity: Note,
    rejects: false,
    summary: "a command without a directory as a whole",
    explanation: "\
Commands are compared with args[0] as the user or the image wrote it, before the program is looked up in PATH:
^bash$ matches `bash`, but neither /bin/bash nor /usr/bin/bash.",
    bad: hook_example!(when: r#"{"commands": ["^bash$"]}"#),
    good: hook_example!(when: r#"{"commands": ["(^|/)bash$"]}"#),
    fix: FixPolicy::Manual("only the bare name may be meant"),
};
