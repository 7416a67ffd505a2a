//! Programs that are started, and those that cannot be.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use oci_hooks::sys::init::frames::{Answer, FailureKind, Ids, Rlimit, Size, Step};
use rustix::process::{Signal, getuid};

use crate::connection::{Connection, script, step};
use crate::first::{First, NAMESPACE, Start, children};

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_step_ends_as_its_program_does() {
    let first = First::start();
    for (program, answer) in [
        ("exit 0", Answer::Exited(0)),
        ("exit 7", Answer::Exited(7)),
        ("exit 255", Answer::Exited(255)),
        ("kill -TERM $$", Answer::Signalled(15)),
        ("kill -KILL $$", Answer::Signalled(9)),
    ] {
        assert_eq!(first.connect().run(script(program)).answer, answer, "{program}");
    }
    let ended = first.connect().run_with(script("cat; echo no >&2"), b"yes\n");
    assert_eq!((&*ended.output, &*ended.errors), ("yes\n", "no\n"));
    first.until_idle();
}

#[test]
fn a_step_has_the_environment_of_the_container_and_its_own_over_it() {
    let env = [("PATH", "/usr/bin:/bin"), ("A", "container"), ("B", "container")];
    let first = First::start_as(&Start { env: &env, ..Start::default() });
    let with = |env: &[(&str, &str)], prepend_path: &[&str]| {
        let pairs = env.iter().map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec()));
        let prepend_path = prepend_path.iter().map(|dir| dir.as_bytes().to_vec()).collect();
        let ended =
            first.connect().run(Step { env: pairs.collect(), prepend_path, ..step(&["env"]) });
        assert_eq!(ended.answer, Answer::Exited(0), "{}", ended.errors);
        ended.output
    };
    assert_eq!(with(&[], &[]).lines().count(), env.len());
    let all = with(&[("B", "x=y\nz"), ("INPUT_FETCH-DEPTH", "")], &["/tools", "/more"]);
    for line in ["PATH=/tools:/more:/usr/bin:/bin", "A=container", "B=x=y", "INPUT_FETCH-DEPTH="] {
        assert!(all.lines().any(|found| found == line), "{line}: {all}");
    }
    // A PATH of the step's own has no programs, and they are found all the same.
    let own = with(&[("PATH", "/nowhere")], &["/tools"]);
    assert!(own.lines().any(|line| line == "PATH=/tools:/nowhere"), "{own}");
}

#[test]
fn a_program_of_the_steps_path_comes_before_one_of_the_container() {
    let first = First::start();
    let program = first.dir().join("ls");
    fs::write(&program, "#!/bin/sh\necho mine \"$0\" \"$1\"\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let path = first.dir().to_str().unwrap().as_bytes().to_vec();
    let ended = first.connect().run(Step { prepend_path: vec![path], ..step(&["ls", "a b"]) });
    assert_eq!(ended.output, format!("mine {} a b\n", program.display()));
}

#[test]
fn what_is_missing_is_named_with_what_there_is() {
    let first = First::start();
    let failure = first.connect().fail(step(&["no-such-shell", "-e"]));
    assert_eq!((failure.kind, failure.errno), (FailureKind::ProgramMissing, 2));
    assert_eq!(text(&failure.path), "no-such-shell");
    assert!(failure.found.contains(&b"sh".to_vec()), "{failure:?}");
    assert!(!failure.found.contains(&b"pwsh".to_vec()), "{failure:?}");

    let failure = first.connect().fail(step(&["/no/such/program"]));
    assert_eq!(failure.kind, FailureKind::ProgramMissing);

    let plain = first.dir().join("plain");
    fs::write(&plain, "").unwrap();
    let failure = first.connect().fail(step(&[plain.to_str().unwrap()]));
    assert_eq!((failure.kind, failure.errno), (FailureKind::ProgramNotExecutable, 13));

    fs::write(&plain, "#!/no/such/interpreter -x\n").unwrap();
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o755)).unwrap();
    let failure = first.connect().fail(step(&[plain.to_str().unwrap()]));
    assert_eq!(failure.kind, FailureKind::InterpreterMissing);
    assert_eq!(failure.found, [b"/no/such/interpreter".to_vec()]);

    fs::write(&plain, "no header\n").unwrap();
    let failure = first.connect().fail(step(&[plain.to_str().unwrap()]));
    assert_eq!((failure.kind, failure.errno), (FailureKind::ProgramNotExecutable, 8));
    first.until_idle();
}

#[test]
fn a_directory_that_is_missing_is_named_with_the_deepest_that_is_there() {
    let first = First::start();
    let below = format!("{}/a/b/c", first.dir().display());
    let with = |directory: &str| Step { directory: directory.into(), ..step(&["pwd"]) };
    let failure = first.connect().fail(with(&below));
    assert_eq!((failure.kind, failure.errno), (FailureKind::Directory, 2));
    assert_eq!((text(&failure.path), failure.found.len()), (below, 1));
    assert_eq!(text(&failure.found[0]), first.dir().to_str().unwrap());

    let failure = first.connect().fail(with("/etc/passwd"));
    assert_eq!((failure.kind, failure.errno), (FailureKind::Directory, 20));
    assert_eq!(first.connect().run(with("/usr/bin")).output, "/usr/bin\n");
}

#[test]
fn a_step_gets_no_descriptor_but_its_streams() {
    let first = First::start();
    let other = first.connect();
    let ended = first.connect().run(step(&["ls", "/proc/self/fd"]));
    // The fourth is what `ls` reads.
    assert_eq!(ended.output, "0\n1\n2\n3\n");
    drop(other);
}

#[test]
fn a_step_gets_default_signals_and_a_session_of_its_own() {
    let first = First::start();
    let ended = first.connect().run(script(
        "grep -E '^Sig(Blk|Ign)' /proc/self/status; cut -d ' ' -f 1,5,6 /proc/$$/stat",
    ));
    let mut lines = ended.output.lines();
    for name in ["SigBlk", "SigIgn"] {
        assert_eq!(lines.next(), Some(&*format!("{name}:\t0000000000000000")));
    }
    let ids: Vec<_> = lines.next().unwrap().split(' ').collect();
    assert_eq!((ids[0], ids[0]), (ids[1], ids[2]));
}

#[test]
fn a_step_may_be_another_user_with_other_limits() {
    assert!(getuid().is_root(), "this test needs root: tests/run uses sudo");
    let first = First::start();
    let step = Step {
        user: Some(Ids { uid: 4321, gid: 1234, groups: vec![1234, 77] }),
        umask: Some(0o27),
        rlimits: vec![Rlimit { resource: 7, soft: 100, hard: 200 }],
        ..script("id -u; id -G; umask; ulimit -n; grep -E '^Cap(Eff|Amb)' /proc/self/status")
    };
    let ended = first.connect().run(step);
    let expected =
        "4321\n1234 77\n0027\n100\nCapEff:\t0000000000000000\nCapAmb:\t0000000000000000\n";
    assert_eq!(ended.output, expected, "{}", ended.errors);

    let own = ["setpriv", "--reuid=4321", "--regid=4321", "--clear-groups"];
    let first = First::start_as(&Start { by: &own, ..Start::default() });
    let user = Some(Ids { uid: 0, gid: 0, groups: Vec::new() });
    let failure = first.connect().fail(Step { user, ..script("id") });
    assert_eq!((failure.kind, failure.errno), (FailureKind::Setup, 1));
    assert_eq!(text(&failure.path), "supplementary groups");
}

#[test]
fn a_user_who_is_given_the_right_to_kill_does_not_give_it_to_steps() {
    let by = ["setpriv", "--reuid=4321", "--regid=4321", "--clear-groups", "--inh-caps=+kill"];
    let by = [&by[..], &["--ambient-caps=+kill"]].concat();
    let first = First::start_as(&Start { by: &by, ..Start::default() });
    let caps = "grep -E '^Cap(Inh|Prm|Eff|Amb)' /proc/self/status | cut -f 2 | uniq";
    assert_eq!(first.connect().run(script(caps)).output, "0000000000000000\n");
    let status = fs::read_to_string(format!("/proc/{}/status", first.pid())).unwrap();
    assert!(status.contains("CapEff:\t0000000000000020"), "{status}");
}

#[test]
fn a_terminal_is_one_of_the_container() {
    let first = First::start();
    let step = Step {
        terminal: Some(Size { rows: 33, columns: 111 }),
        ..script("tty; stty size; echo $TERM; cat; echo to stderr >&2; exit 3")
    };
    let ended = first.connect().run_with(Step { env: term(), ..step }, b"typed\n");
    assert_eq!(ended.answer, Answer::Exited(3));
    let lines: Vec<_> =
        ended.output.lines().filter(|line| !line.starts_with("/dev/pts/")).collect();
    for line in ["33 111", "dumb", "typed", "to stderr"] {
        assert!(lines.contains(&line), "{line}: {}", ended.output);
    }
    assert_eq!(ended.errors, "");
    first.until_idle();
}

fn term() -> Vec<(Vec<u8>, Vec<u8>)> {
    vec![(b"TERM".to_vec(), b"dumb".to_vec())]
}

#[test]
fn steps_run_at_the_same_time() {
    let first = First::start();
    let (mut a, mut b) = (first.connect(), first.connect());
    let dir = first.dir().display();
    let meet = |own: &str, other: &str| {
        let text =
            format!("mkfifo {dir}/{own}; until [ -p {dir}/{other} ]; do :; done; echo {own}");
        script(&text)
    };
    let (to_a, to_b) = (a.start(meet("a", "b")), b.start(meet("b", "a")));
    for (connection, pipes) in [(&mut a, to_a), (&mut b, to_b)] {
        assert_eq!(connection.answer(), Some(Answer::Exited(0)));
        drop(pipes);
    }
}

#[test]
fn as_first_process_of_a_namespace_it_collects_and_ends_by_a_signal() {
    let mut first = First::start_in_namespace();
    let ended = first.connect().run(script("echo $PPID; (true &); ps -e -o pid= | wc -l"));
    assert_eq!(ended.answer, Answer::Exited(0), "{}", ended.errors);
    assert_ne!(ended.output.lines().next(), Some("1"), "a supervisor is between");
    let _pipes = first.connect().start(script("sleep 1000 & sleep 1000"));
    first.signal(Signal::TERM);
    assert_eq!(first.wait(), Some(0));
    assert_eq!(children(first.pid()), [0; 0]);
}

#[test]
fn it_needs_nothing_of_the_image() {
    let root = tempfile::tempdir().unwrap();
    let start = Start { by: &NAMESPACE[..1], root: Some(root.path()), ..Start::default() };
    let first = First::start_as(&Start { by: &["unshare", "--pid", "--fork"], ..start });
    let mut connection: Connection = first.connect();
    let failure = connection.fail(step(&["sh"]));
    assert_eq!((failure.kind, failure.found), (FailureKind::ProgramMissing, Vec::new()));
    // The one program that there is: itself.
    let ended = first.connect().run(step(&["/init", "no-such-program"]));
    assert_eq!(ended.answer, Answer::Exited(127));
    assert_eq!(ended.errors, "no-such-program: executable file not found\n");
    first.signal(Signal::KILL);
}
