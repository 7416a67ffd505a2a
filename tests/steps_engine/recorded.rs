//! What GitLab's step-runner was recorded doing.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use oci_hooks::step_runner::document::StepFile;
use oci_hooks::step_runner::engine::StepError;
use oci_hooks::step_runner::trace;
use oci_hooks::step_runner::wire::proto::step_result::Status;
use serde_json::{Value, json};

use crate::play::{Play, Played};

/// Where we differ on purpose: the case, why, and what we do.
const DIFFERENT: &[(&str, &str, Ours)] = &[
    (
        "exec-timeout-kill",
        "who is stopped gets SIGTERM first, and the message says that time was up",
        Ours::Fails("job exceeded its maximum run time: exec: signal: terminated"),
    ),
    ("job-vs-vars", "`vars` is today's name of `job`", Ours::Prints("Running step \"a\"\n1\n")),
    (
        "input-expr-whole-job",
        "`vars` as a whole is an object today",
        Ours::Prints("Running step \"a\"\n{\"J\":\"jj\"}\n"),
    ),
    (
        "input-expr-whole-inputs",
        "`inputs` as a whole is an object today",
        Ours::Prints("Running step \"a\"\n{}\n"),
    ),
    (
        "script-escaped-open",
        "today `\\${{` is text",
        Ours::Prints("Running step \"a\"\n${{ x }}\n"),
    ),
];

enum Ours {
    Fails(&'static str),
    Prints(&'static str),
}

#[test]
fn jobs_do_what_the_reference_was_recorded_doing() {
    let cases = include_str!("../data/steps/steps.jsonl");
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

fn check(case: &Value, ours: Option<&Ours>) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let work_dir = dir.path().join("work");
    let here = |text: &str| text.replace("$WORKDIR", work_dir.to_str().unwrap());
    write_files(case, &work_dir, &here);

    let expected = &case["expected"];
    let phase = expected["phase"].as_str().unwrap();
    let steps = match StepFile::parse("steps", &here(case["steps"].as_str().unwrap())) {
        Ok(steps) => steps,
        Err(error) if matches!(phase, "read" | "compile") && ours.is_none() => {
            // Ours has its own words, and says where.
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
    let timeout = case["timeout_ms"].as_u64().map(std::time::Duration::from_millis);
    let play = Play { steps, work_dir: work_dir.clone(), env, vars, timeout };

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
    played: &Played,
    expected: &Value,
    ours: Option<&Ours>,
    here: &dyn Fn(&str) -> String,
) -> Result<(), String> {
    let is_success = played.outcome.status == Status::Success;
    match ours {
        Some(Ours::Prints(text)) => {
            return equal("output", &json!([is_success, played.text]), &json!([true, text]));
        }
        Some(Ours::Fails(text)) => {
            return equal(
                "message",
                &json!([is_success, played.outcome.message]),
                &json!([false, text]),
            );
        }
        None => {}
    }
    equal("success", &json!(is_success), &json!(expected["status"] == "success"))?;
    let text =
        expected["stdout"].as_str().unwrap().to_owned() + expected["stderr"].as_str().unwrap();
    let text = here(&text);
    // Ours has the program for the job's own command, which has no name.
    let (ours, text) = match text.strip_prefix("Running step \"\"\n") {
        Some(rest) => {
            let (first, ours) = played.text.split_once('\n').unwrap_or_default();
            let is_named = first.starts_with("Running step \"") && !first.ends_with("\"\"");
            equal("first line", &json!(is_named), &json!(true))?;
            (ours, rest)
        }
        None => (&*played.text, &*text),
    };
    equal("output", &json!(ours), &json!(text))?;
    let error = named_once(here(expected["error"].as_str().unwrap_or_default()));
    // What is wrong in a step file, or with a whole object, is said in our own words.
    let own_words = ["unmarshaling:", "validating step:", "proto:\u{a0}invalid type"];
    let error =
        own_words.iter().find_map(|words| error.find(words)).map_or(&*error, |at| &error[..at]);
    let message = played.outcome.message.get(..error.len()).unwrap_or(&played.outcome.message);
    equal("message", &json!(message), &json!(error))?;
    if let Some(trace) = expected.get("trace") {
        let expected: Value = serde_json::from_str(&here(&trace.to_string())).unwrap();
        let mut ours = trace::to_json(&played.outcome.result);
        let mut expected = expected;
        settle(&mut ours, played);
        settle(&mut expected, played);
        equal("trace", &ours, &expected)?;
    }
    Ok(())
}

/// Returns a message in which no file is named twice, as ours has it.
fn named_once(error: String) -> String {
    let Some((before, rest)) = error.split_once("reading file: open ") else { return error };
    let (_, reason) = rest.split_once(": ").unwrap();
    format!("{before}reading file: {reason}")
}

/// Takes out of a trace what is different each time, and how scripts are run.
fn settle(trace: &mut Value, played: &Played) {
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
        // The script is the last of both.
        let script = command.as_array().unwrap().last().unwrap().clone();
        let script = script.as_str().unwrap();
        let script = match script.find(played.scratch.to_str().unwrap()) {
            // The name of a step file is somewhere within.
            Some(_) => "a step file's name is in it",
            None if script.contains("$STEPFILE") => "a step file's name is in it",
            None => script,
        };
        *command = json!(script);
    }
    // The type of an input of a script is its own matter.
    if let Some(steps) = trace.get_mut("subStepResults").and_then(Value::as_array_mut) {
        steps.iter_mut().for_each(|step| settle(step, played));
    }
    if is_script && let Some(inputs) = trace.pointer_mut("/step/inputs/script") {
        let text = inputs.as_str().unwrap();
        if text.contains(played.scratch.to_str().unwrap()) || text.contains("$STEPFILE") {
            *inputs = json!("a step file's name is in it");
        }
    }
}

fn equal(what: &str, ours: &Value, expected: &Value) -> Result<(), String> {
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

/// As the service does it.
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
