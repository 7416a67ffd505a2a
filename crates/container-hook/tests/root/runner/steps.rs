//! Steps started by the job container's own init, without a runtime.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::thread;

use oci_hooks_testsupport::call::EndedCall;
use oci_hooks_testsupport::github_runner::{GithubRunner, merge};
use oci_hooks_testsupport::host::TestHost;
use oci_hooks_testsupport::installation::HookInstallation;
use oci_hooks_testsupport::leftovers::LeftoverSnapshot;
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::TestRuntime;
use serde_json::{Value, json};

use crate::runner::setup::{runner, with_both_runtimes, with_each_runtime};

/// Removes the job container's socket, and returns the container's id.
fn remove_socket(installation: &HookInstallation<'_>, runner: &GithubRunner<'_>) -> String {
    let id = container(runner);
    fs::remove_file(installation.run_directory().join("steps").join(&id)).unwrap();
    id
}

/// Returns the id of the job container.
fn container(runner: &GithubRunner<'_>) -> String {
    runner.state["container"].as_str().expect("the job has a container").to_owned()
}

/// Kills the job container's init, by its process id on the test host.
fn kill_first_process(installation: &HookInstallation<'_>, runner: &GithubRunner<'_>) {
    let directory = installation.run_directory().join("containers").join(container(runner));
    let pid: u32 = fs::read_to_string(directory.join("pid")).unwrap().trim().parse().unwrap();
    installation.host().shell(&format!("kill -9 {pid}"));
}

#[test]
fn step_needs_neither_a_runtime_nor_settings() {
    with_both_runtimes("", |installation| {
        let mut runner = runner(installation, "runner-0");
        let before = LeftoverSnapshot::take(installation);
        runner.prepare(runner.job_container("node:22"), &[]);
        let sockets = installation.run_directory().join("steps");
        assert_eq!(fs::read_dir(&sockets).unwrap().count(), 1);
        let containers = installation.run_directory().join("containers");
        let aside = installation.run_directory().join("aside");
        // A running step needs none of these records.
        fs::rename(&containers, &aside).unwrap();
        let ended = runner.run("echo out; echo err >&2; id -u; pwd; cat; exit 7").code(7);
        fs::rename(&aside, &containers).unwrap();
        let expected = ("out\n0\n/__w/repo/repo\n", "err\n");
        assert_eq!((ended.stdout().as_str(), ended.stderr().as_str()), expected);
        runner.run("kill -9 $$").code(137);
        runner.cleanup();
        assert_eq!(fs::read_dir(&sockets).unwrap().count(), 0);
        before.check_live(installation, "a job");
    });
}

/// Start of a script that marks all its processes with an environment variable, from their start.
pub(crate) const MARKED: &str = "[ \"$MARK\" ] || MARK=step exec sh -e \"$0\"";

/// Lists the ids of marked processes.
pub(crate) const LIST: &str = "set +e; for p in /proc/[0-9]*; do \
    tr '\\0' '\\n' <$p/environ | grep -qx MARK=step && echo ${p#/proc/}; done 2>/dev/null; true";

/// Commands that leave a process in the background, which must not delay the step's end. It outlasts any deadline.
const LEFT: [&str; 5] = [
    "sleep 100000 &",
    "trap '' HUP; sleep 100000 &",
    "setsid sleep 100000 &",
    "(setsid sh -c 'sleep 100000 & exit' &)",
    "nc -ll -p 8080 -e true &",
];

#[test]
fn background_process_survives_its_step_without_delaying_it() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        runner.prepare(runner.job_container("node:22"), &[]);
        for left in LEFT {
            let ended = runner.run(&format!("{MARKED}\n{left}\necho started")).success();
            assert_eq!(ended.stdout(), "started\n", "{left}");
            let mut seen = String::new();
            program::wait_until("one process is left", || {
                seen = runner.run(LIST).success().stdout();
                seen.lines().count() == 1
            });
            runner.run(&format!("kill -9 {seen}")).success();
            program::wait_until("none is left", || runner.run(LIST).success().stdout().is_empty());
        }
        runner.cleanup();
    });
}

/// Checks that the test above detects a process that holds the pipes of its call.
#[test]
fn process_that_holds_the_pipes_of_a_call_is_detected() {
    let host = TestHost::new();
    let installation = HookInstallation::new(&host, TestRuntime::Runc, "");
    fs::write(installation.entry(), "setsid sleep 1000 & exit 0").unwrap();
    let runner = runner(&installation, "runner-1");
    let call = || drop(runner.start_run("").wait().success());
    assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
}

/// Returns whether a process, a directory in /proc, follows the log of a container and has opened it.
fn is_following(process: &Path, id: &str) -> bool {
    let line = fs::read(process.join("cmdline")).unwrap_or_default();
    let words: Vec<_> = line.split(|byte| *byte == 0).collect();
    let mut open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    words.contains(&&b"--follow"[..])
        && words.contains(&id.as_bytes())
        && open.any(|entry| fs::read_link(entry.path()).is_ok_and(|path| path.ends_with("log")))
}

#[test]
fn output_after_the_end_of_a_step_is_in_the_container_log() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        runner.prepare(runner.job_container("node:22"), &[]);
        let script = "mkfifo /tmp/go /tmp/end\n\
                      (echo early; touch /tmp/said; read line </tmp/go; echo late; echo also >&2; \
                      read line </tmp/end; echo last) &\n\
                      until test -e /tmp/said; do sleep 0.02; done";
        let ended = runner.run(script).success();
        assert_eq!(ended.log(), "early\n");
        let id = container(&runner);
        assert_eq!(installation.admin(&["ps", "--quiet"]).success(), format!("{id}\n"));
        let log = || installation.admin(&["logs", &id]).success();
        runner.run("echo >/tmp/go").success();
        program::wait_until("what was written late", || {
            log().contains("late") && log().contains("also")
        });
        let followed = thread::scope(|scope| {
            let logs = scope.spawn(|| installation.admin(&["logs", "--follow", &id]).success());
            program::wait_until("the log is followed", || {
                let found = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
                found.into_iter().any(|process| is_following(&process, &id))
            });
            runner.run("echo >/tmp/end").success();
            program::wait_until("the last line", || log().contains("last"));
            assert!(!log().contains("early"), "{}", log());
            runner.cleanup();
            logs.join().unwrap()
        });
        for line in ["late\n", "also\n", "last\n"] {
            assert!(followed.contains(line), "{followed}");
        }
    });
}

#[test]
fn large_output_is_complete_and_in_order() {
    output_is_complete(8 << 20);
}

#[test]
fn huge_output_is_complete_and_in_order() {
    output_is_complete(100 << 20);
}

fn output_is_complete(bytes: usize) {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        runner.prepare(runner.job_container("node:22"), &[]);
        let script = format!("head -c {bytes} /dev/zero | tr '\\0' x; echo; echo end");
        let ended = runner.run(&script).success();
        let lengths: Vec<_> = ended.lines.iter().map(|line| line.text.len()).collect();
        assert_eq!(lengths, [bytes, 3]);
        runner.cleanup();
    });
}

#[test]
fn missing_program_is_reported_with_existing_candidates() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        runner.prepare(runner.job_container("alpine:3.20"), &[]);
        let call = |runner: &mut GithubRunner<'_>, program: &str, change: Value| -> EndedCall {
            let args = merge(runner.script_args(program, &[], &[], "x"), change);
            runner.call("run_script_step", args)
        };
        for (program, change, code, expected) in [
            (
                "pwsh",
                json!({}),
                127,
                "cannot find \"pwsh\" in the job container: its PATH has sh, ash",
            ),
            ("/__e/none/node", json!({}), 127, "cannot find \"/__e/none/node\""),
            ("/etc/passwd", json!({}), 126, "cannot execute \"/etc/passwd\" in the job container"),
            (
                "true",
                json!({"workingDirectory": "/__w/none/deep"}),
                1,
                "the working directory \"/__w/none/deep\" in the job container: No such file or directory; \
                 the deepest existing parent directory is \"/__w\"",
            ),
        ] {
            let ended = call(&mut runner, program, change);
            let log = ended.log();
            assert!(log.starts_with("::error::") && log.contains(expected), "{log}");
            assert_eq!(log.lines().count(), 1, "{log}");
            ended.code(code);
        }
        runner.cleanup();
    });
}

#[test]
fn job_that_accepts_no_steps_gets_no_runtime_into_its_container() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-0");
        runner.prepare(runner.job_container("node:22"), &[]);
        remove_socket(installation, &runner);
        for has_state in [true, false] {
            if !has_state {
                runner.state.as_object_mut().unwrap().remove("steps");
            }
            let said = runner.run("echo never").failure();
            assert!(said.contains("starts no more steps"), "{said}");
            assert!(!said.contains("never"), "{said}");
        }
        runner.cleanup();
    });
}

#[test]
fn container_of_another_version_is_entered_by_the_runtime() {
    with_both_runtimes("", |installation| {
        let mut runner = runner(installation, "runner-0");
        runner.prepare(runner.job_container("node:22"), &[]);
        let id = remove_socket(installation, &runner);
        let path = installation.run_directory().join("containers").join(&id).join("record.json");
        let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        // A record with unknown versions of the protocol, and a record without step support.
        for steps in [json!({"versions": [7, 9]}), Value::Null] {
            record["steps"] = steps;
            fs::write(&path, record.to_string()).unwrap();
            let ended = runner.run("echo fine; exit 3").code(3);
            assert_eq!(ended.stdout(), "fine\n");
        }
        runner.state.as_object_mut().unwrap().remove("steps");
        runner.run("echo fine").success();
        runner.cleanup();
    });
}

#[test]
fn ended_container_is_reported_with_its_end() {
    with_both_runtimes("", |installation| {
        let mut runner = runner(installation, "runner-0");
        runner.prepare(runner.job_container("node:22"), &[]);
        let mut call = runner.start_run("echo started; sleep 1000");
        call.wait_for_line("started");
        kill_first_process(installation, &runner);
        let ended = call.wait();
        let log = ended.log();
        assert!(log.contains("the container ended before its step did"), "{log}");
        ended.code(137);
        let said = runner.run("echo never").failure();
        assert!(said.contains("is not running: it ended with code 137"), "{said}");
        runner.cleanup();
    });
}

#[test]
fn container_of_another_runner_is_rejected() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        runner.prepare(runner.job_container("node:22"), &[]);
        let mut other = crate::runner::setup::runner(installation, "runner-2");
        other.state = runner.state.clone();
        let said = other.run("echo never").failure();
        assert!(said.contains("does not belong to this runner"), "{said}");
        other.state["container"] = json!("../containers");
        let said = other.run("echo never").failure();
        assert!(!said.contains("never"), "{said}");
        runner.cleanup();
    });
}

/// Background steps of a workflow.
#[test]
fn concurrent_steps_all_run() {
    run_concurrent_steps(12);
}

#[test]
fn many_concurrent_steps_all_run() {
    run_concurrent_steps(120);
}

fn run_concurrent_steps(count: usize) {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        runner.prepare(runner.job_container("alpine:3.20"), &[]);
        let calls: Vec<_> =
            (0..count).map(|number| runner.start_run(&format!("echo {number}"))).collect();
        for (number, call) in calls.into_iter().enumerate() {
            assert_eq!(call.wait().success().stdout(), format!("{number}\n"));
        }
        runner.cleanup();
    });
}
