//! Many steps, and their memory.

use std::fs;
use std::time::Instant;

use oci_hooks_init::PROGRAM;
use oci_hooks_init::frames::StepAnswer;

use crate::connection::step;
use crate::first::{FirstProcess, children, wait_until};

const STEPS: u32 = 1000;

#[test]
fn a_thousand_steps_leave_nothing_behind() {
    let first = FirstProcess::start_in_namespace();
    let run = || {
        let mut connection = first.connect();
        let _pipes = connection.start(step(&["/bin/true"]));
        assert_eq!(connection.answer(), Some(StepAnswer::Exited(0)));
    };
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", first.pid())).unwrap().count();
    run();
    first.wait_until_collected();
    let before = (first.memory("RssAnon"), descriptors());
    let begun = Instant::now();
    (0..STEPS).for_each(|_| run());
    eprintln!("{} µs for a step", begun.elapsed().as_micros() / u128::from(STEPS));
    first.wait_until_collected();
    wait_until("closed descriptors", || descriptors() <= before.1);
    let after = first.memory("RssAnon");
    assert!(after <= before.0 + 16, "{before:?} {after}");
}

#[test]
fn program_and_memory_are_small() {
    assert!(PROGRAM.len() <= 1536 << 10, "{} bytes", PROGRAM.len());
    let first = FirstProcess::start();
    let mut connection = first.connect();
    let _pipes = connection.start(step(&["sleep", "1000"]));
    // Private memory; the rest is pages of the program, which all processes share.
    let supervisor = children(first.pid())[0];
    for pid in [first.pid(), supervisor] {
        let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let rss = text.lines().filter(|line| line.starts_with("VmRSS") || line.starts_with("Rss"));
        eprintln!("{}", rss.collect::<Vec<_>>().join("; "));
    }
    assert!(first.memory("RssAnon") <= 256, "{} kB", first.memory("RssAnon"));
    assert!(first.memory("VmRSS") <= 1024, "{} kB", first.memory("VmRSS"));
}
