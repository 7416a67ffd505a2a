//! Jobs recorded from GitLab's step-runner.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use step_runner::document::StepFile;
use step_runner::engine::StepError;
use step_runner::trace;
use step_runner::wire::proto::step_result::Status;

use crate::engine::play::{FinishedJob, GRACE, JobPlay};
use crate::recorded::with_current_lines;

/// Intended differences: the case, the reason, and our behaviour.
const DIFFERENT: &[(&str, &str, ExpectedDifference)] = &[
    (
        "exec-timeout-kill",
        "who is stopped gets SIGTERM first, and the message says that time was up",
        ExpectedDifference::Fails("job exceeded its maximum run time: exec: signal: terminated"),
    ),
    (
        "job-vs-vars",
        "`vars` is today's name of `job`",
        ExpectedDifference::Prints("Running step name=a\n1\n"),
    ),
    (
        "input-expr-whole-job",
        "`vars` as a whole is an object today",
        ExpectedDifference::Prints("Running step name=a\n{\"J\":\"jj\"}\n"),
    ),
    (
        "input-expr-whole-inputs",
        "`inputs` as a whole is an object today",
        ExpectedDifference::Prints("Running step name=a\n{}\n"),
    ),
    (
        "script-escaped-open",
        "today `\\${{` is text",
        ExpectedDifference::Prints("Running step name=a\n${{ x }}\n"),
    ),
];

enum ExpectedDifference {
    Fails(&'static str),
    Prints(&'static str),
}

#[test]
fn jobs_behave_as_recorded_from_the_reference() {
    let cases = with_current_lines(include_str!("../../data/steps.jsonl"));
    let mut faults = Vec::new();
    let mut known = DIFFERENT.len();
    for case in cases.lines() {
        let case: Value = serde_json::from_str(case).unwrap();
        let id = case["id"].as_str().unwrap();
        let different = DIFFERENT.iter().find(|(other, ..)| *other == id);
        known -= usize::from(different.is_some());
        if let Err(fault) = check(&case, different.map(|(.., ours)| ours)) {
            faults.push(format!("{id}: {fault}"));
        }
    }
    assert_eq!(known, 0, "a difference names no case");
    assert!(faults.is_empty(), "{} cases:\n{}", faults.len(), faults.join("\n"));
}

fn check(case: &Value, ours: Option<&ExpectedDifference>) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let work_dir = dir.path().join("work");
    let here = |text: &str| text.replace("$WORKDIR", work_dir.to_str().unwrap());
    write_files(case, &work_dir, &here);

    let expected = &case["expected"];
    let phase = expected["phase"].as_str().unwrap();
    let mut steps = here(case["steps"].as_str().unwrap());
    if case["timeout_ms"].is_u64() {
        // Otherwise the command could end before its limit on a busy machine.
        steps = steps.replace("[sleep, '5']", "[sleep, '1000']");
    }
    let steps = match StepFile::parse("steps", &steps) {
        Ok(steps) => steps,
        Err(error) if matches!(phase, "read" | "compile") && ours.is_none() => {
            // Our message differs, and starts with the position.
            let text = error.to_string();
            return if text.starts_with("steps:") { Ok(()) } else { Err(text) };
        }
        Err(error) => return Err(format!("refused: {error}")),
    };
    let mut env = map(&case["os_env"]);
    env.entry("PATH".to_owned()).or_insert_with(|| "/usr/local/bin:/usr/bin:/bin".to_owned());
    let vars = map(&case["job_vars"]);
    let Ok(level) = log_level(&vars, &env) else {
        return if phase == "env" { Ok(()) } else { Err("the log level is wrong".to_owned()) };
    };
    env.insert("CI_STEPS_LOG_LEVEL".to_owned(), level);
    env.extend(map(&case["env"]));
    // On a busy machine, a step may start later than a short limit ends.
    let limit = |limit| Duration::from_millis(limit).max(Duration::from_secs(2));
    let timeout = case["timeout_ms"].as_u64().map(limit);
    let play = JobPlay { steps, work_dir: work_dir.clone(), env, vars, timeout, grace: GRACE };

    if let Err(error) = play.check() {
        let text = error.to_string();
        let is_expected = phase == "parse" && matches!(error, StepError::Spec(_));
        return if is_expected && expected["error"] == text { Ok(()) } else { Err(text) };
    }
    if phase != "run" {
        return Err(format!("expected to fail in phase {phase}: {}", expected["error"]));
    }
    compare(&play.run(), expected, ours, &here)
}

fn compare(
    played: &FinishedJob,
    expected: &Value,
    ours: Option<&ExpectedDifference>,
    here: &dyn Fn(&str) -> String,
) -> Result<(), String> {
    let is_success = played.outcome.status == Status::Success;
    match ours {
        Some(ExpectedDifference::Prints(text)) => {
            return check_equal("output", &json!([is_success, played.text]), &json!([true, text]));
        }
        Some(ExpectedDifference::Fails(text)) => {
            return check_equal(
                "message",
                &json!([is_success, played.outcome.message]),
                &json!([false, text]),
            );
        }
        None => {}
    }
    check_equal("success", &json!(is_success), &json!(expected["status"] == "success"))?;
    let text =
        expected["stdout"].as_str().unwrap().to_owned() + expected["stderr"].as_str().unwrap();
    let text = here(&text);
    // Our program names the job's own command, which has no name, by its program.
    let (ours, text) = match text.strip_prefix("Running step name=\"\"\n") {
        Some(rest) => {
            let (first, ours) = played.text.split_once('\n').unwrap_or_default();
            let is_named = first.starts_with("Running step name=") && !first.ends_with("\"\"");
            check_equal("first line", &json!(is_named), &json!(true))?;
            (ours, rest)
        }
        None => (&*played.text, &*text),
    };
    check_equal("output", &json!(ours), &json!(text))?;
    let error = remove_repeated_name(here(expected["error"].as_str().unwrap_or_default()));
    // Errors in step files and in whole objects have our own messages.
    let own_words = ["unmarshaling:", "validating step:", "proto:\u{a0}invalid type"];
    let error =
        own_words.iter().find_map(|words| error.find(words)).map_or(&*error, |at| &error[..at]);
    let message = played.outcome.message.get(..error.len()).unwrap_or(&played.outcome.message);
    check_equal("message", &json!(message), &json!(error))?;
    if let Some(trace) = expected.get("trace") {
        let expected: Value = serde_json::from_str(&here(&trace.to_string())).unwrap();
        let mut ours = trace::to_json(&played.outcome.result);
        let mut expected = expected;
        remove_variable_parts(&mut ours, played);
        remove_variable_parts(&mut expected, played);
        check_equal("trace", &ours, &expected)?;
    }
    Ok(())
}

/// Returns a message without the repeated file name, which ours does not have.
fn remove_repeated_name(error: String) -> String {
    let Some((before, rest)) = error.split_once("reading file: open ") else { return error };
    let (_, reason) = rest.split_once(": ").unwrap();
    format!("{before}reading file: {reason}")
}

/// Removes the parts of a trace that differ in each run or depend on the execution of scripts.
fn remove_variable_parts(trace: &mut Value, played: &FinishedJob) {
    let is_script = trace.pointer("/step/step/protocol") == Some(&json!("dist"));
    if is_script {
        trace["specDefinition"]["definition"]["exec"]["command"] = json!("of a script");
    }
    let command = trace.pointer_mut("/execResult/command").and_then(Value::as_array_mut);
    for argument in command.into_iter().flatten() {
        let text = argument.as_str().unwrap().to_owned();
        if text.starts_with(played.scratch.to_str().unwrap()) || text.contains("$STEPFILE") {
            *argument = json!("$STEPFILE");
        }
    }
    if is_script && let Some(command) = trace.pointer_mut("/execResult/command") {
        // The script is the last argument in both.
        let script = command.as_array().unwrap().last().unwrap().clone();
        let script = script.as_str().unwrap();
        let script = match script.find(played.scratch.to_str().unwrap()) {
            // The name of a step file differs in each run.
            Some(_) => "a step file's name is in it",
            None if script.contains("$STEPFILE") => "a step file's name is in it",
            None => script,
        };
        *command = json!(script);
    }
    if let Some(steps) = trace.get_mut("subStepResults").and_then(Value::as_array_mut) {
        steps.iter_mut().for_each(|step| remove_variable_parts(step, played));
    }
    if is_script && let Some(inputs) = trace.pointer_mut("/step/inputs/script") {
        let text = inputs.as_str().unwrap();
        if text.contains(played.scratch.to_str().unwrap()) || text.contains("$STEPFILE") {
            *inputs = json!("a step file's name is in it");
        }
    }
}

fn check_equal(what: &str, ours: &Value, expected: &Value) -> Result<(), String> {
    if ours == expected {
        return Ok(());
    }
    Err(format!("{what}\n      ours {ours}\n  expected {expected}"))
}

fn write_files(case: &Value, work_dir: &Path, here: &dyn Fn(&str) -> String) {
    fs::create_dir(work_dir).unwrap();
    for (name, content) in case["files"].as_object().into_iter().flatten() {
        let path = work_dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, here(content.as_str().unwrap())).unwrap();
        if name.ends_with(".sh") {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
}

fn map(value: &Value) -> BTreeMap<String, String> {
    let members = value.as_object().into_iter().flatten();
    members.map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned())).collect()
}

/// Returns the log level, determined like in the service.
fn log_level(
    vars: &BTreeMap<String, String>,
    env: &BTreeMap<String, String>,
) -> Result<String, String> {
    let name = "CI_STEPS_LOG_LEVEL";
    let level = vars.get(name).or(env.get(name)).map_or("", |level| level.trim()).to_lowercase();
    match level.as_str() {
        "" => Ok("info".to_owned()),
        "debug" | "info" | "warn" | "error" => Ok(level),
        _ => Err(level),
    }
}
