//! Cancelled steps, and background processes of steps that were not cancelled.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Instant;

use oci_hooks_init::frames::{FailureKind, StepAnswer, StepRequest};
use oci_hooks_testsupport::program::find;
use rustix::process::{Pid, Signal, kill_process};

use crate::connection::{StepPipes, TestConnection, line, script};
use crate::first::{
    AS_USER, FirstProcess, NAMESPACE, StartOptions, children, is_alive, status, wait_until,
};

/// Scripts, and the number of processes that each has at rest.
const SCRIPTS: [(&str, &str, usize); 7] = [
    ("plain", "while :; do sleep 1000; done", 1),
    ("deaf", "trap '' HUP INT QUIT TERM; while :; do sleep 1000; done", 1),
    ("background", "sleep 1000 & nohup sleep 1000 & sleep 1000", 3),
    ("session", "setsid sh -c 'trap \"\" TERM; sleep 1000; :' & sleep 1000", 2),
    ("daemon", "(setsid sh -c '(sleep 1000; :) & sleep 1000' &); sleep 1000", 3),
    ("nested", "sh -c 'sh -c \"sh -c \\\"sleep 1000; :\\\"; :\"; :'; :", 1),
    ("stopped", "setsid sh -c 'kill -STOP $$; :' & sleep 1000", 2),
];

/// Starts a step, and waits until this many processes are at rest: a signal to a shell may also hit
/// its new child, which has not executed its program yet.
fn start(first: &FirstProcess, text: &str, count: usize) -> (TestConnection, StepPipes) {
    let mut connection = first.connect();
    let pipes = connection.start(script(text));
    let is_at_rest =
        |pid: &i32| status(*pid, "Name") == "sleep" || status(*pid, "State").starts_with('T');
    wait_until("processes at rest", || {
        first.steps().iter().filter(|p| is_at_rest(p)).count() >= count
    });
    (connection, pipes)
}

fn start_both() -> [FirstProcess; 2] {
    [FirstProcess::start(), FirstProcess::start_in_namespace()]
}

#[test]
fn step_of_a_vanished_host_is_dead_before_the_next_begins() {
    for first in start_both() {
        for (name, text, count) in SCRIPTS {
            let step = start(&first, text, count);
            let begun = Instant::now();
            drop(step);
            let _next = first.connect();
            assert_eq!(first.steps(), [0; 0], "{name}");
            eprintln!("{name}: {:?}", begun.elapsed());
        }
        first.wait_until_idle();
    }
}

#[test]
fn termination_signal_reaches_all_processes_of_a_step() {
    for first in start_both() {
        for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
            for (name, text, count) in SCRIPTS.iter().filter(|(name, ..)| *name != "deaf") {
                let (mut connection, _pipes) = start(&first, text, *count);
                connection.send(&StepRequest::Signal(signal.as_raw()));
                let ended = connection.answer();
                assert!(
                    matches!(ended, Some(StepAnswer::Signalled(_) | StepAnswer::Exited(_))),
                    "{name}: {ended:?}"
                );
                assert_eq!(first.steps(), [0; 0], "{name} {signal:?}");
            }
        }
    }
}

#[test]
fn a_signal_is_sent_to_each_process_once() {
    let first = FirstProcess::start();
    let mut connection = first.connect();
    let count = "i=0; trap 'i=$((i+1)); echo $i' USR1; echo ready; while :; do sleep 0.01; done";
    let text = format!("setsid sh -c \"{}\" & {count}", count.replace('$', "\\$"));
    let mut pipes = connection.start(script(&text.replace("sleep 0.01", ":")));
    assert_eq!([line(&mut pipes.output), line(&mut pipes.output)], ["ready", "ready"]);
    for times in ["1", "2"] {
        connection.send(&StepRequest::Signal(Signal::USR1.as_raw()));
        assert_eq!([line(&mut pipes.output), line(&mut pipes.output)], [times, times]);
    }
}

#[test]
fn kill_reaches_all_processes() {
    for first in start_both() {
        for (name, text, count) in SCRIPTS {
            let (mut connection, _pipes) = start(&first, text, count);
            connection.send(&StepRequest::Signal(9));
            assert_eq!(connection.answer(), Some(StepAnswer::Signalled(9)), "{name}");
            assert_eq!(first.steps(), [0; 0], "{name}");
        }
    }
}

#[test]
fn kill_that_comes_with_the_step_ends_it() {
    for first in start_both() {
        let (mut connection, pipes) = (first.connect(), StepPipes::new());
        let step = StepRequest::Step(Box::new(script("sleep 1000")));
        let requests =
            [step, StepRequest::Signal(9)].map(|request| request.encode().unwrap()).concat();
        connection.send_with(&requests, &pipes.theirs);
        let mut answer = connection.answer();
        if answer == Some(StepAnswer::Started) {
            answer = connection.answer();
        }
        assert_eq!(answer, Some(StepAnswer::Signalled(9)));
        first.wait_until_idle();
    }
}

#[test]
fn background_processes_of_a_step_survive_it() {
    for first in start_both() {
        let mut connection = first.connect();
        let text =
            "sleep 1000 & setsid sleep 1000 & nohup sleep 1000 & (setsid sh -c 'sleep 1000 & :' &)";
        let ended = connection.run(script(text));
        assert_eq!(ended.answer, StepAnswer::Exited(0));
        drop(connection);
        wait_until("its shells have ended", || first.steps().len() == 4);
        // Later steps, including cancelled ones, do not affect these processes.
        drop(start(&first, "sleep 1000", 5));
        assert_eq!(first.connect().run(script("exit 4")).answer, StepAnswer::Exited(4));
        let left = first.steps();
        assert_eq!(left.len(), 4);
        for pid in left {
            kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        }
        first.wait_until_idle();
    }
}

#[test]
fn program_that_exits_in_its_trap_has_its_own_code() {
    let first = FirstProcess::start();
    let mut connection = first.connect();
    let mut pipes = connection.start(script("trap 'exit 9' TERM; sleep 1000 & echo ready; wait"));
    assert_eq!(line(&mut pipes.output), "ready");
    connection.send(&StepRequest::Signal(Signal::TERM.as_raw()));
    assert_eq!(connection.answer(), Some(StepAnswer::Exited(9)));
    assert_eq!(first.steps(), [0; 0]);
}

/// Starts a first process for an otherwise unused user with a limit of processes.
fn limited(in_namespace: bool, number: u32) -> FirstProcess {
    let id = (100_000 + std::process::id() * 8 + number).to_string();
    let (reuid, regid) = (format!("--reuid={id}"), format!("--regid={id}"));
    let user = ["prlimit", "--nproc=60", "setpriv", &reuid, &regid, "--clear-groups"];
    let by = if in_namespace { [&NAMESPACE[..], &user].concat() } else { user.to_vec() };
    FirstProcess::start_as(&StartOptions { by: &by, ..StartOptions::default() })
}

#[test]
fn fork_bomb_is_killed() {
    for (number, in_namespace) in [(0, false), (1, true)] {
        let first = limited(in_namespace, number);
        for (name, own) in [("group", ""), ("sessions", "setsid")] {
            // A failed fork is retried.
            let text = format!(
                "exec perl -MPOSIX=setsid -e '$SIG{{CHLD}} = \"IGNORE\"; for (;;) \
                 {{ my $child = fork; if (defined $child && !$child) {{ {own} }} }}'"
            );
            let mut connection = first.connect();
            let step = (connection.start(script(&text)), connection);
            wait_until("many processes", || first.steps().len() >= 40);
            let begun = Instant::now();
            drop(step);
            let _next = first.connect();
            assert_eq!(first.steps(), [0; 0], "{name}");
            eprintln!("{name}: {:?}", begun.elapsed());
        }
    }
}

#[test]
fn constantly_forking_process_is_killed() {
    for first in start_both() {
        let text = "perl -MPOSIX=setsid -e '$SIG{CHLD} = \"IGNORE\"; for (;;) \
                    { exit if fork; setsid }' & exec sleep 1000";
        let step = start(&first, text, 1);
        drop(step);
        let _next = first.connect();
        assert_eq!(first.steps(), [0; 0]);
    }
}

#[test]
fn process_started_as_root_by_a_user_is_killed() {
    // As by `sudo`: a process that is set-user-ID only can still be killed by its real user.
    let by = [&AS_USER[..], &["--inh-caps=+kill", "--ambient-caps=+kill"]].concat();
    let first = FirstProcess::start_as(&StartOptions { by: &by, ..StartOptions::default() });
    let sudo = first.dir().join("sudo");
    fs::copy(find("setpriv"), &sudo).unwrap();
    fs::set_permissions(&sudo, fs::Permissions::from_mode(0o4755)).unwrap();
    let as_root = format!("{} --reuid=0 --regid=0 --clear-groups sleep 1000", sudo.display());
    let step = start(&first, &format!("{as_root} & exec sleep 1000"), 2);
    let is_root = |pid: &i32| status(*pid, "Uid").starts_with("0\t0\t0");
    assert_eq!(first.steps().iter().filter(|pid| is_root(pid)).count(), 1);
    drop(step);
    let _next = first.connect();
    assert_eq!(first.steps(), [0; 0]);
}

#[test]
fn step_that_stops_its_supervisor_is_killed() {
    let first = FirstProcess::start();
    let mut connection = first.connect();
    let mut pipes = connection.start(script("kill -STOP $PPID; echo done; sleep 1000"));
    assert_eq!(line(&mut pipes.output), "done");
    drop((connection, pipes));
    let _next = first.connect();
    assert_eq!(first.steps(), [0; 0]);
}

#[test]
fn step_that_kills_its_supervisor_is_killed() {
    for first in start_both() {
        let mut other = first.connect();
        let other_pipes = other.start(script("exec sleep 1000"));
        let mut connection = first.connect();
        let text = "sleep 1000 & setsid sleep 1000 & kill -KILL $PPID; sleep 1000";
        let _pipes = connection.ask(script(text));
        // The supervisor may die before it reports the start of the program.
        let mut answers = std::iter::from_fn(|| connection.answer());
        let last = answers.find(|answer| *answer != StepAnswer::Started);
        let Some(StepAnswer::Failed(failure)) = last else { panic!("no failure: {last:?}") };
        assert_eq!(failure.kind, FailureKind::Supervisor);
        assert_eq!(connection.answer(), None);
        assert_eq!(first.steps().len(), 1, "that of the other step");
        assert_eq!(children(first.pid()).len(), 1);
        drop((other, other_pipes));
        first.wait_until_idle();
    }
}

#[test]
fn end_of_the_first_process_kills_all_steps() {
    for mut first in start_both() {
        let _step = start(&first, "trap '' TERM; setsid sleep 1000 & sleep 1000", 2);
        let _other = start(&first, "sleep 1000 &", 3);
        let steps = first.steps();
        first.signal(Signal::TERM);
        assert_eq!(first.wait(), Some(143));
        wait_until("all are dead", || !steps.iter().any(|pid| is_alive(*pid)));
    }
}
