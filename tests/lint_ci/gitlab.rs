//! The template for GitLab CI.

use std::fs;

use serde_json::Value;

use crate::env::{GOOD, VERSION, World, error, text};
use crate::job::{REPORT, TOOLS, play, template};
use crate::note;

fn report(world: &World) -> Vec<Value> {
    let text = fs::read_to_string(world.path("checkout").join(REPORT)).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn job_reports_findings_and_fails() {
    for shell in ["sh", "bash"] {
        let world = World::new(&[("a.json", GOOD), ("b.json", &error())], &TOOLS).install();
        let output = play(&world, shell, &[]);
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
        let world = World::new(&[("a.json", file)], &TOOLS).install();
        let output = play(&world, "sh", &[]);
        assert!(output.status.success(), "{}", text(&output));
        assert_eq!(report(&world).len(), findings);
    }
}

#[test]
fn paths_and_arguments_are_words_and_never_commands() {
    let world = World::new(&[("a.json", &error()), ("b.json", GOOD)], &TOOLS).install();
    let output =
        play(&world, "sh", &[("paths", "hooks.d/[bc].json"), ("args", "--strict --as=crio")]);
    assert!(output.status.success(), "{}", text(&output));
    for input in ["paths", "args"] {
        let output = play(&world, "sh", &[(input, "$(touch pwned) `touch pwned`; touch pwned")]);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(!world.path("checkout/pwned").exists());
    }
}

#[test]
fn releases_to_download_from_must_be_named() {
    let world = World::new(&[("a.json", GOOD)], &TOOLS);
    let output = play(&world, "sh", &[]);
    assert!(!output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("the input `releases` names none"), "{}", text(&output));
}

#[test]
fn template_is_of_this_release() {
    let (spec, _) = template();
    assert_eq!(spec["spec"]["inputs"]["version"]["default"], VERSION);
}
