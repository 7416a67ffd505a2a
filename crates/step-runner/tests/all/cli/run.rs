//! Arguments and output of `run`.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// A step that prints its arguments and has outputs, including a sensitive one.
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
fn step_call_can_be_given_as_yaml() {
    let dir = directory();
    for (args, expected) in [
        (&["step: ./lib/build"][..], "Running step name=./lib/build\nn=0 E=\n"),
        (
            &["{step: ./lib/build, inputs: {n: 0b11}, env: {E: 010}}"],
            "Running step name=./lib/build\nn=3 E=010\n",
        ),
        (
            &["name: a\nstep: ./lib/build\ninputs: {n: 1}", "--input", "n=1_000"],
            "Running step name=a\nn=1000 E=\n",
        ),
        (&["script: echo $E", "--env", "E=x"], "Running step name=script\nx\n"),
        (&["lib/build"], "Running step name=./lib/build\nn=0 E=\n"),
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
fn mistakes_with_programs_and_files_have_hints() {
    let dir = directory();
    for (file, content) in [
        ("beside/step.yml", "{}\n---\nexec: {command: [./bin/x.sh, a]}\n"),
        ("beside/bin/x.sh", ""),
        ("blank/step.yml", "{}\n---\nexec: {command: ['echo hi && ls']}\n"),
        ("blanks/step.yml", "{}\n---\nexec: {command: ['/bin/echo hi']}\n"),
        ("wrong/step.yml", "{}\n---\nexec: {command: [no-such-program]}\n"),
        // There is no `step.yml`, but that is not the mistake.
        ("kind/func.yml/x", ""),
        (".gitlab-ci.yml", "hello:\n  run:\n    - {name: a, script: echo a}\n"),
    ] {
        let path = dir.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let items = "write each argument as an item of `command`, or use `script`";
    for (step, expected) in [
        (
            "./beside",
            "fork/exec ./bin/x.sh: no such file or directory: for the file in the directory of the step, \
             write \"${{ func_dir }}/bin/x.sh\"",
        ),
        ("./blank", &format!("\"echo hi && ls\": executable file not found in $PATH: {items}")),
        ("./blanks", &format!("fork/exec /bin/echo hi: no such file or directory: {items}")),
        ("./wrong", "\"no-such-program\": executable file not found in $PATH"),
        ("./kind", "kind/func.yml\": reading file: not a regular file"),
    ] {
        let output = step_runner(dir.path(), &["run", step]);
        let error = text(&output.stderr);
        assert!(error.ends_with(&format!("{expected}\n")), "{error}");
    }
    let output = step_runner(dir.path(), &["run", ".gitlab-ci.yml"]);
    assert!(
        text(&output.stderr)
            .contains("line 1, column 1: this is a .gitlab-ci.yml, not a step file")
    );
}

#[test]
fn outputs_are_shown_without_secrets() {
    let dir = directory();
    let call = ["run", "./lib/build", "--input", "n=5", "--input", "token=canary-input"];
    let output = step_runner(dir.path(), &call);
    assert_eq!(stdout(&output), "Running step name=./lib/build\nn=5 E=\n");
    assert_eq!(text(&output.stderr), "Outputs:\n  key = \"[MASKED]\"\n  size = 5\n");
    let output = step_runner(dir.path(), &[&call[..], &["--show-secrets"]].concat());
    assert_eq!(text(&output.stderr), "Outputs:\n  key = \"made-of-canary-input\"\n  size = 5\n");
}

#[test]
fn results_contain_no_secrets_and_no_repeated_environment() {
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
fn error_messages_contain_no_secrets() {
    let dir = directory();
    let step = "spec: {inputs: {t: {type: string, sensitive: true}}}\n---\nexec: {command: ['./${{ inputs.t }}']}\n";
    fs::write(dir.path().join("step.yml"), step).unwrap();
    let output = step_runner(dir.path(), &["run", ".", "--input", "t=canary-input"]);
    let expected = "error: step \".\": exec: fork/exec ./[MASKED]: no such file or directory\n";
    assert_eq!(text(&output.stderr), expected);
}

#[test]
fn results_and_definitions_can_be_protobuf_text() {
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
    assert_eq!(stdout(&step_runner(dir.path(), &call)), "Running step name=a\nn=7 E=\n");
    let definition = "type: exec exec { command: \"echo\" command: \"${{ step_dir }}\" }";
    fs::write(dir.path().join("lib/definition.txtpb"), definition).unwrap();
    let lib = fs::canonicalize(dir.path().join("lib")).unwrap();
    let expected = format!("Running step name=echo\n{}\n", lib.display());
    assert_eq!(stdout(&step_runner(dir.path(), &call)), expected);

    fs::write(dir.path().join("lib/definition.txtpb"), "type: nothing").unwrap();
    let output = step_runner(dir.path(), &call);
    assert!(text(&output.stderr).starts_with("error: reading lib/definition.txtpb: "));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn second_sigterm_does_not_end_a_job_that_is_being_cancelled() {
    let dir = directory();
    let script = "trap 'echo first; while [ ! -e go ]; do sleep 0.02; done; echo bye; exit 3' TERM; \
                  echo up; while :; do sleep 0.02; done";
    let step = json!({"exec": {"command": ["sh", "-c", script]}});
    fs::write(dir.path().join("step.yml"), format!("{{}}\n---\n{step}\n")).unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_step-runner"));
    program.env_clear().env("PATH", "/usr/bin:/bin").env("TMPDIR", dir.path());
    program.args(["run", "--grace", "1h", "."]).current_dir(dir.path());
    let mut child = program.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // timeout(1) sends SIGTERM twice.
    for word in ["up", "first"] {
        assert!(lines.any(|line| line.unwrap() == word), "{word}");
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    }
    fs::write(dir.path().join("go"), "").unwrap();
    assert!(lines.any(|line| line.unwrap() == "bye"));
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

#[test]
fn lint_reports_an_empty_directory() {
    let dir = directory();
    fs::create_dir(dir.path().join("empty")).unwrap();
    let output = step_runner(dir.path(), &["lint", "lib", "empty"]);
    let expected = "error: no step files in empty: expected step.yml or func.yml\n";
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), expected));
    assert_eq!(step_runner(dir.path(), &["lint", "lib"]).status.code(), Some(0));
}
