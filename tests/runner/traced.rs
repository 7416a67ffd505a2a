//! Which files root opens by name: none that a job can replace. `strace` sees that.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::setup::{runner, with_each_runtime};
use crate::support::github_runner::{Runner, merge};
use crate::support::installation::Installation;
use crate::support::program;

/// System calls that look for something by its name.
const CALLS: &str =
    "trace=%file,%process,openat2,mount,umount2,move_mount,open_tree,linkat,mknodat";

/// What a call of the program traced so named, for `strace` to say it.
struct Traced {
    directory: PathBuf,
    first: String,
}

/// Runs the hook as root, and returns what it and its processes did.
fn trace(
    installation: &Installation<'_>,
    runner: &mut Runner<'_>,
    (command, args): (&str, Value),
) -> Traced {
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
    // It stays as long as any process that it saw start, as the container's: the program is waited for.
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
    Traced { directory, first }
}

/// Returns the number of each process and what it did.
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

impl Traced {
    /// Returns what our own processes did, without runtimes and what those start.
    fn own(&self, runtime: &Path) -> Vec<String> {
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

/// Returns the absolute paths among the arguments of system calls that found something there.
fn paths(calls: &[String]) -> BTreeSet<PathBuf> {
    let found = calls.iter().filter(|line| !line.contains("= -1 "));
    let arguments = found.flat_map(|line| line.split('"').skip(1).step_by(2));
    arguments.filter(|argument| argument.starts_with('/')).map(PathBuf::from).collect()
}

#[test]
fn root_opens_nothing_by_a_name_that_a_job_can_change() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        // The images are there, and so is the program for the first process.
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
            let calls = traced.own(&runtime);
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
