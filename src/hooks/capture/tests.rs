use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use super::*;

const STATE: &[u8] = br#"{"ociVersion":"1.0.2","id":"c1","status":"created","bundle":"/b"}"#;

fn capture<'a>(directory: &'a Path, script: &'a str) -> Capture<'a> {
    Capture {
        directory,
        hook: "10-test.json",
        stage: "createRuntime",
        path: Path::new("/bin/sh"),
        argv: ["sh", "-c", script].map(OsStr::new).to_vec(),
        env: vec![(OsStr::new("PATH"), OsStr::new("/usr/bin:/bin"))],
        cwd: Path::new("/"),
        timeout: Some(60),
        state: STATE,
        output_limit_bytes: 1 << 20,
    }
}

/// Returns the record without what differs from run to run.
fn recorded(captured: &Captured) -> Value {
    let path = captured.record.as_ref().unwrap();
    let mut record: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let started = record["started"].take();
    let compact = started.as_str().unwrap().replace(['-', ':'], "");
    assert!(path.file_name().unwrap().to_str().unwrap().starts_with(&compact));
    assert!(record["duration_ms"].take().as_u64().unwrap() < 60_000);
    record
}

#[test]
fn hook_gets_the_state_unchanged_and_its_run_is_recorded() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("records/of hooks");
    let script = "cat; echo why >&2; exit 3";
    let captured = capture(&directory, script).run();
    assert_eq!(captured.exit_code, 3);
    assert_eq!(captured.stdout, STATE);
    assert_eq!(captured.stderr, b"why\n");
    assert!(captured.failure.is_none());
    assert_eq!(
        recorded(&captured),
        json!({
            "hook": "10-test.json",
            "stage": "createRuntime",
            "path": "/bin/sh",
            "args": ["sh", "-c", script],
            "container": "c1",
            "started": null,
            "duration_ms": null,
            "exit_code": 3,
            "stdout": str::from_utf8(STATE).unwrap(),
            "stdout_truncated": false,
            "stderr": "why\n",
            "stderr_truncated": false,
        })
    );
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&directory), 0o700);
    assert_eq!(mode(captured.record.as_ref().unwrap()), 0o600);
}

#[test]
fn signals_timeouts_and_missing_programs_are_recorded_and_given_back_as_a_shell_does() {
    let root = tempfile::tempdir().unwrap();
    let captured = capture(root.path(), "kill -TERM $$").run();
    assert_eq!((captured.exit_code, &recorded(&captured)["signal"]), (143, &json!(15)));

    let mut hanging = capture(root.path(), "echo before; sleep 1000 & wait");
    hanging.timeout = Some(1);
    let captured = hanging.run();
    let record = recorded(&captured);
    assert_eq!((captured.exit_code, &record["timed_out"]), (137, &json!(true)));
    assert_eq!(record["stdout"], "before\n");

    for (path, exit_code, error) in [
        ("/nonexistent", 127, "cannot execute /nonexistent: No such file or directory"),
        ("/etc/passwd", 126, "cannot execute /etc/passwd: Permission denied"),
    ] {
        let mut missing = capture(root.path(), "");
        missing.path = Path::new(path);
        let captured = missing.run();
        assert_eq!(captured.exit_code, exit_code);
        assert!(captured.failure.is_some());
        assert!(recorded(&captured)["error"].as_str().unwrap().starts_with(error));
    }
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 4);
}

#[test]
fn records_sort_by_time() {
    let root = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> =
        (0..5).map(|_| capture(root.path(), "").run().record.unwrap()).collect();
    assert!(paths.is_sorted_by(|a, b| a < b), "{paths:?}");
}

#[test]
fn output_is_cut_at_the_limit_and_need_not_be_text() {
    let root = tempfile::tempdir().unwrap();
    let mut capture = capture(root.path(), r"printf 'a\377bcd'; echo long >&2");
    capture.output_limit_bytes = 3;
    capture.state = b"not JSON";
    let captured = capture.run();
    assert_eq!((captured.exit_code, &*captured.stdout), (0, &b"a\xffb"[..]));
    let record = recorded(&captured);
    assert_eq!(record["stdout"], "a\u{fffd}b");
    assert_eq!((&record["stdout_truncated"], &record["stderr"]), (&json!(true), &json!("lon")));
    assert_eq!(record["container"], Value::Null);
}

#[test]
fn hook_runs_even_if_it_cannot_be_recorded() {
    let captured = capture(Path::new("/dev/null/records"), "echo ran; exit 4").run();
    assert_eq!((captured.exit_code, &*captured.stdout), (4, &b"ran\n"[..]));
    assert!(matches!(captured.record, Err(CaptureError::Directory(_))));
}

#[test]
fn state_is_bounded() {
    assert_eq!(read_state(STATE).unwrap(), STATE);
    assert!(matches!(read_state(io::repeat(b' ')), Err(CaptureError::StateTooLarge)));
}

fn recorder() -> Recorder {
    Recorder::new(Path::new("/usr/bin/oci-hooks"), Path::new("/var/log/hook records")).unwrap()
}

fn hook(path: &str, args: &[&str], timeout: Option<i64>) -> Hook {
    Hook {
        path: path.to_owned(),
        args: args.iter().copied().map(str::to_owned).collect(),
        env: Some(vec!["A=b".to_owned()]),
        timeout,
    }
}

#[test]
fn wrapped_hook_starts_the_recorder_with_all_that_the_hook_had() {
    let wrapped = recorder()
        .wrap(&hook("/bin/x", &["-x", "--", "y z"], Some(5)), "--odd.json", "poststop")
        .unwrap();
    let args = [
        "oci-hooks",
        "run-hook",
        "--capture=/var/log/hook records",
        "--hook=--odd.json",
        "--stage=poststop",
        "--timeout=5",
        "--arg0=-x",
        "--",
        "/bin/x",
        "--",
        "y z",
    ];
    assert_eq!(wrapped, hook("/usr/bin/oci-hooks", &args, Some(15)));
}

#[test]
fn wrapped_hook_without_arguments_or_timeout_has_none_to_pass() {
    for args in [&[][..], &["/bin/x"]] {
        let wrapped = recorder().wrap(&hook("/bin/x", args, None), "x.json", "prestart").unwrap();
        assert_eq!(wrapped.args[4..], ["--stage=prestart", "--", "/bin/x"]);
        assert_eq!(wrapped.timeout, None);
    }
}

#[test]
fn runtime_has_to_wait_for_the_recorder_longer_than_for_the_hook() {
    for (timeout, expected) in [
        (1, Some(11)),
        (0, Some(10)),
        (-5, Some(10)),
        (i64::MAX, Some(10)),
        (9_223_372_026, Some(9_223_372_036)),
        (9_223_372_027, None),
    ] {
        let wrapped = recorder().wrap(&hook("/bin/x", &[], Some(timeout)), "x.json", "poststart");
        assert_eq!(wrapped.unwrap().timeout, expected, "{timeout}");
    }
}

#[test]
fn hooks_that_run_inside_the_container_are_not_wrapped() {
    assert_eq!(recorder().wrap(&hook("/bin/x", &[], None), "x.json", "startContainer"), None);
}

#[test]
fn recorder_needs_absolute_paths_that_json_can_hold() {
    use std::os::unix::ffi::OsStrExt as _;
    let good = Path::new("/good");
    for (program, directory) in [(Path::new("oci-hooks"), good), (good, Path::new("records"))] {
        let error = Recorder::new(program, directory).unwrap_err();
        assert!(matches!(error, RecorderError::Relative { .. }), "{error}");
    }
    let error = Recorder::new(good, Path::new(OsStr::from_bytes(b"/\xff"))).unwrap_err();
    assert!(matches!(error, RecorderError::NotUtf8 { .. }), "{error}");
}
