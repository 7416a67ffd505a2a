//! Step files of jobs: parsed or rejected, and linted.

#![no_main]

use libfuzzer_sys::fuzz_target;
use step_runner::document::{LintSeverity, StepFile, StepReference, lint, parse_steps};

fuzz_target!(|text: &str| {
    let findings = lint("s.yml", text, None);
    if let Err(error) = StepFile::parse("s.yml", text) {
        assert!(error.to_string().starts_with("s.yml:"));
        assert!(findings.iter().any(|finding| finding.severity == LintSeverity::Error));
    }
    let _ = parse_steps(text);
    let _ = StepReference::parse(text);
});
