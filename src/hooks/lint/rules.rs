//! The catalogue: every rule, its findings and its explanation.
//!
//! `lint --explain`, `lint --rules`, SARIF output and the documentation take their texts from here.
//! Codes are stable and never reused. The first digit is the subject: 0 rejected files, 1 keys and
//! text, 2 conditions and patterns, 3 stages and programs, 4 files and directories, 5 other
//! consumers, 6 specifications of the Container Device Interface.

/// Builds an example hook file of version 1.0.0; omitted fields have the values of `GOOD`.
macro_rules! hook_example {
    (hook: $hook:literal, when: $when:literal, stages: $stages:literal) => {
        RuleExample::Hook(concat!(
            "{\n  \"version\": \"1.0.0\",\n  \"hook\": ",
            $hook,
            ",\n  \"when\": ",
            $when,
            ",\n  \"stages\": ",
            $stages,
            "\n}"
        ))
    };
    (hook: $hook:literal, stages: $stages:literal) => {
        hook_example!(hook: $hook, when: r#"{"always": true}"#, stages: $stages)
    };
    (when: $when:literal, stages: $stages:literal) => {
        hook_example!(hook: r#"{"path": "/usr/bin/gpu-hook"}"#, when: $when, stages: $stages)
    };
    (hook: $hook:literal) => {
        hook_example!(hook: $hook, stages: r#"["createRuntime"]"#)
    };
    (when: $when:literal) => {
        hook_example!(when: $when, stages: r#"["createRuntime"]"#)
    };
    (stages: $stages:literal) => {
        hook_example!(when: r#"{"always": true}"#, stages: $stages)
    };
    () => {
        hook_example!(stages: r#"["createRuntime"]"#)
    };
}

mod devices;
mod execution;
mod files;
mod patterns;
mod program;
mod refused;
mod text;

pub use devices::*;
pub use execution::*;
pub use files::*;
pub use patterns::*;
pub use program::*;
pub use refused::*;
pub use text::*;

use std::fmt;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Informational; correct files may have such findings.
    Note,
    /// The file works, but most likely not as intended.
    Warning,
    /// The file does not work, or other users can take it over.
    Error,
}

impl Severity {
    /// Returns the name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A check of the linter.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LintRule {
    /// The stable code, such as `OH003`.
    pub code: &'static str,
    /// The name, in kebab case.
    pub name: &'static str,
    /// Default severity of its findings.
    pub severity: Severity,
    /// If set, consumers reject a file with such a finding.
    pub rejects: bool,
    pub summary: &'static str,
    /// Reason for the rule, and the behaviour of podman, CRI-O and the runtimes.
    pub explanation: &'static str,
    pub bad: RuleExample,
    pub good: RuleExample,
    /// Automatic fix, or the reason why there is none.
    pub fix: FixPolicy,
}

/// An example that a rule reports or accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RuleExample {
    Hook(&'static str),
    /// Shell commands and output that show a directory, or a file other than a hook file.
    Shell(&'static str),
}

impl RuleExample {
    /// Returns the text to show.
    pub fn text(self) -> &'static str {
        match self {
            RuleExample::Hook(text) | RuleExample::Shell(text) => text,
        }
    }
}

/// Availability of an automatic fix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FixPolicy {
    /// The linter fixes unambiguous findings; the text describes the fix and why it is safe.
    Automatic(&'static str),
    /// The linter fixes no finding of the rule; the text gives the reason.
    Manual(&'static str),
}

impl LintRule {
    /// Finds a rule by its code or its name.
    pub fn find(code_or_name: &str) -> Option<&'static LintRule> {
        ALL.iter()
            .copied()
            .find(|rule| rule.code.eq_ignore_ascii_case(code_or_name) || rule.name == code_or_name)
    }
}

/// All rules, in the order of their codes.
pub static ALL: &[&LintRule] = &[
    &UNREADABLE_FILE,
    &INVALID_JSON,
    &TRAILING_COMMA,
    &COMMENT,
    &BYTE_ORDER_MARK,
    &INVALID_ESCAPE,
    &EMPTY_FILE,
    &WRONG_TYPE,
    &UNKNOWN_VERSION,
    &MISSING_VERSION,
    &MISSING_HOOK,
    &MISSING_PATH,
    &MISSING_STAGES,
    &BOTH_SPELLINGS,
    &UNKNOWN_STAGE,
    &INVALID_PATTERN,
    &MISSING_PROGRAM,
    &PROGRAM_LOOKUP,
    &RUNTIME_HOOKS,
    &UNKNOWN_KEY,
    &KEY_CASE,
    &DUPLICATE_KEY,
    &OLD_SCHEMA,
    &NULL_VALUE,
    &INVALID_TEXT,
    &TOO_MANY_FINDINGS,
    &NO_CONDITION,
    &ALWAYS_FALSE,
    &BIND_MOUNTS_FALSE,
    &REDUNDANT_ALWAYS,
    &UNREACHABLE_COMMANDS,
    &COMMAND_LINE_PATTERN,
    &UNANCHORED_PATTERN,
    &UNESCAPED_DOT,
    &DOUBLE_ESCAPE,
    &NOT_POSIX,
    &MISLEADING_ESCAPE,
    &CONTROL_CHARACTER,
    &EMPTY_PATTERN,
    &GLOB_PATTERN,
    &JOINED_PATTERNS,
    &UNMATCHABLE_PATTERN,
    &VALUE_IN_KEY,
    &COMMAND_NAME,
    &PRESTART_DEPRECATED,
    &DOUBLED_PRESTART,
    &REPEATED_STAGE,
    &NO_STAGES,
    &RELATIVE_PROGRAM,
    &PROGRAM_NOT_A_FILE,
    &PROGRAM_NOT_EXECUTABLE,
    &WRONG_ARGS0,
    &MISSING_TIMEOUT,
    &USELESS_TIMEOUT,
    &MISSING_ENV,
    &MALFORMED_ENV,
    &PROGRAM_IN_CONTAINER,
    &REPLACED_BY_CDI,
    &CRLF_SCRIPT,
    &MISSING_INTERPRETER,
    &INTERPRETER_NOT_EXECUTABLE,
    &RELATIVE_INTERPRETER,
    &MISSING_ENV_PROGRAM,
    &NO_SEARCH_PATH,
    &UNKNOWN_FORMAT,
    &FOREIGN_ARCHITECTURE,
    &REPEATED_VARIABLE,
    &LONG_TIMEOUT,
    &VARIABLE_IN_ENV,
    &WRITABLE_BY_OTHERS,
    &WRONG_OWNER,
    &DANGLING_SYMLINK,
    &IGNORED_NAME,
    &HIDDEN_FILE,
    &NAMES_DIFFER_IN_CASE,
    &MASKED_BUT_BROKEN,
    &BROKEN_MASK,
    &MASKING_HOOK,
    &MISSING_DIRECTORY,
    &UNREADABLE_DIRECTORY,
    &UNREAD_DIRECTORY,
    &STAGE_NOT_PORTABLE,
    &INVALID_SPECIFICATION,
    &CONFLICTING_DEVICE,
    &MISSING_DEVICE_PROGRAM,
];
