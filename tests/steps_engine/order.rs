//! Standard output and standard error come in the order in which they were written.

use std::process::Command;

use crate::play::many;

/// Returns what a script prints into one pipe.
fn expected(script: &str) -> String {
    // By `eval`, as scripts are run: `set -x` shows how deep a command is.
    let output =
        Command::new("bash").args(["-c", "exec 2>&1; eval \"$1\"", "bash", script]).output();
    let output = output.unwrap();
    format!("Running step \"s0\"\n{}", String::from_utf8(output.stdout).unwrap())
}

/// Runs a script many times, more at once than there are cores: who reads is often late.
#[track_caller]
fn assert_ordered(runs: usize, script: &str) {
    let expected = expected(script);
    let played = many(runs, 8, &[script]);
    let wrong: Vec<_> = played.into_iter().map(|run| run.text).filter(|t| *t != expected).collect();
    // A program that is interrupted in the middle of a write may have said more than the kernel knows.
    assert!(wrong.len() <= runs / 200, "{} of {runs}; {}", wrong.len(), wrong[0]);
}

#[test]
fn what_a_shell_traces_stands_before_what_it_does() {
    assert_ordered(
        1000,
        "set -x; echo a; true; echo b; true; true; echo c; for i in 1 2 3; do echo $i; done; cat /etc/passwd",
    );
}

#[test]
fn lines_alternate_however_far_apart_they_are() {
    for (seconds, runs) in [("0", 1000), ("0.001", 50), ("0.005", 20)] {
        let script = format!(
            "exec python3 -c '\n\
             import os, time\n\
             for i in range(100):\n\
            \x20   os.write(1 + i % 2, b\"%d\\n\" % i)\n\
            \x20   if {seconds}: time.sleep({seconds})'"
        );
        assert_ordered(runs, &script);
    }
}
