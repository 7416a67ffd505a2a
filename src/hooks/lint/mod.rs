//! Finds mistakes in hook files before a container does.
//!
//! [`lint_dirs`] lints hook directories as a consumer reads them, [`lint_file`] one file, and
//! [`lint_text`] a text. Each [`HookFinding`] names its [`LintRule`]; [`rules::ALL`] is the catalogue with
//! the explanation of each. Every file that the loader rejects has an error here, but unlike the
//! loader, which stops at the first one, the linter reports all it can find. Where it is safe, a
//! finding has a [`LintFix`], and [`apply`] applies fixes to a text.
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

mod devices;
mod directory;
mod execution;
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

pub use devices::lint_devices;
pub use directory::{lint_dirs, lint_file};
pub use execution::fix_program;
pub use finding::{HookFinding, LintReport, LintedFile, RelatedPlace};
pub use fix::{LintFix, apply};
pub use options::{LintOptions, RuleLevel, RuleLevels, UnreadDirectory};
pub use rules::{FixPolicy, LintRule, RuleExample, Severity};
pub use text::{AppliedFix, FixedText, fix_text, lint_text};
