//! `submit` and `doctor`, which connect to a running server.

use std::fs;
use std::io::Read as _;
use std::process::{Command, Stdio};

use oci_hooks_files::fs::random_u64;
use oci_hooks_testsupport::program::{DEADLINE, run, wait, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::service::setup::{PROGRAM, ServerFixture};

const STEP: &str = "\
spec:
  inputs:
    count: {type: number}
    name: {type: string, default: nobody}
---
run:
  - name: say
    script: |
      echo \"${{ inputs.name }} ${{ inputs.count + 1 }} ${{ vars.PROJECT }} $LEVEL\"
      echo problem >&2
      exit ${{ str(inputs.count) }}
";

/// Creates a directory with a step in the server's working directory.
fn step(server: &ServerFixture, text: &str) {
    let dir = server.work_dir().join("lib/build");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("step.yml"), text).unwrap();
}

fn submit(server: &ServerFixture, arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("submit").arg("--socket").arg(server.socket()).args(arguments);
    command.current_dir(server.work_dir());
    command
}

#[test]
fn submitted_step_returns_its_log_and_exit_code() {
    let server = ServerFixture::start();
    step(&server, STEP);
    let options = ["--input", "count=4", "--var", "PROJECT=p", "--env", "LEVEL=high"];
    for path in ["lib/build", "./lib/build", "lib/build/step.yml"] {
        let done = run(submit(&server, &[path]).args(options));
        let expected = "Running step name=say\nnobody 5 p high\n";
        assert_eq!((done.status.code(), &*done.stdout), (Some(4), expected), "{}", done.stderr);
        assert!(done.stderr.starts_with("problem\nerror: step \""), "{}", done.stderr);
        assert!(done.stderr.ends_with("exec: exit status 4\n"), "{}", done.stderr);
    }
    let options = ["--input", "count=0", "--input", "name=me", "--var", "PROJECT=q"];
    let more = ["--format", "json", "--id", "42"];
    let done = run(submit(&server, &["lib/build"]).args(options).args(more));
    assert_eq!(done.status.code(), Some(0), "{}", done.stderr);
    let json: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!((json["id"].as_str(), json["status"].as_str()), (Some("42"), Some("success")));
    assert_eq!(json["exit_code"], 0);
    assert!(done.stderr.contains("me 1 q \nproblem\n"), "{}", done.stderr);

    let error = run(submit(&server, &["lib/build"]).args(["--input", "count=x"])).failure();
    let expected = "error: invalid --input count: expected a value of type number\n";
    assert_eq!(error, expected);
}

#[test]
fn submit_accepts_the_steps_of_run() {
    let server = ServerFixture::start();
    step(&server, STEP);
    for (arguments, expected) in [
        (&["{script: 'echo $A', env: {A: x}}"][..], "Running step name=script\nx\n"),
        (
            &["step: ./lib/build", "--inputs", "count=0,name=me", "--job", "PROJECT=p"],
            "Running step name=say\nme 1 p \n",
        ),
        (
            &["{name: own, step: ./build, inputs: {count: 0}}", "--var", "PROJECT=p", "-C", "lib"],
            "Running step name=say\nnobody 1 p \n",
        ),
    ] {
        let done = run(&mut submit(&server, arguments));
        assert_eq!((done.status.code(), &*done.stdout), (Some(0), expected), "{}", done.stderr);
    }
    let two = ["lib/build", "--git-url", "https://host/g/p", "--git-rev", "v1"];
    for wrong in [&[][..], &two] {
        assert_eq!(run(&mut submit(&server, wrong)).status.code(), Some(2));
    }
}

/// Submits a job, interrupts it after each of these words, and returns the rest of its output.
fn interrupt_after(server: &ServerFixture, words: &[&str], cleanup: &str) -> String {
    let text = format!(
        "spec: {{}}\n---\nrun:\n  - {{name: a, script: echo up; sleep 1000}}\n  \
         - {{name: b, if: cancelled(), script: '{cleanup}'}}\n"
    );
    step(server, &text);
    let mut command = submit(server, &["lib/build"]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = child.spawn().unwrap();
    let pid = Pid::from_child(&child);
    let mut out = child.stdout.take().unwrap();
    for word in words {
        // The newline is printed together with the next line.
        let mut said = Vec::new();
        while !said.ends_with(word.as_bytes()) {
            let mut byte = [0];
            out.read_exact(&mut byte).unwrap();
            said.extend(byte);
        }
        kill_process(pid, Signal::INT).unwrap();
        // timeout(1) sends SIGTERM twice.
        kill_process(pid, Signal::TERM).unwrap();
    }
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(wait(child, DEADLINE).unwrap().code(), Some(130));
    rest
}

#[test]
fn first_ctrl_c_cancels_the_job() {
    let server = ServerFixture::with(&["--grace", "1h", "--cleanup", "1h"], &[]);
    let rest = interrupt_after(&server, &["up"], "echo cleaned");
    assert!(rest.contains("cleaned\n"), "{rest}");
}

#[test]
fn second_ctrl_c_closes_the_job_without_waiting_for_its_end() {
    let server = ServerFixture::with(&["--grace", "1h", "--cleanup", "1h"], &[]);
    let cleanup = "echo cleaning; while [ ! -e gate ]; do sleep 0.05; done";
    interrupt_after(&server, &["up", "cleaning"], cleanup);
    fs::write(server.work_dir().join("gate"), "").unwrap();
    let has_log = || server.files().iter().any(|file| file.ends_with("log"));
    wait_until("the job is removed", || !has_log());
}

#[test]
fn submit_without_a_server_names_the_socket() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(PROGRAM);
    command.args(["submit", "builtin://script", "--wait", "0s", "--socket"]);
    let socket = dir.path().join("none.sock");
    let error = run(command.arg(&socket)).failure();
    let expected = format!(
        "error: socket {}: cannot reach the server: No such file or directory (os error 2)",
        socket.display()
    );
    assert_eq!(error.trim_end(), expected);
}

#[test]
fn doctor_finds_the_server_or_suggests_a_fix() {
    let mut server = ServerFixture::start();
    let doctor = |server: &ServerFixture, certificates: &str| {
        let mut command = Command::new(PROGRAM);
        if !certificates.is_empty() {
            command.env("SSL_CERT_FILE", certificates);
        }
        command.args(["doctor", "--format", "json", "--socket"]).arg(server.socket());
        let done = run(command.env("TMPDIR", server.tmp()));
        let json: Value = serde_json::from_str(&done.stdout).expect(&done.stderr);
        assert_eq!(done.status.success(), json["ok"] == true);
        json
    };
    let check = |json: &Value, name: &str| {
        let checks = json["checks"].as_array().unwrap();
        checks.iter().find(|check| check["name"] == name).unwrap().clone()
    };
    let found = check(&doctor(&server, "/none.pem"), "certificates");
    assert_eq!(found["status"], "warn", "{found}");
    let doctor = |server: &ServerFixture| doctor(server, "");
    let json = doctor(&server);
    let found = check(&json, "server");
    assert_eq!(found["status"], "ok", "{found}");
    assert!(found["found"].as_str().unwrap().ends_with("responding, 0 jobs"), "{found}");
    assert_eq!(check(&json, "shell")["status"], "ok");
    let files = check(&json, "files")["found"].as_str().unwrap().to_owned();
    assert!(files.starts_with(server.tmp().to_str().unwrap()), "{files}");
    for name in ["program", "user", "home", "git", "certificates", "cgroup", "time-outs"] {
        assert_ne!(check(&json, name)["status"], "fail");
    }
    // Also on hosts where cgroup v2 is mounted beside v1.
    let cgroup = check(&json, "cgroup")["found"].as_str().unwrap().to_owned();
    let usable = oci_hooks_host::cgroup::ChildCgroup::make(&format!("test-{:016x}", random_u64()));
    match usable.as_ref().and_then(|cgroup| cgroup.path().parent()) {
        Some(own) => assert_eq!(cgroup, format!("{}, writable", own.display())),
        None => assert!(cgroup.starts_with("not writable"), "{cgroup}"),
    }

    // A killed server leaves its socket.
    server.signal(Signal::KILL);
    server.wait_for_exit();
    let json = doctor(&server);
    assert_eq!((&json["ok"], &check(&json, "server")["status"]), (&false.into(), &"fail".into()));
    fs::remove_file(server.socket()).unwrap();
    let json = doctor(&server);
    assert_eq!((&json["ok"], &check(&json, "server")["status"]), (&true.into(), &"warn".into()));
}
