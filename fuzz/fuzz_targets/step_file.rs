//! What a job might give as a step file: read or refused, and linted.

#![no_main]

use libfuzzer_sys::fuzz_target;
use oci_hooks::step_runner::document::{Reference, Severity, StepFile, lint, parse_steps};

fuzz_target!(|text: &str| {
    let findings = lint("s.yml", text, None);
    if let Err(error) = StepFile::parse("s.yml", text) {
        assert!(error.to_string().starts_with("s.yml:"));
        assert!(findings.iter().any(|finding| finding.severity == Severity::Error));
    }
    let _ = parse_steps(text);
    let _ = Reference::parse(text);
});
