//! Mistakes in hook files, found before a container finds them.
//!
//! [`lint_dirs`] looks at hook directories as a consumer reads them, [`lint_file`] at one file and
//! [`lint_text`] at a text. Each [`Finding`] names its [`Rule`]; [`rules::ALL`] is the catalogue with
//! the explanation of each. What the loader rejects is always an error here, but unlike the loader,
//! which stops at the first fault, a linter names all it can find. Where it is safe, a finding has a
//! [`Fix`], and [`apply`] puts fixes into a text.
//!
//! ```
//! use std::path::Path;
//! use oci_hooks::hooks::lint::{self, LintOptions};
//!
//! let text = br#"{"version": "1.0.0", "hook": {"path": "/bin/true"},
//!   "when": {"always": true}, "stages": ["poststart",]}"#;
//! let findings = lint::lint_text(Path::new("a.json"), text, &LintOptions::default());
//! let comma = findings.iter().find(|finding| finding.rule.name == "trailing-comma").unwrap();
//! assert_eq!(comma.location.as_ref().unwrap().line, 2);
//! let fixed = lint::apply(text, comma.fix.as_ref());
//! assert!(fixed.ends_with(br#""stages": ["poststart"]}"#));
//! ```

mod directory;
mod fields;
mod finding;
mod fix;
mod keys;
mod options;
mod patterns;
mod program;
mod repair;
pub mod rules;
mod schema;
#[cfg(test)]
mod tests;
mod text;

pub use directory::{lint_dirs, lint_file};
pub use finding::{Finding, LintedFile, Related, Report};
pub use fix::{Fix, apply};
pub use options::{FileChecks, Level, Levels, LintOptions, UnreadDirectory};
pub use rules::{Example, FixPolicy, Rule, Severity};
pub use text::{AppliedFix, Fixed, fix_text, lint_text};
