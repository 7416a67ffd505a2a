//! Files that root opens by path, as seen by `strace`: none that a job can replace.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use oci_hooks_testsupport::github_runner::{GithubRunner, merge};
use oci_hooks_testsupport::installation::HookInstallation;
use oci_hooks_testsupport::program;
use serde_json::{Value, json};

use crate::runner::setup::{runner, with_both_runtimes};

/// System calls that resolve a path.
const CALLS: &str =
    "trace=%file,%process,openat2,mount,umount2,move_mount,open_tree,linkat,mknodat";

/// The strace output of one call of the program.
struct StraceOutput {
    directory: PathBuf,
    first: String,
}

/// Runs the hook as root under strace.
fn trace(
    installation: &HookInstallation<'_>,
    runner: &mut GithubRunner<'_>,
    (command, args): (&str, Value),
) -> StraceOutput {
    let directory = installation.host().path().join(format!("trace-{command}"));
    fs::create_dir(&directory).unwrap();
    let answer = runner.home().join("_work/_temp/answer.json");
    fs::write(&answer, "").unwrap();
    let request = json!({
        "command": command, "responseFile": answer, "args": args, "state": runner.state,
    });
    let request_file = directory.join("request.json");
    fs::write(&request_file, request.to_string()).unwrap();

    let mut strace = Command::new(program::find("strace"));
    strace.args(["-ff", "-s", "4096", "-e", CALLS, "-o"]).arg(directory.join("of"));
    strace.arg(installation.program()).env_clear().current_dir("/");
    let runners = runner.command();
    for (name, value) in runners.get_envs() {
        strace.env(name, value.unwrap_or_default());
    }
    strace.stdin(fs::File::open(&request_file).unwrap());
    let log = fs::File::create(directory.join("log")).unwrap();
    strace.stdout(Stdio::from(log.try_clone().unwrap())).stderr(Stdio::from(log));
    let mut strace = installation.host().spawn(&mut strace);
    // strace runs as long as any process, such as the container's, so only the program's end is awaited.
    let mut first = None;
    program::wait_until("the end of the program", || {
        first = files(&directory).into_iter().find(|(_, text)| {
            let is_program = text
                .lines()
                .next()
                .is_some_and(|line| line.contains(&*installation.program().to_string_lossy()));
            is_program && text.contains("+++ exited with")
        });
        first.is_some()
    });
    let (first, text) = first.unwrap();
    let log = fs::read_to_string(directory.join("log")).unwrap();
    assert!(text.contains("+++ exited with 0 +++"), "{command}: {log}");
    let _ = strace.kill();
    let _ = strace.wait();
    if let Ok(Value::Object(answer)) = serde_json::from_slice(&fs::read(&answer).unwrap())
        && answer.get("state").is_some_and(Value::is_object)
    {
        runner.state = answer["state"].clone();
    }
    StraceOutput { directory, first }
}

/// Returns the id and the strace output of each process.
fn files(directory: &Path) -> Vec<(String, String)> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    let names = names.map(|name| name.into_string().unwrap());
    let numbers = names.filter_map(|name| Some(name.strip_prefix("of.")?.to_owned()));
    let read = |number: String| {
        let bytes = fs::read(directory.join(format!("of.{number}"))).unwrap_or_default();
        (number, String::from_utf8_lossy(&bytes).into_owned())
    };
    numbers.map(read).collect()
}

impl StraceOutput {
    /// Returns the system calls of our own processes, without runtimes and their children.
    fn own_calls(&self, runtime: &Path) -> Vec<String> {
        let all = files(&self.directory);
        let runtime = format!("execve(\"{}\"", runtime.display());
        let mut own = Vec::new();
        let mut left = vec![self.first.clone()];
        while let Some(number) = left.pop() {
            let Some((_, text)) = all.iter().find(|(other, _)| *other == number) else { continue };
            for line in text.lines() {
                if line.contains(&runtime) {
                    break;
                }
                own.push(line.to_owned());
                let starts = ["clone(", "clone3(", "fork(", "vfork("];
                let child = line.rsplit_once("= ").map(|(_, result)| result.trim());
                if starts.iter().any(|call| line.starts_with(call))
                    && let Some(child) = child.filter(|child| child.parse::<u32>().is_ok())
                {
                    left.push(child.to_owned());
                }
            }
        }
        own
    }
}

/// Returns the absolute paths in the arguments of successful system calls.
fn paths(calls: &[String]) -> BTreeSet<PathBuf> {
    let found = calls.iter().filter(|line| !line.contains("= -1 "));
    let arguments = found.flat_map(|line| line.split('"').skip(1).step_by(2));
    arguments.filter(|argument| argument.starts_with('/')).map(PathBuf::from).collect()
}

#[test]
fn root_opens_no_path_that_a_job_can_change() {
    with_both_runtimes("", |installation| {
        let mut runner = runner(installation, "runner-1");
        // A first job provides the images and the init program.
        runner.prepare(runner.job_container("node:22"), &[]);
        let alpine = merge(runner.job_container("alpine:3.20"), json!({"entryPoint": "true"}));
        runner.call("run_container_step", alpine.clone()).success();
        runner.cleanup();

        let (runtime, work) = (installation.runtime(), runner.work());
        let job = json!({"container": runner.job_container("node:22"), "services": []});
        for (command, args) in
            [("prepare_job", job), ("run_container_step", alpine), ("cleanup_job", json!({}))]
        {
            let traced = trace(installation, &mut runner, (command, args));
            let calls = traced.own_calls(&runtime);
            assert!(
                calls.iter().any(|line| line.starts_with("openat2(")
                    && line.contains("\"_temp\", {flags=")
                    && line.contains("RESOLVE_NO_SYMLINKS")),
                "{command}: the runner's directory is not seen to be opened"
            );
            let of_jobs: Vec<_> = paths(&calls)
                .into_iter()
                .filter(|path| path.starts_with(&work) && *path != work)
                .collect();
            assert_eq!(of_jobs, <[PathBuf; 0]>::default(), "{command}: opened by name as root");
        }
    });
}
