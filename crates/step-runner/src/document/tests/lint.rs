//! Lint findings in valid and invalid step files.

use std::fs;
use std::path::Path;

use proptest::prelude::*;

use super::vectors::{cases, is_refused};
use crate::document::{BuiltinFunction, LintSeverity, lint};

fn lint_text(text: &str, dir: Option<&Path>) -> Vec<String> {
    lint("step.yml", text, dir)
        .into_iter()
        .map(|finding| {
            let hint = finding.hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
            format!("{}: {}: {}{hint}", finding.location, finding.severity, finding.message)
        })
        .collect()
}

#[test]
fn calls_are_checked_against_the_inputs_of_local_callees() {
    let dir = tempfile::tempdir().unwrap();
    let callee = "spec:
  inputs:
    version: {type: string}
    retries: {type: number, default: 1}
    quiet: {type: boolean, default: false}
    must: {type: string}
---
exec: {command: [echo]}
";
    fs::create_dir(dir.path().join("num")).unwrap();
    fs::write(dir.path().join("num/step.yml"), callee).unwrap();
    let call = |inputs: &str| {
        lint_text(
            &format!("{{}}\n---\nrun:\n- {{name: a, func: ./num, inputs: {inputs}}}\n"),
            Some(dir.path()),
        )
    };
    assert_eq!(
        call("{version: 1.10, retries: many, Version: '1', quiet: '${{vars.Q}}'}"),
        [
            "step.yml:4:19: error: the step requires the input `must`",
            "step.yml:4:44: warning: input `version` has type string: write \"1.10\"",
            "step.yml:4:59: warning: input `retries` has type number: got a string",
            "step.yml:4:65: error: the step has no input `Version` (did you mean `version`?)",
        ]
    );
    assert_eq!(call("{version: '1.10', retries: 2, must: '${{vars.M}}'}"), [""; 0]);
}

#[test]
fn unknown_built_in_functions_are_errors_with_the_nearest_name() {
    let call =
        |name: &str| lint_text(&format!("{{}}\n---\nrun: [{{name: a, func: '{name}'}}]\n"), None);
    for name in BuiltinFunction::NAMES {
        assert_eq!(call(&format!("builtin://{name}")), [""; 0]);
    }
    assert_eq!(
        call("builtin://function/oci/bild"),
        ["step.yml:3:23: error: there is no built-in function `function/oci/bild` (did you mean \
             `function/oci/build`?)"]
    );
    let found = call("dist://step/oci/build");
    assert!(found[0].contains("expected one of concrete, function/oci/build"), "{found:?}");
}

#[test]
fn all_errors_are_found_at_once_with_positions() {
    let text = "spec:
  inputs:
    path: {type: string}
    unused: {type: string, default: '${{ env.HOME }}'}
  outputs:
    none: {type: string}
    some: {type: string}
---
env: {A: '${{ steps.one.outputs.a }}'}
run:
  - name: one
    script: echo ${{ inputs.pth }} ${{ inputs.path + }}
    if: steps.two.status == 'success'
  - name: one
    step: ./missing
    inputs:
      v: [{w: \"${{ steps.one.outputs.a }} ${{ steps.three }}\"}]
  - name: two
    action: some/thing
    env:
      B: |
        several
        lines ${{ vars. }}
outputs:
  some: ${{ steps.two.outputs.b }}
  more: x
delegate: tow
";
    let dir = tempfile::tempdir().unwrap();
    let found = lint_text(text, Some(dir.path()));
    let missing = dir.path().join("missing");
    let missing =
        format!("step.yml:15:11: error: step.yml or func.yml not found in {}", missing.display());
    let expected = [
        "step.yml:3:5: note: unused input `path`",
        "step.yml:4:5: note: unused input `unused`",
        "step.yml:4:37: warning: expressions in a default are not expanded",
        "step.yml:6:5: warning: output `none` has no value (set it in `outputs` of the second document)",
        "step.yml:9:15: error: unknown step `one`: it must run before this one (there are no earlier steps)",
        "step.yml:12:54: error: ",
        "step.yml:13:9: error: unknown step `two`: it must run before this one (there are no earlier steps)",
        "step.yml:14:11: warning: duplicate step name `one`: the outputs of the step in line 11 are lost",
        &missing,
        "step.yml:17:47: error: unknown step `three`: it must run before this one (expected one of one)",
        "step.yml:19:13: warning: `action` was removed from GitLab's step runner; it runs the action with docker",
        "step.yml:23:25: error: ",
        "step.yml:26:3: warning: output `more` is not declared in `spec`",
        "step.yml:27:11: error: `delegate` names an unknown step `tow` (did you mean `two`?)",
        "step.yml:27:11: warning: `delegate` has no effect (set `outputs: delegate` in `spec`)",
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found}\n{expected}");
    }
}

#[test]
fn pipeline_interpolation_is_a_warning() {
    let text = "spec: {inputs: {a: {type: string, default: '$[[ inputs.b ]]'}}}\n---\n\
                run: [{name: x, script: 'echo ${{ inputs.a }} $[[ inputs.c ]]'}]\n";
    let warning = "warning: `$[[ ]]` is expanded in .gitlab-ci.yml only: here it is text (write \
                   `${{ inputs.NAME }}` for an input of the step)";
    let expected = ["step.yml:1:45", "step.yml:3:47"].map(|at| format!("{at}: {warning}"));
    assert_eq!(lint_text(text, None), expected);
}

#[test]
fn errors_do_not_hide_each_other() {
    let text = "spec: {inputs: {a: {typ: string}}}\n---\nexec: {comand: [a]}\nenv: {A: '${{ b'}\n";
    let found = lint_text(text, None);
    let places: Vec<_> = found.iter().map(|text| text.split(": ").next().unwrap()).collect();
    assert_eq!(places, ["step.yml:1:21", "step.yml:3:8", "step.yml:4:11"], "{found:#?}");
    assert_eq!(lint("s", "a: [", None).len(), 1);
}

#[test]
fn valid_files_have_no_findings() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("a")).unwrap();
    fs::write(dir.path().join("a/func.yml"), "").unwrap();
    let text = "spec:
  inputs: {p: {type: string}, q: {type: struct}}
  outputs: delegate
---
run:
  - {name: a, step: ./a, inputs: {x: '${{ inputs.p }}'}, if: inputs.q.b}
  - {name: b, step: ./a, inputs: {x: '${{ steps.a.outputs.y }} {{ }} ${{ env.A }}'}}
delegate: b
";
    assert_eq!(lint_text(text, Some(dir.path())), <[String; 0]>::default());
    let text = "spec: {outputs: {a: {type: string}}}\n---\n\
                exec: {command: [a, '${{ output_file }}']}\n";
    assert_eq!(lint_text(text, None), <[String; 0]>::default());
}

#[test]
fn rejection_by_the_parser_is_an_error() {
    for case in cases("steps.jsonl") {
        let findings = lint("step.yml", case["steps"].as_str().unwrap(), None);
        let is_error = findings.iter().any(|finding| finding.severity == LintSeverity::Error);
        let failed = case["expected"]["status"] != "success";
        assert!(is_error || !is_refused(&case), "{}", case["id"]);
        assert!(failed || !is_error, "{}: {findings:?}", case["id"]);
    }
}

proptest! {
    #[test]
    fn arbitrary_text_is_linted(text in "(spec|run|exec|name|step|if|[-\\[\\]{}:,$.'\"a \\n]|\n---\n){0,40}") {
        let _ = lint("s", &text, None);
    }
}
