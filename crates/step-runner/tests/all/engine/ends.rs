//! Output of commands and of their leftover processes at the end of a job: none is lost, and no job waits forever.

use std::process::Command;

use step_runner::engine::{CancelHandle, CancelReason};
use step_runner::wire::proto::step_result::Status;

use crate::engine::play::{FinishedJob, run_many, scripts as play};

#[test]
fn output_through_tee_is_never_lost() {
    // More jobs than cores at once, so that tee is often late.
    for FinishedJob { text, .. } in run_many(1000, 8, &["exec > >(tee x.log) 2>&1; echo build ok"])
    {
        assert_eq!(text, "Running step name=s0\nbuild ok\n");
    }
}

#[test]
fn next_step_does_not_wait_for_late_output() {
    let (_dir, play) = play(&["mkfifo go; (read x < go; echo late) &", "echo next; echo > go"]);
    let text = play.run().text;
    let at = |line: &str| text.find(line).unwrap_or_else(|| panic!("{line} in {text}"));
    assert!(at("next\n") < at("late\n"), "{text}");
}

#[test]
fn output_after_a_silence_is_heard() {
    let (_dir, play) = play(&["(sleep 0.3; echo late) & echo early"]);
    assert_eq!(play.run().text, "Running step name=s0\nearly\nlate\n");
}

#[test]
fn job_ends_although_background_processes_keep_its_output_open() {
    // Processes that print nothing, or never stop.
    for script in [
        "sleep 1000 &",
        "(sleep 1000; echo never) | cat &",
        "mkfifo up; (echo > up; while :; do echo again; sleep 0.01; done) & read x < up",
    ] {
        let (_dir, play) = play(&[script]);
        let played = play.run();
        assert_eq!(played.outcome.status, Status::Success, "{}", played.outcome.message);
    }
}

#[test]
fn cancelled_job_is_not_waited_for() {
    let script = "(trap 'echo told; exit' TERM; while :; do sleep 0.05; echo again; done) &";
    let (_dir, play) = play(&[script]);
    let cancel = CancelHandle::new().unwrap();
    let played = play.run_until(&cancel, |text| {
        if text.ends_with("again\n") && cancel.reason().is_none() {
            cancel.cancel(CancelReason::Requested);
        }
    });
    assert!(played.text.ends_with("told\n"), "{}", played.text);
    // Five seconds of output would have 100 lines.
    assert!(played.text.matches("again\n").count() < 20, "{}", played.text);
}

#[test]
fn output_after_sigterm_is_read() {
    let script = "(trap 'echo last words; exit' TERM; echo > up; while :; do sleep 0.01; done) &\n\
                  read x < up";
    let (_dir, play) = play(&["mkfifo up", script]);
    let text = play.run().text;
    assert!(text.ends_with("last words\n"), "{text}");
}

#[test]
fn output_to_one_stream_stays_in_order() {
    let script =
        "exec 2>&1; set -x; echo a; true; for i in 1 2 3; do echo $i; done; cat /etc/passwd";
    let expected = Command::new("bash").args(["-c", script]).output();
    let expected = String::from_utf8(expected.unwrap().stdout).unwrap();
    let (_dir, play) = play(&[script]);
    assert_eq!(play.run().text, format!("Running step name=s0\n{expected}"));
}
