//! Programs that are started, or rejected with a reason.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use oci_hooks_init::frames::{
    ContainerStep, FailureKind, ResourceLimit, StepAnswer, StepUser, TerminalSize,
};
use rustix::process::{Signal, getuid};

use crate::connection::{script, step};
use crate::first::{AS_USER, FirstProcess, StartOptions, children};

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn step_ends_with_the_result_of_its_program() {
    let first = FirstProcess::start();
    for (program, answer) in [
        ("exit 0", StepAnswer::Exited(0)),
        ("exit 7", StepAnswer::Exited(7)),
        ("exit 255", StepAnswer::Exited(255)),
        ("kill -TERM $$", StepAnswer::Signalled(15)),
        ("kill -KILL $$", StepAnswer::Signalled(9)),
    ] {
        assert_eq!(first.connect().run(script(program)).answer, answer, "{program}");
    }
    let ended = first.connect().run_with(script("cat; echo no >&2"), b"yes\n");
    assert_eq!((&*ended.output, &*ended.errors), ("yes\n", "no\n"));
    first.wait_until_idle();
}

#[test]
fn step_environment_overrides_that_of_the_container() {
    let env = [("PATH", "/usr/bin:/bin"), ("A", "container"), ("B", "container")];
    let first = FirstProcess::start_as(&StartOptions { env: &env, ..StartOptions::default() });
    let with = |env: &[(&str, &str)], prepend_path: &[&str]| {
        let pairs = env.iter().map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec()));
        let prepend_path = prepend_path.iter().map(|dir| dir.as_bytes().to_vec()).collect();
        let ended = first.connect().run(ContainerStep {
            env: pairs.collect(),
            prepend_path,
            ..step(&["env"])
        });
        assert_eq!(ended.answer, StepAnswer::Exited(0), "{}", ended.errors);
        ended.output
    };
    assert_eq!(with(&[], &[]).lines().count(), env.len());
    let all = with(&[("B", "x=y\nz"), ("INPUT_FETCH-DEPTH", "")], &["/tools", "/more"]);
    for line in ["PATH=/tools:/more:/usr/bin:/bin", "A=container", "B=x=y", "INPUT_FETCH-DEPTH="] {
        assert!(all.lines().any(|found| found == line), "{line}: {all}");
    }
    // Programs are found even if the step's own PATH has none.
    let own = with(&[("PATH", "/nowhere")], &["/tools"]);
    assert!(own.lines().any(|line| line == "PATH=/tools:/nowhere"), "{own}");
}

#[test]
fn program_in_the_steps_path_precedes_the_containers() {
    let first = FirstProcess::start();
    let program = first.dir().join("ls");
    fs::write(&program, "#!/bin/sh\necho mine \"$0\" \"$1\"\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let path = first.dir().to_str().unwrap().as_bytes().to_vec();
    let ended =
        first.connect().run(ContainerStep { prepend_path: vec![path], ..step(&["ls", "a b"]) });
    assert_eq!(ended.output, format!("mine {} a b\n", program.display()));
}

#[test]
fn missing_program_is_reported_with_existing_candidates() {
    let first = FirstProcess::start();
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

    // The kernel takes a carriage return for a part of the name.
    fs::write(&plain, "#! /bin/sh\r\n").unwrap();
    let failure = first.connect().fail(step(&[plain.to_str().unwrap()]));
    assert_eq!(failure.kind, FailureKind::InterpreterMissing);
    assert_eq!(failure.found, [b"/bin/sh\r".to_vec()]);

    fs::write(&plain, "no header\n").unwrap();
    let failure = first.connect().fail(step(&[plain.to_str().unwrap()]));
    assert_eq!((failure.kind, failure.errno), (FailureKind::ProgramNotExecutable, 8));
    first.wait_until_idle();
}

#[test]
fn the_missing_dynamic_linker_of_a_program_or_of_its_interpreter_is_named() {
    let first = FirstProcess::start();
    let write = |name: &str, content: &[u8]| {
        let path = first.dir().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let program = fs::read("/bin/true").unwrap();
    let linker = b"/ld-linux";
    let at = program.windows(linker.len()).position(|part| part == linker).unwrap();
    let mut changed = program.clone();
    changed[at + 1] = b'x';
    let begin = changed[..at].iter().rposition(|byte| *byte == 0).unwrap() + 1;
    let end = at + changed[at..].iter().position(|byte| *byte == 0).unwrap();
    let missing = changed[begin..end].to_vec();
    let changed = write("changed", &changed);
    let script = write("script", format!("#!{changed}\n").as_bytes());
    for path in [&changed, &script] {
        let failure = first.connect().fail(step(&[path]));
        assert_eq!((failure.kind, failure.errno), (FailureKind::InterpreterMissing, 2), "{path}");
        assert_eq!(failure.found, std::slice::from_ref(&missing), "{path}");
    }
    // Headers that name places outside of the file.
    for damage in [32_usize, 54, 56] {
        let mut damaged = fs::read(&changed).unwrap();
        damaged[damage..damage + 2].fill(0xff);
        let damaged = write("damaged", &damaged);
        let failure = first.connect().fail(step(&[&damaged]));
        assert_ne!(failure.kind, FailureKind::ProgramMissing, "{damage}");
    }
    first.wait_until_idle();
}

#[test]
fn missing_directory_is_reported_with_its_deepest_existing_parent() {
    let first = FirstProcess::start();
    let below = format!("{}/a/b/c", first.dir().display());
    let with = |directory: &str| ContainerStep { directory: directory.into(), ..step(&["pwd"]) };
    let failure = first.connect().fail(with(&below));
    assert_eq!((failure.kind, failure.errno), (FailureKind::Directory, 2));
    assert_eq!((text(&failure.path), failure.found.len()), (below, 1));
    assert_eq!(text(&failure.found[0]), first.dir().to_str().unwrap());

    let failure = first.connect().fail(with("/etc/passwd"));
    assert_eq!((failure.kind, failure.errno), (FailureKind::Directory, 20));
    assert_eq!(first.connect().run(with("/usr/bin")).output, "/usr/bin\n");
}

#[test]
fn step_inherits_only_its_streams() {
    let first = FirstProcess::start();
    let other = first.connect();
    let ended = first.connect().run(step(&["ls", "/proc/self/fd"]));
    // The fourth is the directory that `ls` reads.
    assert_eq!(ended.output, "0\n1\n2\n3\n");
    drop(other);
}

#[test]
fn step_has_default_signals_and_its_own_session() {
    let first = FirstProcess::start();
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
fn step_may_run_as_another_user_with_other_limits() {
    assert!(getuid().is_root(), "this test needs root: tests/run uses sudo");
    let first = FirstProcess::start();
    let step = ContainerStep {
        user: Some(StepUser { uid: 4321, gid: 1234, groups: vec![1234, 77] }),
        umask: Some(0o27),
        rlimits: vec![ResourceLimit { resource: 7, soft: 100, hard: 200 }],
        ..script("id -u; id -G; umask; ulimit -n; grep -E '^Cap(Eff|Amb)' /proc/self/status")
    };
    let ended = first.connect().run(step);
    let expected =
        "4321\n1234 77\n0027\n100\nCapEff:\t0000000000000000\nCapAmb:\t0000000000000000\n";
    assert_eq!(ended.output, expected, "{}", ended.errors);

    let first = FirstProcess::start_as(&StartOptions { by: &AS_USER, ..StartOptions::default() });
    let user = Some(StepUser { uid: 0, gid: 0, groups: Vec::new() });
    let failure = first.connect().fail(ContainerStep { user, ..script("id") });
    assert_eq!((failure.kind, failure.errno), (FailureKind::Setup, 1));
    assert_eq!(text(&failure.path), "supplementary groups");
}

#[test]
fn kill_capability_of_a_user_is_not_inherited_by_steps() {
    let by = [&AS_USER[..], &["--inh-caps=+kill", "--ambient-caps=+kill"]].concat();
    let first = FirstProcess::start_as(&StartOptions { by: &by, ..StartOptions::default() });
    let caps = "grep -E '^Cap(Inh|Prm|Eff|Amb)' /proc/self/status | cut -f 2 | uniq";
    assert_eq!(first.connect().run(script(caps)).output, "0000000000000000\n");
    let status = fs::read_to_string(format!("/proc/{}/status", first.pid())).unwrap();
    assert!(status.contains("CapEff:\t0000000000000020"), "{status}");
}

#[test]
fn terminal_belongs_to_the_container() {
    let first = FirstProcess::start();
    let step = ContainerStep {
        env: vec![(b"TERM".to_vec(), b"dumb".to_vec())],
        terminal: Some(TerminalSize { rows: 33, columns: 111 }),
        ..script("tty; stty size; echo $TERM; cat; echo to stderr >&2; exit 3")
    };
    let ended = first.connect().run_with(step, b"typed\n");
    assert_eq!(ended.answer, StepAnswer::Exited(3));
    let lines: Vec<_> =
        ended.output.lines().filter(|line| !line.starts_with("/dev/pts/")).collect();
    for line in ["33 111", "dumb", "typed", "to stderr"] {
        assert!(lines.contains(&line), "{line}: {}", ended.output);
    }
    assert_eq!(ended.errors, "");
    first.wait_until_idle();
}

#[test]
fn steps_run_concurrently() {
    let first = FirstProcess::start();
    let (mut a, mut b) = (first.connect(), first.connect());
    let dir = first.dir().display();
    let meet = |own: &str, other: &str| {
        let text =
            format!("mkfifo {dir}/{own}; until [ -p {dir}/{other} ]; do :; done; echo {own}");
        script(&text)
    };
    let (to_a, to_b) = (a.start(meet("a", "b")), b.start(meet("b", "a")));
    for (connection, pipes) in [(&mut a, to_a), (&mut b, to_b)] {
        assert_eq!(connection.answer(), Some(StepAnswer::Exited(0)));
        drop(pipes);
    }
}

#[test]
fn first_process_of_a_namespace_reaps_orphans_and_exits_on_a_signal() {
    let mut first = FirstProcess::start_in_namespace();
    let ended = first.connect().run(script("echo $PPID; (true &); ps -e -o pid= | wc -l"));
    assert_eq!(ended.answer, StepAnswer::Exited(0), "{}", ended.errors);
    assert_ne!(ended.output.lines().next(), Some("1"), "a supervisor is between");
    let _pipes = first.connect().start(script("sleep 1000 & sleep 1000"));
    first.signal(Signal::TERM);
    assert_eq!(first.wait(), Some(143));
    assert_eq!(children(first.pid()), [0; 0]);
}

#[test]
fn init_needs_no_files_of_the_image() {
    let root = tempfile::tempdir().unwrap();
    let first = FirstProcess::start_as(&StartOptions {
        by: &["unshare", "--pid", "--fork"],
        root: Some(root.path()),
        ..StartOptions::default()
    });
    let failure = first.connect().fail(step(&["sh"]));
    assert_eq!((failure.kind, failure.found), (FailureKind::ProgramMissing, Vec::new()));
    // The only program is the first process itself.
    let ended = first.connect().run(step(&["/init", "no-such-program"]));
    assert_eq!(ended.answer, StepAnswer::Exited(127));
    assert_eq!(ended.errors, "no-such-program: executable file not found\n");
    first.signal(Signal::KILL);
}
