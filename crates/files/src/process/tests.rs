use std::fs;
use std::os::fd::AsRawFd as _;

use super::*;

/// Timeout that only a hanging program exceeds, even on a machine that is busy with other tests.
const LONG: Duration = Duration::from_secs(600);

/// Returns a shell program with a deadline, so that a failing test does not hang.
fn sh(script: &str) -> ChildProgram<'_> {
    let mut program = ChildProgram::new(Path::new("/bin/sh"), Path::new("/"));
    program.argv = ["sh", "-c", script].map(OsStr::new).to_vec();
    program.env = vec![(OsStr::new("PATH"), OsStr::new("/usr/bin:/bin"))];
    program.timeout = Some(LONG);
    program
}

fn run(script: &str) -> FinishedProgram {
    sh(script).run().unwrap()
}

/// Runs a program past its deadline; retries with twice the timeout if a busy machine did not let it do enough.
fn run_past_deadline(
    program: &mut ChildProgram<'_>,
    is_enough: impl Fn(&FinishedProgram) -> bool,
) -> FinishedProgram {
    let mut timeout = Duration::from_millis(50);
    loop {
        program.timeout = Some(timeout);
        let finished = program.run().unwrap();
        assert_eq!(finished.end, ProgramEnd::TimedOut);
        if is_enough(&finished) {
            return finished;
        }
        timeout *= 2;
        assert!(timeout < LONG, "{finished:?}");
    }
}

/// Writes an executable file in a child process: were the file open for writing here while another test starts
/// a program, that program would inherit the descriptor, and executing the file would fail with `ETXTBSY`.
fn executable(path: &Path, text: &str) {
    let mut program = sh("cat >\"$0\" && chmod 755 \"$0\"");
    program.argv.push(path.as_os_str());
    program.stdin = text.as_bytes();
    assert_eq!(program.run().unwrap().end, ProgramEnd::Exited(0));
}

/// Returns whether the process is gone or a zombie, which another process has to reap.
fn is_dead(pid: &str) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))
}

fn assert_dies(pid: &str) {
    let start = Instant::now();
    while !is_dead(pid) {
        assert!(start.elapsed() < LONG, "process {pid} is still there");
        std::thread::yield_now();
    }
}

#[test]
fn input_larger_than_a_pipe_comes_back_unchanged() {
    let input: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let mut program = sh("exec cat");
    program.stdin = &input;
    let finished = program.run().unwrap();
    assert_eq!(finished.end, ProgramEnd::Exited(0));
    assert!(finished.stdout == input, "the output differs from the input");
    assert!(!finished.stdout_truncated);
}

#[test]
fn exit_code_signal_and_both_streams_are_reported() {
    let finished = run("echo out; echo err >&2; exit 7");
    assert_eq!(finished.end, ProgramEnd::Exited(7));
    assert_eq!((&*finished.stdout, &*finished.stderr), (&b"out\n"[..], &b"err\n"[..]));
    assert_eq!(run("kill -TERM $$").end, ProgramEnd::Signaled(15));
}

#[test]
fn environment_arguments_and_directory_are_exactly_those_given() {
    let directory = tempfile::tempdir().unwrap();
    let script = "tr '\\0' '|' </proc/$$/cmdline; echo; tr '\\0' '|' </proc/$$/environ; pwd";
    let mut program = ChildProgram::new(Path::new("/bin/sh"), directory.path());
    program.argv = ["-other", "-c", script].map(OsStr::new).to_vec();
    program.env = vec![
        (OsStr::new("A"), OsStr::new("first")),
        (OsStr::new(""), OsStr::new("nameless")),
        (OsStr::new("A"), OsStr::new("b=c")),
    ];
    let finished = program.run().unwrap();
    let output = String::from_utf8(finished.stdout).unwrap();
    let place = directory.path().canonicalize().unwrap();
    // A shell may add to its own environment, but not to the block it was started with.
    assert_eq!(output, format!("-other|-c|{script}|\nA=b=c|{}\n", place.display()));
}

#[test]
fn program_without_arguments_gets_its_path_as_the_first() {
    for (path, cwd, argv) in [("/bin/sh", "/", "/bin/sh|"), ("../bin/sh", "/etc", "../bin/sh|")] {
        let mut program = ChildProgram::new(Path::new(path), Path::new(cwd));
        program.stdin = b"/usr/bin/tr '\\0' '|' </proc/$$/cmdline";
        assert_eq!(String::from_utf8(program.run().unwrap().stdout).unwrap(), argv);
    }
}

#[test]
fn relative_paths_start_at_the_working_directory_without_a_path_search() {
    let directory = tempfile::tempdir().unwrap();
    let mut program = ChildProgram::new(Path::new("cat"), directory.path());
    program.env = vec![(OsStr::new("PATH"), OsStr::new("/usr/bin:/bin"))];
    let error = program.run().unwrap_err();
    assert!(
        matches!(&error, RunError::Execute { source, .. }
            if source.kind() == io::ErrorKind::NotFound),
        "{error:?}"
    );
    assert_eq!(error.to_string(), "cannot execute cat");

    executable(&directory.path().join("cat"), "#!/bin/sh\necho mine\n");
    assert_eq!(program.run().unwrap().stdout, b"mine\n");
}

#[test]
fn files_that_cannot_be_executed_are_errors_and_not_run_by_a_shell() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("noshebang");
    executable(&script, "cat\n");
    for (path, errno) in [
        (script.as_path(), Errno::NOEXEC),
        (Path::new("/bin"), Errno::ACCESS),
        (Path::new("/etc/passwd"), Errno::ACCESS),
        (Path::new("/nonexistent"), Errno::NOENT),
    ] {
        match ChildProgram::new(path, Path::new("/")).run() {
            Err(RunError::Execute { source, .. }) => {
                assert_eq!(source.raw_os_error(), Some(errno.raw_os_error()), "{path:?}");
            }
            other => panic!("{path:?}: {other:?}"),
        }
    }
    let program = ChildProgram::new(Path::new("/bin/true"), Path::new("/nonexistent"));
    assert!(matches!(program.run(), Err(RunError::Execute { .. })));
}

#[test]
fn signals_have_their_default_actions() {
    let finished = run("exec grep -E '^Sig(Blk|Ign):' /proc/self/status");
    let text = String::from_utf8(finished.stdout).unwrap();
    let mask = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    };
    assert_eq!(mask("SigBlk:"), 0);
    assert_eq!(mask("SigIgn:") & (1 << (13 - 1)), 0, "SIGPIPE is ignored");
}

#[test]
fn unread_input_and_closed_pipes_are_no_errors() {
    let input = vec![b'x'; 1 << 20];
    for script in ["exit 0", "exec <&-; echo ok", "exec >&- 2>&-; exit 0", "head -c 1 >/dev/null"] {
        let mut program = sh(script);
        program.stdin = &input;
        assert_eq!(program.run().unwrap().end, ProgramEnd::Exited(0), "{script}");
    }
}

#[test]
fn unread_input_does_not_outlast_the_deadline() {
    let input = vec![b'x'; 1 << 20];
    let mut program = sh("exec sleep 1000");
    program.stdin = &input;
    program.timeout = Some(Duration::from_millis(50));
    let finished = program.run().unwrap();
    assert_eq!(finished.end, ProgramEnd::TimedOut);
    assert!(finished.duration >= Duration::from_millis(50));
    assert!(finished.duration < LONG);
}

#[test]
fn endless_output_is_cut_and_its_writer_killed() {
    let mut program = sh("echo $$ >&2; exec cat /dev/zero");
    program.stdout = OutputLimit::Kill(100_000);
    let finished = program.run().unwrap();
    assert_eq!(finished.end, ProgramEnd::OutputTooLarge);
    assert_eq!(finished.stdout.len(), 100_000);
    assert!(finished.stdout_truncated);
    assert_dies(String::from_utf8(finished.stderr).unwrap().trim());

    // Exactly the limit is not too much.
    let mut program = sh("head -c 100000 /dev/zero");
    program.stdout = OutputLimit::Kill(100_000);
    let finished = program.run().unwrap();
    assert_eq!((finished.end, finished.stdout_truncated), (ProgramEnd::Exited(0), false));
}

#[test]
fn standard_error_keeps_its_head() {
    let mut program = sh("echo head >&2; head -c 3000000 /dev/zero >&2; echo out");
    program.stderr = OutputLimit::Truncate(10);
    let finished = program.run().unwrap();
    assert_eq!(finished.end, ProgramEnd::Exited(0));
    assert_eq!((&*finished.stdout, &*finished.stderr), (&b"out\n"[..], &b"head\n\0\0\0\0\0"[..]));
    assert!(finished.stderr_truncated);

    let is_full = |finished: &FinishedProgram| finished.stderr_truncated;
    let finished = run_past_deadline(&mut sh("exec cat /dev/zero >&2"), is_full);
    assert_eq!(finished.stderr.len(), 64 << 10);
}

#[test]
fn deadline_kills_the_whole_process_group() {
    let has_written = |finished: &FinishedProgram| !finished.stdout.is_empty();
    let finished = run_past_deadline(&mut sh("sleep 1000 & echo $! $$; wait"), has_written);
    let pids = String::from_utf8(finished.stdout).unwrap();
    assert_eq!(pids.split_whitespace().count(), 2);
    pids.split_whitespace().for_each(assert_dies);
}

#[test]
fn descendant_in_another_group_cannot_delay_the_deadline() {
    // The descendant ends with the test: it reads from a pipe whose write end the test closes.
    let (reader, writer) = io::pipe().unwrap();
    let gate = format!("/proc/{}/fd/{}", std::process::id(), reader.as_raw_fd());
    let script = format!("setsid sh -c 'echo started; exec cat <{gate}' &");
    let has_written = |finished: &FinishedProgram| !finished.stdout.is_empty();
    let finished = run_past_deadline(&mut sh(&script), has_written);
    drop(writer);
    assert_eq!(finished.stdout, b"started\n");
    assert!(finished.duration < LONG);
}

#[test]
fn background_process_delays_only_standard_output() {
    // The background process lives until the program is a zombie, which is not reaped yet.
    let late = "while ! grep -q ') Z ' /proc/$$/stat; do :; done; echo late";
    let finished = run(&format!("({late}) & echo early; exit 3"));
    assert_eq!((finished.end, &*finished.stdout), (ProgramEnd::Exited(3), &b"early\nlate\n"[..]));

    let (reader, writer) = io::pipe().unwrap();
    let gate = format!("/proc/{}/fd/{}", std::process::id(), reader.as_raw_fd());
    let finished = run(&format!("(cat <{gate}) >/dev/null & echo early; exit 3"));
    assert_eq!((finished.end, &*finished.stdout), (ProgramEnd::Exited(3), &b"early\n"[..]));
    assert!(finished.duration < LONG);
    drop(writer);
}

#[test]
fn zero_timeout_kills_at_once_and_a_huge_one_never() {
    let mut program = sh("exec sleep 1000");
    program.timeout = Some(Duration::ZERO);
    let finished = program.run().unwrap();
    assert_eq!(finished.end, ProgramEnd::TimedOut);
    assert!(finished.duration < LONG);

    for timeout in [Duration::from_secs(9_223_372_036), Duration::MAX] {
        let mut program = sh("exit 0");
        program.timeout = Some(timeout);
        assert_eq!(program.run().unwrap().end, ProgramEnd::Exited(0));
    }
}
