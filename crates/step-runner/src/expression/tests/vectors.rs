//! Recorded results of GitLab's step runner before the language had operators.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::*;

fn cases() -> Vec<Json> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/expressions.jsonl");
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(super) fn context() -> ExprContext {
    let given = cases().remove(0)["context"].clone();
    let texts = |json: &Json| serde_json::from_value(json.clone()).unwrap();
    let text = |name: &str| given[name].as_str().unwrap().to_owned();
    let values = |json: &Json| {
        let members = json.as_object().unwrap().clone().into_iter();
        members.map(|(name, value)| (name, ExprValue::from(value).into())).collect()
    };
    let step = |json: &Json| StepState {
        outputs: values(&json["outputs"]),
        status: StepEndStatus::Success,
    };
    let steps = given["steps"].as_object().unwrap().iter();
    ExprContext {
        env: Arc::new(texts(&given["env"])),
        inputs: values(&given["inputs"]),
        vars: Arc::new(texts(&given["job"])),
        steps: steps.map(|(name, json)| (name.clone(), step(json))).collect(),
        export_file: text("export_file"),
        output_file: text("output_file"),
        step_dir: text("step_dir"),
        work_dir: text("work_dir"),
        failed: false,
        cancelled: false,
    }
}

const WHOLE: &str = "it was an error of the encoder, and is an object today";
const OPERATORS: &str = "there are literals, brackets and operators today";
const PLAIN: &str = "`}}` alone is plain text: scripts have it";

/// Returns `steps` as an object of successful steps.
fn whole_steps(given: &Json) -> Json {
    let mut steps = given["steps"].clone();
    for step in steps.as_object_mut().unwrap().values_mut() {
        step["status"] = json!("success");
    }
    steps
}

/// Differences: the vector, our result or error, the reason.
fn differences() -> Vec<(&'static str, Result<Json, &'static str>, &'static str)> {
    let given = cases().remove(0)["context"].clone();
    vec![
        ("expr-009", Ok(given["job"].clone()), WHOLE),
        ("expr-010", Ok(given["inputs"].clone()), WHOLE),
        ("expr-011", Ok(whole_steps(&given)), WHOLE),
        ("expr-012", Ok(whole_steps(&given)["one"].clone()), WHOLE),
        ("expr-013", Ok(given["steps"]["one"]["outputs"].clone()), WHOLE),
        ("expr-072", Ok(json!("lit")), OPERATORS),
        ("expr-073", Ok(json!(1)), OPERATORS),
        ("expr-074", Ok(json!(true)), OPERATORS),
        ("expr-075", Ok(json!("/h")), OPERATORS),
        ("expr-078", Ok(json!(2)), OPERATORS),
        ("expr-079", Err("env.B: the \"B\" was not found"), OPERATORS),
        ("expr-080", Err("env.NOPE: the \"NOPE\" was not found"), OPERATORS),
        (
            "expr-087",
            Err(
                "expected a value, not `$` at byte 4: write `env.NAME` or `vars.NAME` for the variable `$NAME`; `${{` is allowed only around the whole expression and in double-quoted strings",
            ),
            OPERATORS,
        ),
        ("expr-090", Ok(json!("${{env.HOME}}")), "`\\${{` stands for `${{` today"),
        ("expr-091", Ok(json!("${ {env.HOME}}")), PLAIN),
        ("expr-100", Ok(json!("/h")), "blanks may stand between words today"),
        ("expr-105", Ok(json!("/wd}}")), PLAIN),
    ]
}

#[test]
fn old_expressions_keep_their_meaning() {
    let context = context();
    let mut differences = differences();
    let mut count = 0;
    for case in &cases()[1..] {
        let given = ExprValue::from(case["value"].clone());
        let result = match (case["mode"].as_str().unwrap(), &given) {
            ("string", ExprValue::String(text)) => {
                expand_text(text, &context).map(|(text, _)| ExprValue::String(text))
            }
            ("value", given) => expand_value(given, &context).map(|expanded| expanded.value),
            other => panic!("{other:?}"),
        };
        let result = result.map_err(|error| error.to_string());
        let theirs = match case["expected"].get("error") {
            Some(error) => Err(error.as_str().unwrap().to_owned()),
            None => Ok(ExprValue::from(case["expected"]["result"].clone())),
        };
        let id = case["id"].as_str().unwrap();
        match differences.iter().position(|(differs, ..)| *differs == id) {
            Some(at) => {
                let (_, ours, why) = differences.remove(at);
                let ours = ours.map(ExprValue::from).map_err(str::to_owned);
                assert_ne!(ours, theirs, "{id} does not differ");
                assert_eq!(result, ours, "{id}: {why}");
            }
            None => assert_eq!(result, theirs, "{id}"),
        }
        count += 1;
    }
    assert!(differences.is_empty(), "no such vectors: {differences:?}");
    assert_eq!(count, 71);
}
