//! Output recorded from GitLab's step-runner, without its banners.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::cli::git::GitServer;
use crate::recorded::with_current_lines;

/// Intended differences: the case, the reason, our exit code, and a part of our stderr.
const DIFFERENT: &[(&str, &str, i32, &str)] = &[
    ("run-no-step", "a wrong command line is 2 and shows how it is used", 2, "Usage:"),
    ("run-bad-format", "a format that is none is refused before anything runs", 2, "xml"),
    (
        "run-debug-outputfile-error",
        "what is in a file of outputs is not printed: it may be secret",
        1,
        "invalid character 'b' looking for beginning of value",
    ),
    (
        "run-missing",
        "files are named by their whole path, once",
        1,
        "/nope/step.yml\": reading file: no such file or directory",
    ),
    ("ci-empty", "says what is missing in our words", 1, "error: "),
    (
        "ci-bad-yaml",
        "says where, and not the text, in which there may be secrets",
        1,
        "STEPS:2:1: ",
    ),
    ("proxy-args", "a wrong command line is 2", 2, "unexpected argument 'x'"),
    ("git-flags-no-rev", "a wrong command line is 2", 2, "--git-rev"),
    ("git-unknown-repo", "says what git says", 1, "/none.git@main\": failed to load: "),
    (
        "git-missing-dir",
        "where the copy is kept is ours",
        1,
        "/steps/zip\": reading file: no such file or directory",
    ),
];

#[test]
fn commands_behave_as_recorded_from_the_reference() {
    let git = GitServer::start();
    let cases = with_current_lines(include_str!("../../data/cli.jsonl"));
    let mut known = DIFFERENT.len();
    let mut faults = Vec::new();
    for case in cases.lines() {
        let case: Value = serde_json::from_str(case).unwrap();
        let id = case["id"].as_str().unwrap();
        let different = DIFFERENT.iter().find(|(other, ..)| *other == id);
        known -= usize::from(different.is_some());
        if let Err(fault) = check(&case, different.map(|(_, _, code, text)| (*code, *text)), &git) {
            faults.push(format!("{id}: {fault}"));
        }
    }
    assert_eq!(known, 0, "a difference names no case");
    assert!(faults.is_empty(), "{} cases:\n{}", faults.len(), faults.join("\n"));
}

fn check(case: &Value, ours: Option<(i32, &str)>, git: &GitServer) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let work_dir = fs::canonicalize(dir.path()).unwrap().join("work");
    let tmp = work_dir.with_file_name("tmp");
    fs::create_dir(&work_dir).unwrap();
    fs::create_dir(&tmp).unwrap();
    let here = |text: &str| {
        text.replace("$WORKDIR", work_dir.to_str().unwrap())
            .replace("$TMPDIR", tmp.to_str().unwrap())
            .replace("$GIT", &git.address)
    };
    for (name, content) in case["files"].as_object().into_iter().flatten() {
        let path = work_dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, here(content.as_str().unwrap())).unwrap();
    }
    let mut program = Command::new(env!("CARGO_BIN_EXE_step-runner"));
    program.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("TMPDIR", &tmp);
    for (name, value) in case["env"].as_object().unwrap() {
        program.env(name, here(value.as_str().unwrap()));
    }
    program.args(case["args"].as_array().unwrap().iter().map(|text| here(text.as_str().unwrap())));
    let output = program.current_dir(&work_dir).stdin(Stdio::null()).output().unwrap();

    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    // Our program marks the processes of a job with an environment variable.
    let is_mark = |line: &&str| line.starts_with("STEP_RUNNER_JOB=");
    let stdout: String = stdout.split_inclusive('\n').filter(|line| !is_mark(line)).collect();
    let code = output.status.code().unwrap();
    let expected = &case["expected"];
    if let Some((expected, part)) = ours {
        let is_so = code == expected && stderr.contains(part);
        return if is_so { Ok(()) } else { Err(format!("exit {code}: {stderr}")) };
    }
    // Our program names a step without a name by its reference.
    let reference = match &case["args"][1] {
        Value::String(flag) if flag == "--git-url" => "http://$GIT/r.git@v1".to_owned(),
        reference => reference.as_str().unwrap_or_default().to_owned(),
    };
    let title = |text: &str| {
        text.replace("tep \"\"", &format!("tep \"{reference}\""))
            .replace("tep name=\"\"", &format!("tep name={reference}"))
    };
    let expected_text = |name: &str| here(&title(expected[name].as_str().unwrap()));
    let all = (i64::from(code), stdout, stderr);
    // All our programs start errors with the same word.
    let stderr = expected_text("stderr");
    let stderr: String = stderr
        .split_inclusive('\n')
        .map(|line| match line.strip_prefix("Error: ") {
            Some(rest) => format!("error: {rest}"),
            None => line.to_owned(),
        })
        .collect();
    let wanted = (expected["exit_code"].as_i64().unwrap(), expected_text("stdout"), stderr);
    if all != wanted {
        return Err(format!("\n      ours {all:?}\n  expected {wanted:?}"));
    }
    if let Some(file) = expected["results_file"].as_str() {
        check_results(&work_dir.join(file), &expected["results"]["status"])?;
    }
    Ok(())
}

/// Checks the mode and the status of a results file; the tests of the engine compare results.
fn check_results(path: &Path, status: &Value) -> Result<(), String> {
    let mode = path.metadata().map_err(|error| error.to_string())?.permissions().mode() & 0o777;
    let results: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    match mode == 0o640 && results["status"] == *status {
        true => Ok(()),
        false => Err(format!("mode {mode:o}, status {}", results["status"])),
    }
}
