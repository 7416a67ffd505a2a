//! Values that are declared sensitive.

use std::fs;

use step_runner::wire::proto::step_result::Status;

use crate::engine::play::{FinishedJob, JobPlay};

fn run(step: &str, steps: &str) -> FinishedJob {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("s")).unwrap();
    fs::write(dir.path().join("s/step.yml"), step).unwrap();
    fs::create_dir(dir.path().join("plain")).unwrap();
    let plain =
        "spec: {inputs: {v: {type: string}}}\n---\nexec: {command: [echo, '${{inputs.v}}']}\n";
    fs::write(dir.path().join("plain/step.yml"), plain).unwrap();
    JobPlay::new(dir.path(), &format!("{{}}\n---\n{steps}")).run()
}

#[test]
fn sensitive_input_is_masked_before_the_step_runs() {
    let step = "spec: {inputs: {v: {type: string, sensitive: true}}}\n---\nexec: {command: [echo, '${{inputs.v}}']}\n";
    let played = run(step, "run: [{name: a, step: ./s, inputs: {v: canary}}]\n");
    assert_eq!(played.outcome.status, Status::Success);
    assert_eq!(played.masked, ["canary"]);
}

#[test]
fn all_text_within_a_sensitive_structure_is_masked() {
    let step =
        "spec: {inputs: {v: {type: struct, sensitive: true}}}\n---\nexec: {command: ['true']}\n";
    let played =
        run(step, "run: [{name: a, step: ./s, inputs: {v: {k: [canary, {l: robin}, true, x]}}}]\n");
    assert!(!["true", "x"].iter().any(|word| played.masked.iter().any(|m| m == word)));
    assert!(["canary", "robin"].iter().all(|secret| played.masked.iter().any(|m| m == secret)));
}

#[test]
fn sensitive_output_is_masked_and_passed_only_to_sensitive_inputs() {
    let step = "spec: {outputs: {o: {type: string, sensitive: true}}}\n---\n\
                exec: {command: [sh, -c, 'echo ''{\"name\":\"o\",\"value\":\"canary\"}'' > $1', x, '${{output_file}}']}\n";
    // Scripts accept sensitive values.
    let scripts = "run: [{name: a, step: ./s}, {name: b, script: 'echo ${{steps.a.outputs.o}}'}]\n";
    let played = run(step, scripts);
    assert_eq!(played.outcome.status, Status::Success, "{}", played.outcome.message);
    assert_eq!(played.masked, ["canary"]);

    let steps = "run: [{name: a, step: ./s}, {name: b, step: ./plain, inputs: {v: 'x${{steps.a.outputs.o}}'}}]\n";
    let played = run(step, steps);
    assert_eq!(
        played.outcome.message,
        "step \"b\": failed to load: input \"v\": non-sensitive input cannot derive value using \
         sensitive value(s) \"steps.a.outputs.o\""
    );
}
