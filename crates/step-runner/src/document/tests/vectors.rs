//! Recorded results of GitLab's step runner for step files and references.

use std::fs;
use std::path::Path;

use serde_json::{Value as Json, json};

use crate::document::{StepFile, StepReference};

/// Returns references whose meaning, according to GitLab's documentation, has changed since they were
/// recorded.
fn changed_references() -> [(&'static str, Json); 2] {
    let builtin = json!({"protocol": "dist", "path": ["script_legacy"], "filename": "step.yml"});
    [
        // `builtin://` is the current name of `dist://`.
        ("ref-042", builtin),
        // An image and a path in it.
        ("ref-050", json!({"path": ["dir"], "filename": "func.yml"})),
    ]
}

/// Invalid step files among the files of recorded jobs.
const BAD_FILES: [&str; 3] = ["spec: [\n", "spec: {}\n---\nfoo: 1\n", "spec: {}\n---\nrun: []\n"];

pub(super) fn cases(name: &str) -> Vec<Json> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns whether a case's step file was rejected when it was read, not when it was run.
pub fn is_refused(case: &Json) -> bool {
    matches!(case["expected"]["phase"].as_str().unwrap(), "read" | "compile")
}

#[test]
fn parser_accepts_the_same_recorded_step_files() {
    let mut refused = 0;
    let cases = cases("steps.jsonl");
    for case in &cases {
        let id = case["id"].as_str().unwrap();
        let result = StepFile::parse("step.yml", case["steps"].as_str().unwrap());
        assert_eq!(result.is_err(), is_refused(case), "{id}: {result:?}");
        refused += usize::from(result.is_err());
    }
    assert!(refused > 30 && cases.len() - refused > 100, "{refused} of {}", cases.len());
}

#[test]
fn step_files_of_recorded_jobs_are_accepted_unless_invalid() {
    let mut count = 0;
    for case in cases("steps.jsonl") {
        let Some(files) = case["files"].as_object() else { continue };
        for (name, text) in files.iter().filter(|(name, _)| name.ends_with(".yml")) {
            let result = StepFile::parse(name, text.as_str().unwrap());
            let is_bad = BAD_FILES.contains(&text.as_str().unwrap());
            assert_eq!(result.is_err(), is_bad, "{}: {result:?}", case["id"]);
            count += 1;
        }
    }
    assert!(count > 60, "{count}");
}

#[test]
fn recorded_references_mean_the_same() {
    let (mut count, changed) = (0, changed_references());
    for case in cases("references.jsonl") {
        let (id, text) = (case["id"].as_str().unwrap(), case["ref"].as_str().unwrap());
        let found = match StepReference::parse(text) {
            Ok(StepReference::Oci { repository, tag, path, filename, .. }) => {
                assert_eq!((repository.as_str(), tag.as_str()), ("g/p", "1"));
                json!({"reference": {"path": path, "filename": filename}})
            }
            Ok(reference) => json!({"reference": proto_json(reference)}),
            Err(error) => {
                // Our message may end with a hint.
                let text = error.to_string();
                json!({"error": text.split(": write ").next()})
            }
        };
        if let Some((_, expected)) = changed.iter().find(|(changed, _)| *changed == id) {
            assert_eq!(found["reference"], *expected, "{id}");
        } else {
            assert_eq!(found, case["expected"], "{id}: {text}");
            count += 1;
        }
    }
    assert!(count > 35, "{count}");
}

/// Returns the reference in the format of the recordings.
fn proto_json(reference: StepReference) -> Json {
    let file = |name: Option<String>| name.unwrap_or("step.yml".to_owned());
    match reference {
        StepReference::Local { path, filename } => {
            json!({"protocol": "local", "path": path, "filename": file(filename)})
        }
        StepReference::Git { url, rev, path, filename } => json!({
            "protocol": "git", "url": url, "version": rev, "path": path, "filename": file(filename),
        }),
        StepReference::Builtin { path } => {
            json!({"protocol": "dist", "path": path, "filename": "step.yml"})
        }
        StepReference::Dynamic(text) => json!({"protocol": "dynamic", "url": text}),
        StepReference::Oci { .. } => unreachable!("there were none"),
    }
}
