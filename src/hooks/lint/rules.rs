//! The catalogue: every rule, what it finds and why that matters.
//!
//! It is the one source for explanations, `lint --rules`, SARIF and the documentation. Codes are
//! stable: they are never given to another rule. The first digit says what a rule is about: 0 files that
//! are rejected, 1 keys and text, 2 conditions and patterns, 3 stages and programs, 4 files and
//! directories, 5 other consumers.

mod files;
mod patterns;
mod program;
mod refused;
mod text;

pub use files::*;
pub use patterns::*;
pub use program::*;
pub use refused::*;
pub use text::*;

use std::fmt;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Worth knowing; correct files may have it.
    Note,
    /// It works, but most likely not as meant.
    Warning,
    /// It does not work, or others can take it over.
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

/// One thing the linter looks for.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rule {
    /// The stable code, such as `OH003`.
    pub code: &'static str,
    /// The name, in kebab case.
    pub name: &'static str,
    /// How bad it is, unless a finding knows better.
    pub severity: Severity,
    /// Whether consumers reject a file with it.
    pub rejects: bool,
    pub summary: &'static str,
    /// Why it matters and what podman, CRI-O and the runtimes make of it.
    pub explanation: &'static str,
    pub bad: Example,
    pub good: Example,
    /// Whether it can be corrected without a person, and why or why not.
    pub fix: FixPolicy,
}

/// An example in an explanation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Example {
    Hook(&'static str),
    /// A directory or a file that is no hook file, as a shell shows it.
    Shell(&'static str),
}

impl Example {
    /// Returns the text to show.
    pub fn text(self) -> &'static str {
        match self {
            Example::Hook(text) | Example::Shell(text) => text,
        }
    }
}

/// Whether a finding can be corrected without a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FixPolicy {
    /// It can, where there is no doubt; this is what is done and why it is safe.
    Automatic(&'static str),
    /// It cannot; this is why.
    Manual(&'static str),
}

impl Rule {
    /// Finds a rule by its code or its name.
    pub fn find(code_or_name: &str) -> Option<&'static Rule> {
        ALL.iter()
            .copied()
            .find(|rule| rule.code.eq_ignore_ascii_case(code_or_name) || rule.name == code_or_name)
    }
}

/// All rules, in the order of their codes.
pub static ALL: &[&Rule] = &[
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
];
