//! Output of steps, with and without a reader.

use std::io::{self, Read as _};

use oci_hooks_init::frames::StepAnswer;
use rustix::process::{Pid, Signal, kill_process};

use crate::connection::{StepPipes, script};
use crate::first::{FirstProcess, StartOptions, wait_until};

/// Runs a step to its end, and closes the connection and its pipes.
fn run(first: &FirstProcess, text: &str) {
    let mut connection = first.connect();
    assert_eq!(connection.run(script(text)).answer, StepAnswer::Exited(0));
}

#[test]
fn large_output_is_complete() {
    let first = FirstProcess::start();
    let mut connection = first.connect();
    let StepPipes { output, input, .. } = connection.start(script("head -c 50000000 /dev/zero"));
    drop(input);
    let mut output = output.take(50_000_000);
    let reader = std::thread::spawn(move || io::copy(&mut output, &mut io::sink()));
    assert_eq!(connection.answer(), Some(StepAnswer::Exited(0)));
    assert_eq!(reader.join().unwrap().unwrap(), 50_000_000);
}

#[test]
fn output_after_the_host_has_gone_is_in_the_log() {
    for first in [FirstProcess::start(), FirstProcess::start_in_namespace()] {
        let dir = first.dir().display();
        let text = format!(
            "mkfifo {dir}/go; sh -c 'read x < {dir}/go; echo later; echo error >&2; echo $x' &"
        );
        run(&first, &text);
        run(&first, &format!("echo word > {dir}/go"));
        first.wait_until_idle();
        let log = first.log();
        let mut lines: Vec<_> = log.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["error", "later", "word"]);
    }
}

#[test]
fn background_output_neither_blocks_nor_kills_its_writer() {
    let first = FirstProcess::start();
    let dir = first.dir().display();
    // Far more than fits into a pipe, with a marker at the end.
    let text = format!(
        "mkfifo {dir}/go; sh -c 'read x < {dir}/go; head -c 3000000 /dev/zero && echo end' &"
    );
    run(&first, &text);
    run(&first, &format!("echo > {dir}/go"));
    first.wait_until_idle();
    let log = first.log();
    assert!(log.len() == 3_000_004 && log.ends_with("end\n"), "{}", log.len());
}

#[test]
fn unread_log_does_not_block_a_step() {
    // The log's reader does not read, and the pipe to it is full.
    let with_log = ["sh", "-c", "\"$@\" 2>&1 | sleep 1000", "sh"];
    let first = FirstProcess::start_as(&StartOptions { by: &with_log, ..StartOptions::default() });
    let dir = first.dir().display();
    let text =
        format!("sh -c 'head -c 1000000 /dev/zero; head -c 1000000 /dev/zero; : > {dir}/done' &");
    let mut connection = first.connect();
    let pipes = connection.start(script(&text));
    assert_eq!(connection.answer(), Some(StepAnswer::Exited(0)));
    drop((connection, pipes));
    wait_until("all was written", || first.dir().join("done").exists());
    for pid in first.steps() {
        // The shell may have exited after an earlier signal.
        let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM);
    }
}

#[test]
fn closed_log_does_not_kill_a_step() {
    let closed = ["sh", "-c", "\"$@\" 2>&1 | :", "sh"];
    let first = FirstProcess::start_as(&StartOptions { by: &closed, ..StartOptions::default() });
    let dir = first.dir().display();
    let text = format!("sh -c 'head -c 1000000 /dev/zero && : > {dir}/done' &");
    let mut connection = first.connect();
    let pipes = connection.start(script(&text));
    assert_eq!(connection.answer(), Some(StepAnswer::Exited(0)));
    drop((connection, pipes));
    wait_until("all was written", || first.dir().join("done").exists());
}
