//! The template for GitLab CI.

use std::fs;

use serde_json::Value;

use crate::lint_ci::env::{CheckoutEnv, GOOD, VERSION, error, text};
use crate::lint_ci::job::{REPORT, TOOLS, run_job, template};
use crate::lint_ci::note;

fn report(world: &CheckoutEnv) -> Vec<Value> {
    let text = fs::read_to_string(world.path("checkout").join(REPORT)).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn job_reports_findings_and_fails() {
    for shell in ["sh", "bash"] {
        let world = CheckoutEnv::new(&[("a.json", GOOD), ("b.json", &error())], &TOOLS).install();
        let output = run_job(&world, shell, &[]);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        assert!(text(&output).contains("error[OH015]"), "{}", text(&output));
        let report = report(&world);
        assert_eq!(report.len(), 1);
        assert_eq!(report[0]["check_name"], "OH015");
        assert_eq!(report[0]["severity"], "major");
        assert_eq!(report[0]["location"]["path"], "hooks.d/b.json");
        assert_eq!(report[0]["location"]["lines"]["begin"], 3);
        assert!(report[0]["description"].is_string() && report[0]["fingerprint"].is_string());
    }
}

#[test]
fn job_passes_without_errors_and_warnings() {
    for (file, findings) in [(GOOD, 0), (note().as_str(), 1)] {
        let world = CheckoutEnv::new(&[("a.json", file)], &TOOLS).install();
        let output = run_job(&world, "sh", &[]);
        assert!(output.status.success(), "{}", text(&output));
        assert_eq!(report(&world).len(), findings);
    }
}

#[test]
fn paths_and_arguments_are_split_into_words() {
    let world = CheckoutEnv::new(&[("a.json", &error()), ("b.json", GOOD)], &TOOLS).install();
    let output =
        run_job(&world, "sh", &[("paths", "hooks.d/[bc].json"), ("args", "--strict --as=crio")]);
    assert!(output.status.success(), "{}", text(&output));
    for input in ["paths", "args"] {
        let output = run_job(&world, "sh", &[(input, "$(touch pwned) `touch pwned`; touch pwned")]);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(!world.path("checkout/pwned").exists());
    }
}

#[test]
fn release_source_is_required() {
    let world = CheckoutEnv::new(&[("a.json", GOOD)], &TOOLS);
    let output = run_job(&world, "sh", &[]);
    assert!(!output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("the input `releases` names none"), "{}", text(&output));
}

#[test]
fn template_version_matches_this_release() {
    let (spec, _) = template();
    assert_eq!(spec["spec"]["inputs"]["version"]["default"], VERSION);
}
