//! What steps write, and what becomes of it when nobody reads.

use std::fs::File;
use std::io::Read as _;

use oci_hooks::sys::init::frames::Answer;
use rustix::process::{Pid, Signal, kill_process};

use crate::connection::{Connection, Pipes, script};
use crate::first::{First, NAMESPACE, Start, until};

/// Runs a step to its end, and closes the connection and its pipes.
fn run(first: &First, text: &str) {
    let mut connection = first.connect();
    assert_eq!(connection.run(script(text)).answer, Answer::Exited(0));
}

#[test]
fn much_output_comes_whole() {
    let first = First::start();
    let mut connection = first.connect();
    let Pipes { output, input, .. } = connection.start(script("head -c 50000000 /dev/zero"));
    drop(input);
    let reader = std::thread::spawn(move || {
        let mut bytes = vec![0; 1 << 20];
        let mut file: File = output;
        let mut count = 0;
        while count < 50_000_000 {
            count += file.read(&mut bytes).unwrap();
        }
        count
    });
    assert_eq!(connection.answer(), Some(Answer::Exited(0)));
    assert_eq!(reader.join().unwrap(), 50_000_000);
}

#[test]
fn output_after_the_host_has_gone_is_in_the_log() {
    for first in [First::start(), First::start_in_namespace()] {
        let dir = first.dir().display();
        let text = format!(
            "mkfifo {dir}/go; sh -c 'read x < {dir}/go; echo later; echo error >&2; echo $x' &"
        );
        run(&first, &text);
        run(&first, &format!("echo word > {dir}/go"));
        first.until_idle();
        let log = first.log();
        let mut lines: Vec<_> = log.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["error", "later", "word"]);
    }
}

#[test]
fn background_processes_neither_block_nor_end_by_what_they_write() {
    let first = First::start();
    let dir = first.dir().display();
    // Far more than any pipe has room for, and the last of it comes after all.
    let text = format!(
        "mkfifo {dir}/go; sh -c 'read x < {dir}/go; head -c 3000000 /dev/zero && echo end' &"
    );
    run(&first, &text);
    run(&first, &format!("echo > {dir}/go"));
    first.until_idle();
    let log = first.log();
    assert!(log.len() == 3_000_004 && log.ends_with("end\n"), "{}", log.len());
}

#[test]
fn a_log_that_nobody_reads_keeps_nobody_waiting() {
    // The reader of the log is stopped, and has a pipe of its own that is full.
    let with_log = ["sh", "-c", "\"$@\" 2>&1 | sleep 1000", "sh"];
    let first = First::start_as(&Start { by: &with_log, ..Start::default() });
    let dir = first.dir().display();
    let text =
        format!("sh -c 'head -c 1000000 /dev/zero; head -c 1000000 /dev/zero; : > {dir}/done' &");
    let mut connection = first.connect();
    let pipes = connection.start(script(&text));
    assert_eq!(connection.answer(), Some(Answer::Exited(0)));
    drop((connection, pipes));
    until("all was written", || first.dir().join("done").exists());
    for pid in first.steps() {
        // The shell of one that was told before may have ended.
        let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM);
    }
}

#[test]
fn a_log_that_has_no_reader_ends_nobody() {
    let closed = ["sh", "-c", "\"$@\" 2>&1 | :", "sh"];
    let by = [&closed[..], &NAMESPACE[..0]].concat();
    let first = First::start_as(&Start { by: &by, ..Start::default() });
    let dir = first.dir().display();
    let text = format!("sh -c 'head -c 1000000 /dev/zero && : > {dir}/done' &");
    let mut connection: Connection = first.connect();
    let pipes = connection.start(script(&text));
    assert_eq!(connection.answer(), Some(Answer::Exited(0)));
    drop((connection, pipes));
    until("all was written", || first.dir().join("done").exists());
}
