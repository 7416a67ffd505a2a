//! Messages for mistakes, and their positions.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::document::{
    DocumentProblem, OutputSpecs, RunAction, StepAction, StepFile, StepReference, parse_steps,
};
use crate::{DeclaredType, ExprValue};

/// Parses the definition of a step file with an empty specification; the definition starts in line 3.
fn definition(text: &str) -> StepFile {
    StepFile::parse("step.yml", &format!("spec: {{}}\n---\n{text}")).unwrap()
}

fn run(text: &str) -> RunAction {
    match definition(text).definition.action {
        StepAction::Run(run) => run,
        other => panic!("{other:?}"),
    }
}

fn message(text: &str) -> String {
    StepFile::parse("step.yml", text).unwrap_err().to_string()
}

#[test]
fn errors_have_a_position_and_a_fix() {
    let deep = format!("spec: {}1{}\n---\n", "[".repeat(100), "]".repeat(100));
    for (text, expected) in [
        (
            "",
            "step.yml: no YAML document: expected two, `spec: {}` and, after a line `---`, the definition",
        ),
        (
            "spec: {}\n",
            "step.yml: missing second document: expected `exec` or `run` after a line `---`",
        ),
        (
            "spec: {}\n---\n",
            "step.yml:3:1: missing second document: expected `exec` or `run` after a line `---`",
        ),
        ("spec: {\n---\n", "step.yml:2:1: invalid YAML: "),
        (
            "# mine\nrun: [{name: a, script: b}]\n",
            "step.yml:2:1: missing first document: put `spec: {}` and a line `---` before this one",
        ),
        (
            "inputs: {}\n---\n",
            "step.yml:1:1: unknown key `inputs`: write it in `spec`: `spec: {inputs: …}`",
        ),
        (
            "stages: [a]\nbuild:\n  script: make\n",
            "step.yml:1:1: this is a .gitlab-ci.yml, not a step file: ",
        ),
        (
            "spec: {inputs: {a: {type: string}}}\n---\nbuild:\n  stage: a\n  script: [make]\n",
            "step.yml:3:1: this is a .gitlab-ci.yml, not a step file: ",
        ),
        (
            "on: push\njobs: {a: {steps: [{uses: b}]}}\n",
            "step.yml:2:1: this is a workflow or action of GitHub, not a step file: ",
        ),
        (
            "name: x\nruns: {using: composite}\n",
            "step.yml:2:1: this is a workflow or action of GitHub, not a step file: ",
        ),
        (
            "spec: {}\n---\nsteps:\n- {name: a, script: b}\n",
            "step.yml:3:1: unknown key `steps`: write `run`, a list of steps",
        ),
        (
            "spec: {}\n---\nrun:\n- uses: actions/checkout@v4\n",
            "step.yml:4:3: run[0]: unknown key `uses`: write `step`, for example ",
        ),
        (
            "spec: {}\n---\nrun:\n- {name: a, step: ./b, with: {c: d}}\n",
            "step.yml:4:24: run[0]: unknown key `with`: write `inputs`",
        ),
        (
            "spec: {}\n---\nrun:\n- {name: a, run: make}\n",
            "step.yml:4:13: run[0]: unknown key `run`: write `script` for commands",
        ),
        (
            "spec: {}\n---\nrun:\n- {name: a, step: lib/build}\n",
            "step.yml:4:19: run[0].step: expecting url@rev. got \"lib/build\": write \"./lib/build\" for a directory",
        ),
        ("sepc: {}\n---\n", "step.yml:1:1: unknown key `sepc`: did you mean `spec`?"),
        (
            "spec: {}\nrun: []\n---\n",
            "step.yml:2:1: unknown key `run`: it belongs in the second document, after a line `---`",
        ),
        (
            "spec: {input: {}}\n---\n",
            "step.yml:1:8: spec: unknown key `input`: did you mean `inputs`?",
        ),
        (
            "spec:\n  inputs: {a: {type: nubmer}}\n---\n",
            "step.yml:2:22: spec.inputs.a.type: unknown type `nubmer`: did you mean `number`?",
        ),
        (
            "spec:\n  inputs: {a: {type: number, default: '5'}}\n---\n",
            "step.yml:2:39: spec.inputs.a.default: expected the declared type number, got a string",
        ),
        ("spec:\n  inputs: {a: {}}\n---\n", "step.yml:2:15: spec.inputs.a: missing `type`"),
        (
            "spec:\n  inputs: {a-b: {type: string}}\n---\n",
            "step.yml:2:12: spec.inputs: invalid name `a-b`: expected letters, digits and `_`, not starting with a digit",
        ),
        (
            "spec: {outputs: delegated}\n---\n",
            "step.yml:1:17: spec.outputs: expected a mapping, or `delegate`, got a string",
        ),
        (
            "spec: {}\n---\nexec: {comand: [a]}\n",
            "step.yml:3:8: exec: unknown key `comand`: did you mean `command`?",
        ),
        (
            "spec: {}\n---\nexec: {command: [a], shell: true}\n",
            "step.yml:3:22: exec: unknown key `shell`: `script` runs in bash, or in sh if bash is missing; write `exec.command` for other shells",
        ),
        (
            "spec: {}\n---\nexec: {command: a b}\n",
            "step.yml:3:17: exec.command: expected a list, got a string",
        ),
        ("spec: {}\n---\nexec: {}\n", "step.yml:3:7: exec: missing `command`"),
        ("spec: {}\n---\nexec: {command: []}\n", "step.yml:3:17: exec.command: must not be empty"),
        (
            "spec: {}\n---\nexec: {command: [a, [b]]}\n",
            "step.yml:3:21: exec.command[1]: expected a string, got a list",
        ),
        (
            "spec: {}\n---\nexec: {command: [a]}\nrun: []\n",
            "step.yml:4:6: `exec` and `run` are mutually exclusive: remove one of them",
        ),
        (
            "spec: {}\n---\nexec: {command: [a]}\nenv: {A-B: c}\n",
            "step.yml:4:7: env: invalid name `A-B`: ",
        ),
        (
            "spec: {}\n---\nexec: {command: [a]}\nexec: {command: [a]}\n",
            "step.yml:4:1: duplicate key `exec`, first in line 3: remove one of them",
        ),
        (
            "spec: {}\n---\nrun:\n- nmae: a\n",
            "step.yml:4:3: run[0]: unknown key `nmae`: did you mean `name`?",
        ),
        (
            "spec: {}\n---\nrun:\n- name: a\n",
            "step.yml:4:3: run[0]: missing `step`, `func` or `script`",
        ),
        (
            "spec: {}\n---\nrun:\n- name: a\n  scirpt: b\n",
            "step.yml:5:3: run[0]: unknown key `scirpt`: did you mean `script`?",
        ),
        (
            "spec: {}\n---\nrun:\n- {name: a, script: b}\n- name: c\n  step: d\n",
            "step.yml:6:9: run[1].step: expecting url@rev. got \"d\"",
        ),
        (
            "spec: {}\n---\nrun:\n- name: a\n  step: ./b\n  func: ./b\n",
            "step.yml:6:9: run[0]: `step` and `func` are mutually exclusive: remove one of them",
        ),
        (
            "spec: {}\n---\nrun:\n- name: a\n  step: {git: {url: u}}\n",
            "step.yml:5:15: run[0].step.git: missing `rev`: a tag, a branch or a commit",
        ),
        (
            "spec: {}\n---\nrun:\n- name: a\n  step: ./b\n  if: [c]\n",
            "step.yml:6:7: run[0].if: expected an expression, or true or false, got a list",
        ),
        (
            "spec: {}\n---\nrun:\n- name: a\n  step: ./b\n  inputs: {v: {1: x}}\n",
            "step.yml:6:16: expected a string as key, got a number: put it in quotes",
        ),
        (&deep, "step.yml:1:71: nested too deeply (limit 64)"),
    ] {
        let found = message(text);
        assert!(found.starts_with(expected), "{text}\nfound    {found}\nexpected {expected}");
    }
}

#[test]
fn parsed_step_file_has_all_its_fields() {
    let file = StepFile::parse(
        "step.yml",
        "spec:\n  inputs:\n    a: {type: struct, default: {k: [1, true]}, sensitive: true, description: d}\n    \
         b: {type: string}\n  outputs: {c: {type: number, default: 1.5}}\n---\n\
         env: {A: 1.10, B: yes, C: true, D: , E: 0x10, F: '5'}\nexec:\n  command: [echo, 5, 1.0, ~]\n  work_dir: /d\n\
         ---\nnothing: [that, counts\n",
    )
    .unwrap();
    let [(a, first), (b, second)] = file.spec.inputs.iter().collect::<Vec<_>>()[..] else {
        panic!("{:?}", file.spec.inputs);
    };
    assert_eq!((a.as_str(), b.as_str()), ("a", "b"));
    let expected = ExprValue::from(serde_json::json!({"k": [1, true]}));
    assert_eq!((first.kind, first.default.as_ref()), (DeclaredType::Struct, Some(&expected)));
    assert_eq!((first.sensitive, first.description.as_deref()), (true, Some("d")));
    assert_eq!(
        (second.kind, &second.default, second.sensitive),
        (DeclaredType::String, &None, false)
    );
    let OutputSpecs::Declared(outputs) = &file.spec.outputs else { panic!("delegated") };
    assert_eq!(outputs["c"].default, Some(ExprValue::Number(1.5)));

    let texts = [("A", "1.10"), ("B", "yes"), ("C", "true"), ("D", ""), ("E", "0x10"), ("F", "5")];
    let env = texts.map(|(name, text)| (name.to_owned(), text.to_owned()));
    assert_eq!(file.definition.env, BTreeMap::from(env));
    let StepAction::Exec(exec) = file.definition.action else { panic!("no exec") };
    assert_eq!(exec.command, ["echo", "5", "1.0", ""]);
    assert_eq!(exec.work_dir.as_deref(), Some("/d"));
}

#[test]
fn step_calls_can_be_written_in_many_forms() {
    let run = run("run:\n\
         - {name: a, func: ./a, if: '${{ inputs.x }}', continue_on_error: true, inputs: {v: [{a: 1}]}}\n\
         - {name: b, script: 5, env: {X: 1}, if: false, continue-on-error: true, description: d}\n\
         - {name: c, action: 'org/x@v1', inputs: {y: 1}}\n\
         - {name: d, step: {git: {url: host/p, rev: v1, dir: a//b, file: f.yml}}}\n\
         - {name: e, step: {oci: {registry: r, repository: p/q, tag: 1.10}}}\n\
         outputs: {o: {deep: ['${{steps.a.outputs.b}}']}}\n\
         delegate: a\n");
    let [a, b, c, d, e] = &run.steps[..] else { panic!("{:?}", run.steps) };
    assert_eq!(a.reference, StepReference::parse("./a").unwrap());
    assert_eq!((a.condition.as_deref(), a.continue_on_error), (Some("${{ inputs.x }}"), true));
    assert_eq!(a.inputs["v"], ExprValue::from(serde_json::json!([{"a": 1}])));
    assert_eq!(b.reference, StepReference::Builtin { path: vec!["script".to_owned()] });
    assert_eq!(b.inputs["script"], ExprValue::String("5".to_owned()));
    assert_eq!((b.condition.as_deref(), b.continue_on_error), (Some("false"), true));
    assert_eq!(c.inputs["action"], ExprValue::String("org/x@v1".to_owned()));
    assert_eq!(c.inputs["inputs"], ExprValue::from(serde_json::json!({"y": 1})));
    assert_eq!(
        d.reference,
        StepReference::Git {
            url: "https://host/p".to_owned(),
            rev: "v1".to_owned(),
            path: vec!["a".to_owned(), "b".to_owned()],
            filename: Some("f.yml".to_owned()),
        }
    );
    assert_eq!(
        e.reference,
        StepReference::Oci {
            registry: "r".to_owned(),
            repository: "p/q".to_owned(),
            tag: "1.10".to_owned(),
            path: Vec::new(),
            filename: None,
        }
    );
    assert_eq!(run.delegate.as_deref(), Some("a"));
    let expected = serde_json::json!({"deep": ["${{steps.a.outputs.b}}"]});
    assert_eq!(run.outputs["o"], ExprValue::from(expected));
}

#[test]
fn bare_list_of_steps_is_the_value_of_run() {
    let steps = parse_steps("- name: a\n  script: b\n").unwrap();
    assert_eq!(steps, run("run:\n- name: a\n  script: b\n").steps);
    assert_eq!(*parse_steps("").unwrap_err().problem, DocumentProblem::EmptyValue);
    assert_eq!(*parse_steps("[]").unwrap_err().problem, DocumentProblem::EmptyValue);
    let error = parse_steps("- name: a\n  srcipt: b\n").unwrap_err().to_string();
    assert_eq!(error, "STEPS:2:3: [0]: unknown key `srcipt`: did you mean `script`?");
}

#[test]
fn many_errors_are_reported_once_without_values() {
    let text = format!("spec: {{}}\n---\nexec: {{command: [a]}}\n{}", "x: secret\n");
    let error = StepFile::parse("step.yml", &text).unwrap_err();
    assert!(!error.to_string().contains("secret"), "{error}");
}

proptest! {
    #[test]
    fn arbitrary_text_is_parsed_or_rejected(text in ".{0,200}|[-\\[\\]{}:,#&*!|>'\"%@`a \\n]{0,80}") {
        if let Err(error) = StepFile::parse("s", &text) {
            prop_assert!(error.to_string().starts_with("s:"));
        }
        let _ = parse_steps(&text);
    }

    #[test]
    fn arbitrary_mapping_is_parsed_or_rejected(
        keys in prop::collection::vec(prop::sample::select(vec![
            "exec", "run", "env", "outputs", "delegate", "command", "name", "step", "script", "if",
            "git", "url", "inputs", "x",
        ]), 1..6),
        last in prop::sample::select(vec!["1", "a", "[]", "[a]", "{}", "~", "true"]),
    ) {
        let inner = keys.iter().rev().fold(last.to_owned(), |inner, key| {
            if *key == "run" { format!("{{run: [{inner}]}}") } else { format!("{{{key}: {inner}}}") }
        });
        let text = format!("spec: {{}}\n---\n{inner}\n");
        if let Err(error) = StepFile::parse("s", &text) {
            prop_assert!(error.to_string().starts_with("s:3:"), "{}", error);
        }
    }

    #[test]
    fn arbitrary_reference_is_parsed_or_rejected(text in "[a./:@ -]{0,20}|.{0,40}") {
        if let Err(error) = StepReference::parse(&text) {
            prop_assert!(error.to_string().starts_with("expecting url@rev. got "));
        }
    }
}
