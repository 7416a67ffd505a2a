//! The instance executor: one shell command over SSH serves, another one connects.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use oci_hooks_testsupport::program;
use step_runner::client::{ServerAddress, StepClient};
use step_runner::wire::proto::step_result::Status;

use crate::gitlab_runner::client::{block_on, run, script};

const PROGRAM: &str = env!("CARGO_BIN_EXE_step-runner");

/// Returns the shell command that serves until its standard input ends, in a temporary directory.
fn serve_line(runner: &str) -> String {
    let remove = r#"'kill ${srv:-} 2>/dev/null; rm -rf "$dir"' EXIT INT TERM HUP"#;
    format!(
        "dir=$(mktemp -d /tmp/step-runner.XXXXXXXX) || exit 1; trap {remove}; \
         '{runner}' steps serve --socket \"$dir/step-runner.sock\" 2>&1 & srv=$!; \
         cat >/dev/null; kill $srv 2>/dev/null; wait $srv 2>/dev/null"
    )
}

#[test]
fn job_runs_on_an_instance_and_leaves_nothing() {
    let dir = program::temporary_directory();
    // Installed under the name that the runner calls, as the administrator does.
    let runner = dir.path().join("gitlab-runner");
    symlink(PROGRAM, &runner).unwrap();
    let runner = runner.to_str().unwrap();

    let version = program::run(Command::new("sh").args(["-c", &format!("'{runner}' --version")]));
    let version = version.success();
    for line in ["Version:", "OS/Arch:"] {
        assert!(version.lines().any(|one| one.starts_with(line)), "{version}");
    }

    let mut serve = Command::new("sh");
    serve.args(["-c", &serve_line(runner)]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut serve = serve.env("TMPDIR", dir.path()).spawn().unwrap();
    let mut out = BufReader::new(serve.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    let socket = line.strip_prefix("step-runner is listening on socket ").expect(&line).trim_end();
    assert!(socket.starts_with("/tmp/step-runner."), "{socket}");
    assert!(socket.ends_with("/step-runner.sock"), "{socket}");

    block_on(async {
        let line = format!("'{runner}' steps proxy --socket '{socket}'");
        let client =
            StepClient::new(ServerAddress::Command(["sh", "-c", &line].map(Into::into).into()));
        let mut request = script("1", "pwd; exit 4");
        let work = dir.path().to_str().unwrap();
        request.work_dir = work.to_owned();
        request.job.as_mut().unwrap().build_dir = work.to_owned();
        let (status, code, log) = run(&client, request).await;
        assert_eq!((status, code), (Status::Failure, 4));
        assert_eq!(log, format!("Running step name=a\n{work}\n"));
    });

    drop(serve.stdin.take());
    program::wait(serve, program::DEADLINE).expect("the line ends with its input");
    let mut said = String::new();
    out.read_to_string(&mut said).unwrap();
    assert_eq!(said, "");
    assert!(!Path::new(socket).parent().unwrap().exists());
    let left: Vec<_> =
        fs::read_dir(dir.path().join("step-runner-0")).into_iter().flatten().flatten().collect();
    let left: Vec<_> = left.iter().map(|entry| entry.file_name()).collect();
    assert!(left.len() <= 1, "{left:?}");
}
