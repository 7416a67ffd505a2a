//! Steps that are cancelled, and what they left running when they were not.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use oci_hooks::sys::init::frames::{Answer, FailureKind, Request};
use rustix::process::{Pid, Signal, kill_process};

use crate::connection::{Connection, Pipes, line, script};
use crate::first::{First, NAMESPACE, Start, children, is_alive, status, until};

/// Scripts, and how many processes of each are at rest when it is complete.
const SCRIPTS: [(&str, &str, usize); 7] = [
    ("plain", "while :; do sleep 1000; done", 1),
    ("deaf", "trap '' HUP INT QUIT TERM; while :; do sleep 1000; done", 1),
    ("background", "sleep 1000 & nohup sleep 1000 & sleep 1000", 3),
    ("session", "setsid sh -c 'trap \"\" TERM; sleep 1000; :' & sleep 1000", 2),
    ("daemon", "(setsid sh -c '(sleep 1000; :) & sleep 1000' &); sleep 1000", 3),
    ("nested", "sh -c 'sh -c \"sh -c \\\"sleep 1000; :\\\"; :\"; :'; :", 1),
    ("stopped", "setsid sh -c 'kill -STOP $$; :' & sleep 1000", 2),
];

/// Starts a step, and waits until so many processes are at rest: a shell that has made a process, which
/// has not become its program, may take a signal for both of them.
fn start(first: &First, text: &str, count: usize) -> (Connection, Pipes) {
    let mut connection = first.connect();
    let pipes = connection.start(script(text));
    let is_at_rest =
        |pid: &i32| status(*pid, "Name") == "sleep" || status(*pid, "State").starts_with('T');
    until("processes at rest", || first.steps().iter().filter(|p| is_at_rest(p)).count() >= count);
    (connection, pipes)
}

fn both() -> [First; 2] {
    [First::start(), First::start_in_namespace()]
}

#[test]
fn a_step_whose_host_is_gone_is_dead_before_the_next_begins() {
    for first in both() {
        for (name, text, count) in SCRIPTS {
            let step = start(&first, text, count);
            let begun = Instant::now();
            drop(step);
            let _next = first.connect();
            assert_eq!(first.steps(), [0; 0], "{name}");
            eprintln!("{name}: {:?}", begun.elapsed());
        }
        first.until_idle();
    }
}

#[test]
fn a_signal_to_end_reaches_all_and_nothing_is_left_when_the_program_has_ended() {
    for first in both() {
        for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
            for (name, text, count) in SCRIPTS.iter().filter(|(name, ..)| *name != "deaf") {
                let (mut connection, _pipes) = start(&first, text, *count);
                connection.send(&Request::Signal(signal.as_raw()));
                let ended = connection.answer();
                assert!(
                    matches!(ended, Some(Answer::Signalled(_) | Answer::Exited(_))),
                    "{name}: {ended:?}"
                );
                assert_eq!(first.steps(), [0; 0], "{name} {signal:?}");
            }
        }
    }
}

#[test]
fn a_signal_is_sent_to_each_process_once() {
    let first = First::start();
    let mut connection = first.connect();
    let count = "i=0; trap 'i=$((i+1)); echo $i' USR1; echo ready; while :; do sleep 0.01; done";
    let text = format!("setsid sh -c \"{}\" & {count}", count.replace('$', "\\$"));
    let mut pipes = connection.start(script(&text.replace("sleep 0.01", ":")));
    assert_eq!([line(&mut pipes.output), line(&mut pipes.output)], ["ready", "ready"]);
    for times in ["1", "2"] {
        connection.send(&Request::Signal(Signal::USR1.as_raw()));
        assert_eq!([line(&mut pipes.output), line(&mut pipes.output)], [times, times]);
    }
}

#[test]
fn a_kill_is_for_all() {
    for first in both() {
        for (name, text, count) in SCRIPTS {
            let (mut connection, _pipes) = start(&first, text, count);
            connection.send(&Request::Kill);
            assert_eq!(connection.answer(), Some(Answer::Signalled(9)), "{name}");
            assert_eq!(first.steps(), [0; 0], "{name}");
        }
    }
}

#[test]
fn what_a_step_leaves_running_stays_until_it_ends() {
    for first in both() {
        let mut connection = first.connect();
        let text =
            "sleep 1000 & setsid sleep 1000 & nohup sleep 1000 & (setsid sh -c 'sleep 1000 & :' &)";
        let ended = connection.run(script(text));
        assert_eq!(ended.answer, Answer::Exited(0));
        drop(connection);
        until("its shells have ended", || first.steps().len() == 4);
        // Steps after it, cancelled ones too, leave it alone.
        drop(start(&first, "sleep 1000", 5));
        assert_eq!(first.connect().run(script("exit 4")).answer, Answer::Exited(4));
        let left = first.steps();
        assert_eq!(left.len(), 4);
        for pid in left {
            kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        }
        first.until_idle();
    }
}

#[test]
fn a_program_that_ends_by_its_trap_has_its_own_code() {
    let first = First::start();
    let (mut connection, mut pipes) = {
        let mut connection = first.connect();
        let text = "trap 'exit 9' TERM; sleep 1000 & echo ready; wait";
        let pipes = connection.start(script(text));
        (connection, pipes)
    };
    assert_eq!(line(&mut pipes.output), "ready");
    connection.send(&Request::Signal(Signal::TERM.as_raw()));
    assert_eq!(connection.answer(), Some(Answer::Exited(9)));
    assert_eq!(first.steps(), [0; 0]);
}

/// Starts a first process for a user who can have so many processes, who is nobody else's.
fn limited(in_namespace: bool, number: u32) -> First {
    let id = (100_000 + std::process::id() * 8 + number).to_string();
    let (reuid, regid) = (format!("--reuid={id}"), format!("--regid={id}"));
    let user = ["prlimit", "--nproc=60", "setpriv", &reuid, &regid, "--clear-groups"];
    let by = if in_namespace { [&NAMESPACE[..], &user].concat() } else { user.to_vec() };
    First::start_as(&Start { by: &by, ..Start::default() })
}

#[test]
fn what_multiplies_dies_too() {
    for (number, in_namespace) in [(0, false), (1, true)] {
        let first = limited(in_namespace, number);
        for (name, own) in [("group", ""), ("sessions", "setsid")] {
            // A fork that fails is tried again.
            let text = format!(
                "exec perl -MPOSIX=setsid -e '$SIG{{CHLD}} = \"IGNORE\"; for (;;) \
                 {{ my $child = fork; if (defined $child && !$child) {{ {own} }} }}'"
            );
            let mut connection = first.connect();
            let step = (connection.start(script(&text)), connection);
            until("many processes", || first.steps().len() >= 40);
            let begun = Instant::now();
            drop(step);
            let _next = first.connect();
            assert_eq!(first.steps(), [0; 0], "{name}");
            eprintln!("{name}: {:?}", begun.elapsed());
        }
    }
}

#[test]
fn what_is_never_where_it_was_seen_dies_too() {
    for first in both() {
        let text = "perl -MPOSIX=setsid -e '$SIG{CHLD} = \"IGNORE\"; for (;;) \
                    { exit if fork; setsid }' & exec sleep 1000";
        let step = start(&first, text, 1);
        drop(step);
        let _next = first.connect();
        assert_eq!(first.steps(), [0; 0]);
    }
}

#[test]
fn what_a_user_started_as_root_is_killed_too() {
    // As `sudo` does it; the real user of a set-user-ID program alone may still be killed.
    let by = ["setpriv", "--reuid=4321", "--regid=4321", "--clear-groups", "--inh-caps=+kill"];
    let by = [&by[..], &["--ambient-caps=+kill"]].concat();
    let first = First::start_as(&Start { by: &by, ..Start::default() });
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

/// Returns where a program is.
fn find(name: &str) -> PathBuf {
    let candidates = ["/usr/bin", "/bin", "/usr/sbin"].map(|dir| Path::new(dir).join(name));
    let found = candidates.into_iter().find(|path| path.exists());
    found.unwrap_or_else(|| panic!("this test needs the program `{name}`"))
}

#[test]
fn a_step_that_stops_its_supervisor_is_continued_and_killed() {
    let first = First::start();
    let mut connection = first.connect();
    let mut pipes = connection.start(script("kill -STOP $PPID; echo done; sleep 1000"));
    assert_eq!(line(&mut pipes.output), "done");
    let begun = Instant::now();
    drop((connection, pipes));
    let _next = first.connect();
    assert_eq!(first.steps(), [0; 0]);
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_step_that_kills_its_supervisor_is_killed_with_it() {
    for first in both() {
        let mut other = first.connect();
        let other_pipes = other.start(script("exec sleep 1000"));
        let mut connection = first.connect();
        let text = "sleep 1000 & setsid sleep 1000 & kill -KILL $PPID; sleep 1000";
        let _pipes = connection.ask(script(text));
        // It may be dead before it could say that it started the program.
        let mut answers = std::iter::from_fn(|| connection.answer());
        let last = answers.find(|answer| *answer != Answer::Started);
        let Some(Answer::Failed(failure)) = last else { panic!("no failure: {last:?}") };
        assert_eq!(failure.kind, FailureKind::Watcher);
        assert_eq!(connection.answer(), None);
        assert_eq!(first.steps().len(), 1, "that of the other step");
        assert_eq!(children(first.pid()).len(), 1);
        drop((other, other_pipes));
        first.until_idle();
    }
}

#[test]
fn the_end_of_the_first_process_is_that_of_all() {
    for mut first in both() {
        let _step = start(&first, "trap '' TERM; setsid sleep 1000 & sleep 1000", 2);
        let _other = start(&first, "sleep 1000 &", 3);
        let steps = first.steps();
        first.signal(Signal::TERM);
        assert_eq!(first.wait(), Some(0));
        until("all are dead", || !steps.iter().any(|pid| is_alive(*pid)));
    }
}
