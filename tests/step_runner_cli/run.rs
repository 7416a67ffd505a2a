//! What `run` takes, and what it shows.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

/// A step with outputs, one of them sensitive, that prints its arguments.
const STEP: &str = r#"spec:
  inputs:
    n: {type: number, default: 0}
    token: {type: string, default: none, sensitive: true}
  outputs: {size: {type: number}, key: {type: string, sensitive: true}}
---
exec:
  command:
    - sh
    - -c
    - |
      echo "{\"name\":\"size\",\"value\":${{ inputs.n }}}" >"$1"
      echo "{\"name\":\"key\",\"value\":\"made-of-$2\"}" >>"$1"
      echo "n=${{ inputs.n }} E=$E"
    - sh
    - "${{ output_file }}"
    - "${{ inputs.token }}"
"#;

fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("lib/build")).unwrap();
    fs::write(dir.path().join("lib/build/step.yml"), STEP).unwrap();
    dir
}

fn step_runner(dir: &Path, args: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_step-runner"));
    program.env_clear().env("PATH", "/usr/bin:/bin").env("TMPDIR", dir).env("HOME", dir);
    program.env("INHERITED", "from outside").env("MY_API_TOKEN", "environment-canary");
    program.args(args).current_dir(dir).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[track_caller]
fn stdout(output: &Output) -> &str {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn a_step_call_may_be_given_as_yaml() {
    let dir = directory();
    for (args, expected) in [
        (&["step: ./lib/build"][..], "Running step \"./lib/build\"\nn=0 E=\n"),
        (
            &["{step: ./lib/build, inputs: {n: 0b11}, env: {E: 010}}"],
            "Running step \"./lib/build\"\nn=3 E=010\n",
        ),
        (
            &["name: a\nstep: ./lib/build\ninputs: {n: 1}", "--input", "n=1_000"],
            "Running step \"a\"\nn=1000 E=\n",
        ),
        (&["script: echo $E", "--env", "E=x"], "Running step \"script\"\nx\n"),
        (&["lib/build"], "Running step \"./lib/build\"\nn=0 E=\n"),
    ] {
        let args: Vec<_> = ["run"].iter().chain(args).copied().collect();
        assert_eq!(stdout(&step_runner(dir.path(), &args)), expected, "{args:?}");
    }
    let output = step_runner(dir.path(), &["run", "{step: ./lib/build, with: {n: 1}}"]);
    assert_eq!(text(&output.stderr), "error: the step:1:21: unknown key `with`: write `inputs`\n");
    let output = step_runner(dir.path(), &["run", "lib/biuld"]);
    let expected = "error: compiling reference: expecting url@rev. got \"lib/biuld\": write \"./lib/biuld\" for a directory\n";
    assert_eq!(text(&output.stderr), expected);
}

#[test]
fn outputs_are_shown_with_their_values_and_without_secrets() {
    let dir = directory();
    let call = ["run", "./lib/build", "--input", "n=5", "--input", "token=canary-input"];
    let output = step_runner(dir.path(), &call);
    assert_eq!(stdout(&output), "Running step \"./lib/build\"\nn=5 E=\n");
    assert_eq!(text(&output.stderr), "Outputs:\n  key = \"[MASKED]\"\n  size = 5\n");
    let output = step_runner(dir.path(), &[&call[..], &["--show-secrets"]].concat());
    assert_eq!(text(&output.stderr), "Outputs:\n  key = \"made-of-canary-input\"\n  size = 5\n");
}

#[test]
fn results_have_no_secrets_and_do_not_repeat_the_environment() {
    let dir = directory();
    let call =
        ["run", "./lib/build", "-e", "E=e", "--input", "token=canary-input", "--format", "json"];
    let call = [&call[..], &["--results", "r.json"]].concat();
    let output = step_runner(dir.path(), &call);
    let json: Value = serde_json::from_str(stdout(&output)).unwrap();
    let file = fs::read_to_string(dir.path().join("r.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&file).unwrap(), json);
    for text in [stdout(&output), text(&output.stderr), &file] {
        assert!(!text.contains("canary") && !text.contains("from outside"), "{text}");
    }
    assert_eq!(json.get("env"), None);
    let step = &json["subStepResults"][0];
    assert_eq!(step["env"], json!({"E": "e"}));
    assert_eq!(step["step"]["inputs"], json!({"token": "[MASKED]"}));
    assert_eq!(step["outputs"], json!({"key": "[MASKED]", "size": 0}));

    let output = step_runner(dir.path(), &[&call[..], &["--show-secrets"]].concat());
    for shown in ["canary-input", "from outside", "environment-canary"] {
        assert!(stdout(&output).contains(shown), "{shown}");
    }
}

#[test]
fn error_messages_have_no_secrets() {
    let dir = directory();
    let step = "spec: {inputs: {t: {type: string, sensitive: true}}}\n---\nexec: {command: ['./${{ inputs.t }}']}\n";
    fs::write(dir.path().join("step.yml"), step).unwrap();
    let output = step_runner(dir.path(), &["run", ".", "--input", "t=canary-input"]);
    let expected = "error: step \".\": exec: fork/exec ./[MASKED]: no such file or directory\n";
    assert_eq!(text(&output.stderr), expected);
}

#[test]
fn results_and_definitions_may_be_text_of_protocol_buffers() {
    let dir = directory();
    let call =
        ["run", "./lib/build", "--write-steps-results", "--step-results-format", "prototext"];
    stdout(&step_runner(dir.path(), &call));
    let results = fs::read_to_string(dir.path().join("step-results.txtpb")).unwrap();
    for part in ["status: success", "name: \"a\"", "number_value: 0"] {
        assert_eq!(results.contains(part), part != "name: \"a\"", "{results}");
    }
    assert!(!results.contains("canary"), "{results}");

    let definition = r#"type: steps steps {
        name: "a" step { protocol: local path: "." path: "build" filename: "step.yml" }
        inputs { key: "n" value { number_value: 7 } }
    }"#;
    fs::write(dir.path().join("lib/definition.txtpb"), definition).unwrap();
    let call = ["run", "--text-proto-step-file", "lib/definition.txtpb"];
    assert_eq!(stdout(&step_runner(dir.path(), &call)), "Running step \"a\"\nn=7 E=\n");
    let definition = "type: exec exec { command: \"echo\" command: \"${{ step_dir }}\" }";
    fs::write(dir.path().join("lib/definition.txtpb"), definition).unwrap();
    let lib = fs::canonicalize(dir.path().join("lib")).unwrap();
    let expected = format!("Running step \"echo\"\n{}\n", lib.display());
    assert_eq!(stdout(&step_runner(dir.path(), &call)), expected);

    fs::write(dir.path().join("lib/definition.txtpb"), "type: nothing").unwrap();
    let output = step_runner(dir.path(), &call);
    assert!(text(&output.stderr).starts_with("error: reading lib/definition.txtpb: "));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn lint_says_if_there_is_nothing_to_lint() {
    let dir = directory();
    fs::create_dir(dir.path().join("empty")).unwrap();
    let output = step_runner(dir.path(), &["lint", "lib", "empty"]);
    let expected = "error: no step files in empty: expected step.yml or func.yml\n";
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), expected));
    assert_eq!(step_runner(dir.path(), &["lint", "lib"]).status.code(), Some(0));
}
