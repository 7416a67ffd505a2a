//! Patterns compared with recordings of Go's `regexp`: rejected patterns with their errors, and matches.
//!
//! `regex_vectors.jsonl` contains patterns chosen by hand, `regex_fuzz.jsonl` random patterns made of the
//! syntax's building blocks; both were recorded from Go 1.25. `regex_whole.jsonl` contains more random
//! patterns, recorded from Go 1.27 with `\A(?:…)\z` around each.

use std::fmt::Write;

use oci_hooks::hooks::{Pattern, PatternError};
use serde::Deserialize;

#[derive(Deserialize)]
struct PatternCase {
    pattern: String,
    texts: Vec<String>,
    #[serde(default)]
    go: Option<PatternOutcome>,
    #[serde(flatten)]
    outcome: Option<PatternOutcome>,
}

#[derive(Deserialize)]
struct PatternOutcome {
    ok: bool,
    #[serde(default)]
    matches: Vec<bool>,
    #[serde(default)]
    whole: Vec<bool>,
    #[serde(default)]
    error: String,
}

#[test]
fn selected_patterns_behave_like_in_go() {
    assert_conforms(include_str!("../../data/conformance/regex_vectors.jsonl"), 244);
}

#[test]
fn random_patterns_behave_like_in_go() {
    assert_conforms(include_str!("../../data/conformance/regex_fuzz.jsonl"), 7999);
}

#[test]
fn whole_texts_match_like_in_go() {
    assert_conforms(include_str!("../../data/conformance/regex_whole.jsonl"), 2000);
}

fn assert_conforms(lines: &str, count: usize) {
    let mut report = String::new();
    let mut checked = 0;
    for line in lines.lines() {
        let line: PatternCase = serde_json::from_str(line).expect(line);
        let expected = line.go.or(line.outcome).expect("an outcome");
        if let Err(difference) = check(&line.pattern, &line.texts, &expected) {
            writeln!(report, "{:?}: {difference}", line.pattern)
                .expect("a string takes everything");
        }
        checked += 1;
    }
    assert_eq!(checked, count);
    assert!(report.is_empty(), "{report}");
}

fn check(pattern: &str, texts: &[String], expected: &PatternOutcome) -> Result<(), String> {
    match (Pattern::new(pattern), expected.ok) {
        (Ok(compiled), true) => {
            assert_eq!(texts.len(), expected.matches.len());
            for (text, expected) in texts.iter().zip(&expected.matches) {
                if compiled.is_match(text) != *expected {
                    return Err(format!("should match {text:?}: {expected}"));
                }
            }
            for (text, expected) in texts.iter().zip(&expected.whole) {
                if compiled.is_full_match(text) != *expected {
                    return Err(format!("should match the whole of {text:?}: {expected}"));
                }
            }
            Ok(())
        }
        (Err(error), false) => check_error(&error, &expected.error),
        (Ok(_), false) => Err(format!("should be refused: {}", expected.error)),
        (Err(error), true) => Err(format!("should be accepted, not: {error}")),
    }
}

fn check_error(error: &PatternError, expected: &str) -> Result<(), String> {
    let expected = expected.strip_prefix("error parsing regexp: ").expect("Go's prefix");
    let (kind, fragment) = expected.split_once(": `").expect("a quoted fragment");
    let fragment = fragment.strip_suffix('`').expect("a closing quote");
    if error.kind().to_string() != kind {
        return Err(format!("should be {expected}, not: {error}"));
    }
    // For some errors Go quotes the whole pattern, and for a trailing backslash nothing. Our fragments are shorter.
    let ours_points = ["expression nests", "missing closing )", "trailing", "unexpected )"];
    if error.fragment() != fragment && !ours_points.iter().any(|start| kind.starts_with(start)) {
        return Err(format!("should point at {fragment:?}, not {:?}", error.fragment()));
    }
    Ok(())
}
