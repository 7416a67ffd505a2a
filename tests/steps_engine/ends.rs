//! What commands leave behind says at the end of a job: nothing is lost, and nobody waits in vain.

use std::time::{Duration, Instant};

use oci_hooks::step_runner::engine::{Cancel, Reason};
use oci_hooks::step_runner::wire::proto::step_result::Status;

use crate::play::{Played, many, scripts as play};

#[test]
fn what_goes_through_tee_is_never_lost() {
    // More at once than there are cores: tee is often late.
    for Played { text, .. } in many(1000, 8, &["exec > >(tee x.log) 2>&1; echo build ok"]) {
        assert_eq!(text, "Running step \"s0\"\nbuild ok\n");
    }
}

#[test]
fn who_is_late_is_heard() {
    for Played { text, .. } in many(1000, 50, &["(sleep 0.2; echo late) & echo early"]) {
        assert_eq!(text, "Running step \"s0\"\nearly\nlate\n");
    }
}

#[test]
fn the_next_step_does_not_wait_for_who_is_late() {
    let (_dir, play) = play(&["mkfifo go; (read x < go; echo late) &", "echo next; echo > go"]);
    let text = play.run().text;
    let at = |line: &str| text.find(line).unwrap_or_else(|| panic!("{line} in {text}"));
    assert!(at("next\n") < at("late\n"), "{text}");
}

#[test]
fn who_stays_silent_holds_up_nobody() {
    for script in
        ["sleep 1000 &", "(sleep 1000; echo never) | cat &", "while sleep 600; do :; done &"]
    {
        let (_dir, mut play) = play(&[script]);
        // The test would never end.
        play.drain_output = Duration::from_secs(500);
        let played = play.run();
        assert_eq!(played.outcome.status, Status::Success, "{}", played.outcome.message);
    }
}

#[test]
fn who_never_ends_is_heard_for_a_while_only() {
    let (_dir, mut play) = play(&["(while :; do sleep 0.05; echo again; done) &"]);
    play.drain_output = Duration::from_millis(500);
    let start = Instant::now();
    let played = play.run();
    assert!(start.elapsed() >= Duration::from_millis(500));
    assert!(played.text.contains("again\n"), "{}", played.text);
}

#[test]
fn a_cancelled_job_hears_nobody_out() {
    let (_dir, mut play) = play(&["(while :; do sleep 0.05; echo again; done) &"]);
    play.drain_output = Duration::from_secs(500);
    let cancel = Cancel::new().unwrap();
    play.run_until(&cancel, |text| {
        if text.ends_with("again\n") && cancel.reason().is_none() {
            cancel.cancel(Reason::Asked);
        }
    });
}

#[test]
fn last_words_after_sigterm_are_heard() {
    let script = "(trap 'echo last words; exit' TERM; echo > up; while :; do sleep 0.01; done) &\n\
                  read x < up";
    let (_dir, mut play) = play(&["mkfifo up", script]);
    play.drain_output = Duration::ZERO;
    let text = play.run().text;
    assert!(text.ends_with("last words\n"), "{text}");
}
