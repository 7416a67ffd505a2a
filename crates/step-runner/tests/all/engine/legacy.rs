//! `builtin://script_legacy`: scripts of ordinary jobs, in bash, dash and busybox.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};
use step_runner::ExprValue;
use step_runner::document::StepAction;
use step_runner::engine::{CancelHandle, CancelReason};
use step_runner::wire::proto::step_result::Status;

use crate::engine::play::{FinishedJob, JobPlay};

const SHELLS: [&str; 3] = ["bash", "dash", "busybox"];

/// Programs that scripts and their shells call.
const PROGRAMS: [&str; 6] = ["cat", "date", "grep", "sleep", "env", "mkfifo"];

/// A job that calls the function.
struct ScriptJob {
    dir: tempfile::TempDir,
    play: JobPlay,
}

impl ScriptJob {
    fn new(shell: &str, inputs: &Value) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let steps = json!({"run": [
            {"name": "user_script", "step": "builtin://script_legacy", "inputs": inputs},
        ]});
        let mut play = JobPlay::new(dir.path(), &format!("{{}}\n---\n{steps}\n"));
        let bin = dir.path().join("bin");
        fs::create_dir(&bin).unwrap();
        let shell = find(shell);
        let name = if shell.ends_with("bash") { "bash" } else { "sh" };
        if shell.ends_with("busybox") {
            // busybox selects the applet by name, dash ignores its name.
            let text = format!("#!/bin/sh\nexec {} sh \"$@\"\n", shell);
            write_program(&bin.join("bash"), &text);
        } else if name == "sh" {
            write_program(&bin.join("bash"), &format!("#!/bin/sh\nexec {shell} \"$@\"\n"));
        } else {
            symlink(&shell, bin.join(name)).unwrap();
        }
        for program in PROGRAMS {
            symlink(find(program), bin.join(program)).unwrap();
        }
        play.env.insert("PATH".to_owned(), bin.to_string_lossy().into_owned());
        ScriptJob { dir, play }
    }

    fn of(shell: &str, lines: &[&str]) -> Self {
        ScriptJob::new(shell, &json!({ "script": lines }))
    }
}

fn write_program(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn find(program: &str) -> String {
    let found = ["/usr/bin", "/bin"].map(|directory| format!("{directory}/{program}"));
    found
        .into_iter()
        .find(|path| Path::new(path).exists())
        .unwrap_or_else(|| panic!("no {program}"))
}

fn green_line(line: &str) -> String {
    format!("\x1b[1;32m$ {line}\x1b[0m\n")
}

#[track_caller]
fn assert_success(played: &FinishedJob) {
    assert_eq!(
        played.outcome.status,
        Status::Success,
        "{} {}",
        played.outcome.message,
        played.text
    );
}

#[test]
fn script_lines_are_shown_and_run_in_one_shell() {
    for shell in SHELLS {
        let lines = [
            "  A='it is \\n $HOME'  ",
            "",
            "if true; then",
            "printf '%s' \"$A\"",
            "fi",
            "echo 1\necho 2",
        ];
        let played = ScriptJob::of(shell, &lines).play.run();
        assert_success(&played);
        // The step itself prints no line, so the log is that of an ordinary job.
        let expected = green_line("A='it is \\n $HOME'")
            + "\n"
            + &green_line("if true; then")
            + &green_line("printf '%s' \"$A\"")
            + "it is \\n $HOME"
            + &green_line("fi")
            + &green_line("echo 1 # collapsed multi-line command")
            + "1\n2\n";
        assert_eq!(played.text, expected, "{shell}");
    }
}

#[test]
fn first_failing_command_ends_the_script_with_its_code() {
    for shell in SHELLS {
        let played = ScriptJob::of(shell, &["(exit 3)", "echo never"]).play.run();
        let message = "step \"user_script\": exec: executing script: exit status 3";
        assert_eq!((played.outcome.exit_code, &*played.outcome.message), (3, message), "{shell}");
        assert!(!played.text.contains("never"), "{}", played.text);
    }
    // Only bash fails with the first command of a pipe; dash has no such option.
    assert_eq!(ScriptJob::of("bash", &["false | cat"]).play.run().outcome.exit_code, 1);
    assert_success(&ScriptJob::of("dash", &["false | cat"]).play.run());
}

#[test]
fn exit_codes_are_checked_where_the_shell_does_not() {
    for shell in SHELLS {
        let script = json!({"script": ["set +e", "(exit 4)", "echo on"], "check_for_errors": true});
        let played = ScriptJob::new(shell, &script).play.run();
        assert_eq!(played.outcome.exit_code, 4, "{shell}");
        let script = json!({"script": ["set +e", "(exit 4)", "echo on"]});
        assert_success(&ScriptJob::new(shell, &script).play.run());
    }
}

#[test]
fn multi_line_commands_are_timed_sections() {
    for shell in SHELLS {
        let script = json!({"script": ["echo one", "echo a\necho b"], "trace_sections": true});
        let played = ScriptJob::new(shell, &script).play.run();
        assert_success(&played);
        let (start, rest) = played.text.split_once("section_start:").unwrap();
        assert_eq!(start, green_line("echo one") + "one\n");
        let (time, rest) = rest.split_once(':').unwrap();
        assert!(time.parse::<u64>().unwrap() > 1_700_000_000, "{time}");
        let head = "section_script_step_1[hide_duration=true,collapsed=true]\r\x1b[0K\x1b[32;1m$ echo a\necho b\x1b[0;m\na\nb\nsection_end:";
        let rest = rest.strip_prefix(head).unwrap_or_else(|| panic!("{rest:?}"));
        assert!(rest.ends_with(":section_script_step_1\r\x1b[0K\n"), "{rest:?}");
    }
}

#[test]
fn trace_shows_the_commands_executed_by_the_shell() {
    for shell in SHELLS {
        let lines = ["A=x", "cat /dev/null $A$A || true"];
        let script = json!({"script": lines, "debug_trace": true});
        let played = ScriptJob::new(shell, &script).play.run();
        // busybox writes a command in pieces, between which the other stream may come.
        let trace =
            lines.iter().fold(played.text, |text, line| text.replace(&green_line(line), ""));
        assert!(trace.contains("+ cat /dev/null xx\n"), "{shell}: {trace}");
    }
}

#[test]
fn variables_of_job_and_earlier_stages_are_in_the_environment() {
    for shell in SHELLS {
        let line = "echo \"$JOB $LATER ${GITLAB_ENV##*/}\"; echo NEXT=1 >> \"$GITLAB_ENV\"";
        let mut script = ScriptJob::of(shell, &[line]);
        let temp = script.dir.path().join("p.tmp");
        fs::create_dir(&temp).unwrap();
        fs::write(temp.join("gitlab_runner_env"), "LATER=two words\nJOB=newer").unwrap();
        let vars = [("JOB", "older"), ("RUNNER_TEMP_PROJECT_DIR", temp.to_str().unwrap())];
        script.play.vars.extend(vars.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let played = script.play.run();
        assert_success(&played);
        assert!(played.text.ends_with("\nnewer two words gitlab_runner_env\n"), "{}", played.text);
        let written = fs::read_to_string(temp.join("gitlab_runner_env")).unwrap();
        assert!(written.ends_with("NEXT=1\n"), "{written}");
    }
}

#[test]
fn signals_that_scripts_send_to_themselves_are_no_failure() {
    for signal in ["USR1", "USR2", "HUP", "PIPE"] {
        assert_success(&ScriptJob::of("bash", &[&format!("kill -{signal} $$")]).play.run());
    }
    let played = ScriptJob::of("bash", &["kill -KILL $$"]).play.run();
    assert_eq!(played.outcome.exit_code, 137);
    assert!(played.outcome.message.ends_with("executing script: signal: killed"));
}

#[test]
fn cancelled_script_does_not_print_its_current_line() {
    for shell in SHELLS {
        let lines = ["echo ready", "while :; do sleep 0.05; done # canary"];
        let cancel = CancelHandle::new().unwrap();
        let played = ScriptJob::of(shell, &lines).play.run_until(&cancel, |text| {
            if text.contains("canary") {
                cancel.cancel(CancelReason::Requested);
            }
        });
        assert_eq!(played.outcome.status, Status::Cancelled, "{}", played.text);
        assert_eq!(played.text.matches("canary").count(), 1, "{}", played.text);
    }
}

#[test]
fn inputs_of_wrong_types_are_rejected() {
    for (inputs, message) in [
        (json!({"script": "echo"}), "input \"script\": expected array"),
        (json!({"script": []}), "script input is empty"),
        (json!({"script": [["a"]]}), "input \"script\": item 0: expected string"),
        (json!({"script": ["a"], "debug_trace": "yes"}), "input \"debug_trace\": expected boolean"),
        (json!({"script": ["a"], "posix_escape": 1}), "input \"posix_escape\": expected boolean"),
    ] {
        let message = format!("step \"user_script\": exec: {message}");
        assert_eq!(ScriptJob::new("bash", &inputs).play.run().outcome.message, message);
    }
    let numbers = json!({"script": [true, "echo ${#A}"], "posix_escape": true});
    assert_success(&ScriptJob::new("bash", &numbers).play.run());
}

/// Replaces the script of the only step, because documents have a size limit.
fn set_script(play: &mut JobPlay, script: ExprValue) {
    let StepAction::Run(run) = &mut play.steps.definition.action else { panic!("it has steps") };
    run.steps[0].inputs.insert("script".to_owned(), script);
}

/// Returns a script of this many bytes that finally sets the exit code to 7.
fn long_script(bytes: usize) -> String {
    format!("# {}\nexit_code=7", "canary ".repeat(bytes / 7))
}

/// Prints whether the shell's command line contains the script.
const LOOK: &str = "grep -c canary /proc/$$/cmdline || true";

/// Exceeds the kernel's limit of one argument.
const LONG_BYTES: usize = 1 << 20;

/// Exceeds the kernel's limit of all arguments, which is at most 6 MiB.
const HUGE_BYTES: usize = 7 << 20;

#[track_caller]
fn check_script_of(bytes: usize) {
    for shell in SHELLS {
        let mut script = ScriptJob::of(shell, &["true"]);
        let lines = [long_script(bytes), LOOK.to_owned(), "exit $exit_code".to_owned()];
        let lines = lines.map(ExprValue::String).to_vec();
        set_script(&mut script.play, ExprValue::Array(lines));
        let played = script.play.run();
        assert_eq!(played.outcome.exit_code, 7, "{shell} {}", played.outcome.message);
        assert!(played.text.contains("\n0\n"), "{shell}");
    }
}

#[test]
fn long_script_runs_without_being_an_argument() {
    check_script_of(LONG_BYTES);
}

#[test]
fn huge_script_runs_without_being_an_argument() {
    check_script_of(HUGE_BYTES);
}

#[test]
fn script_input_can_be_short_or_long() {
    // With the rest of the script, just below the kernel's limit, and above it.
    check_inputs_of(&[10, 130_000, 132_000, LONG_BYTES]);
}

#[test]
fn script_input_can_be_huge() {
    check_inputs_of(&[HUGE_BYTES]);
}

#[track_caller]
fn check_inputs_of(sizes: &[usize]) {
    let see = "echo \"$0 $# $LINENO $-\"";
    for &bytes in sizes {
        let dir = tempfile::tempdir().unwrap();
        let mut play = JobPlay::new(dir.path(), "{}\n---\nrun: [{name: a, script: x}]\n");
        let text = format!("{see}\n{}\n{LOOK}\nexit $exit_code\n", long_script(bytes));
        set_script(&mut play, ExprValue::String(text.clone()));
        let played = play.run();
        assert_eq!(played.outcome.exit_code, 7, "{}", played.outcome.message);
        let seen =
            std::process::Command::new(shell_of(&played)).args(["-c", see]).output().unwrap();
        let seen = String::from_utf8(seen.stdout).unwrap();
        // Both lines with the word are in the command line, or none.
        let lines = if bytes < 131_072 { 2 } else { 0 };
        assert_eq!(played.text, format!("Running step name=a\n{seen}{lines}\n"));
        // The result has the script as an argument.
        let recorded = played.ended[0].exec_result.clone().unwrap();
        assert_eq!(recorded.command[1..], ["-c".to_owned(), text]);
        // Its file is removed.
        assert!(!fs::exists(&played.scratch).unwrap());
    }
}

fn shell_of(played: &FinishedJob) -> String {
    played.ended[0].exec_result.clone().unwrap().command[0].clone()
}
