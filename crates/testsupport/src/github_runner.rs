//! GitHub's runner as container hooks see it: its directories, its environment, its calls.

mod values;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Map, Value, json};

use super::call::{EndedCall, RunningCall};
use super::host::TestHost;
use super::installation::HookInstallation;
use super::program;
pub use values::*;

const REPOSITORY: &str = "octo/repo";

/// An installed hook.
pub trait InstalledHook {
    /// Returns the parent directory of the runners.
    fn runners(&self) -> &Path;
    /// Returns the script that the runner calls.
    fn entry(&self) -> PathBuf;
    /// Returns the environment variables that an administrator gives to a runner.
    fn variables(&self, runner: &str) -> Vec<(String, String)>;
    /// Starts a call of the hook.
    fn start(&self, command: Command, request: Vec<u8>, response: Option<PathBuf>) -> RunningCall;
}

impl InstalledHook for HookInstallation<'_> {
    fn runners(&self) -> &Path {
        self.host().path()
    }

    fn entry(&self) -> PathBuf {
        HookInstallation::entry(self)
    }

    fn variables(&self, _runner: &str) -> Vec<(String, String)> {
        vec![self.variable()]
    }

    fn start(&self, command: Command, request: Vec<u8>, response: Option<PathBuf>) -> RunningCall {
        RunningCall::start(self.host(), command, request, response)
    }
}

/// A runner with its worker for one job.
pub struct GithubRunner<'a, H: InstalledHook = HookInstallation<'a>> {
    hook: &'a H,
    pub name: String,
    home: PathBuf,
    pub externals: PathBuf,
    /// State from the hook's last response.
    pub state: Value,
    is_alpine: bool,
    has_container: bool,
    /// Directories that steps added with `GITHUB_PATH`, last added first.
    path: Vec<String>,
    /// Variables that steps set with `GITHUB_ENV`.
    pub env: BTreeMap<String, String>,
    /// A program with the name of the runner's worker, which runs the hook.
    worker: Option<PathBuf>,
    /// User id and group id of the runner, or none for root.
    user: Option<(u32, u32)>,
    /// Limit of open files of the hook, if lower than usual.
    pub descriptors: Option<u32>,
    /// Mode of the files that the runner creates, if set.
    pub file_mode: Option<u32>,
    /// Further environment variables that the administrator gives to the runner.
    pub variables: Vec<(String, String)>,
}

impl<'a> GithubRunner<'a> {
    pub fn host(&self) -> &'a TestHost {
        self.hook.host()
    }
}

impl<'a, H: InstalledHook> GithubRunner<'a, H> {
    pub fn new(hook: &'a H, name: &str) -> Self {
        let home = hook.runners().join(name);
        let runner = Self {
            hook,
            name: name.to_owned(),
            externals: home.join("externals"),
            home,
            state: Value::Null,
            is_alpine: false,
            has_container: false,
            path: Vec::new(),
            env: BTreeMap::new(),
            worker: None,
            user: None,
            descriptors: None,
            file_mode: None,
            variables: Vec::new(),
        };
        // Runners create `_actions` and `_tool` on first use.
        for directory in [
            "externals",
            "_work/_temp/_github_home",
            "_work/_temp/_github_workflow",
            "_work/_temp/_runner_file_commands",
            "_work/_temp/_runner_hook_responses",
            "_work/repo/repo",
        ] {
            fs::create_dir_all(runner.home.join(directory)).expect("each runner has its own name");
        }
        fs::write(runner.temp().join("_github_workflow/event.json"), "{\"ref\":\"main\"}\n")
            .expect("the directory is there");
        runner
    }

    /// Runs the hook as a child of a process with the name of the runner's worker. Signals then go to that process.
    pub fn run_through_worker(&mut self) {
        let worker = self.home.join("Runner.Worker");
        program::write_program(&worker, "#!/bin/sh\nbash \"$@\"\nexit $?\n");
        self.worker = Some(worker);
    }

    /// Runs the runner as an ordinary user.
    pub fn run_as(&mut self, user: (u32, u32)) {
        self.user = Some(user);
        let owner = format!("{}:{}", user.0, user.1);
        let mut chown = Command::new("chown");
        program::run(chown.arg("--recursive").arg(owner).arg(&self.home)).success();
    }

    /// Returns the user id and group id of the runner, or nothing for root.
    pub fn user(&self) -> Option<(u32, u32)> {
        self.user
    }

    /// Returns the home directory of the runner.
    pub fn home(&self) -> &Path {
        &self.home
    }

    pub fn work(&self) -> PathBuf {
        self.home.join("_work")
    }

    pub fn temp(&self) -> PathBuf {
        self.home.join("_work/_temp")
    }

    pub fn workspace(&self) -> PathBuf {
        self.home.join("_work/repo/repo")
    }

    // Calls.

    /// Starts a call with a response file, as the runner does.
    pub fn start(&self, command: &str, args: Value) -> RunningCall {
        let response = self.temp().join(format!("_runner_hook_responses/{}.json", guid()));
        self.write_empty(&response);
        let request = json!({
            "command": command, "responseFile": response, "args": args, "state": self.state,
        });
        self.start_raw(format!("{request}\n").into_bytes(), Some(response))
    }

    /// Starts a call with an arbitrary request.
    pub fn start_raw(&self, request: Vec<u8>, response: Option<PathBuf>) -> RunningCall {
        self.hook.start(self.command(), request, response)
    }

    /// Returns the command of a call, which reads the request from standard input.
    pub fn command(&self) -> Command {
        let mut command = match &self.worker {
            Some(worker) => Command::new(worker),
            // By path: to search `PATH`, the test process would be forked for each call, which is slow.
            None => Command::new(program::find("bash")),
        };
        if let Some(count) = self.descriptors {
            command = program::limited(command.get_program(), count);
        }
        command.arg("-e").arg(self.hook.entry()).current_dir(self.workspace()).env_clear();
        command.envs(self.worker_environment());
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        command
    }

    /// Makes a call and keeps the state of its response.
    pub fn call(&mut self, command: &str, args: Value) -> EndedCall {
        let ended = self.start(command, args).wait();
        self.keep_state(&ended);
        ended
    }

    pub fn keep_state(&mut self, ended: &EndedCall) {
        if let Some(state) = ended.response.as_ref().map(|r| &r["state"]).filter(|s| !s.is_null()) {
            assert!(state.is_object(), "{state}");
            self.state = state.clone();
        }
    }

    /// Starts a job's containers. Panics where the runner would fail on the response.
    #[track_caller]
    pub fn prepare(&mut self, container: Value, services: &[Value]) -> Value {
        self.has_container = !container.is_null();
        let args = json!({"container": container, "services": services});
        let ended = self.call("prepare_job", args).success();
        let response = ended.response.expect("the runner needs a response");
        let context = &response["context"];
        if self.has_container {
            self.is_alpine = response["isAlpine"].as_bool().expect("the runner needs isAlpine");
            for field in ["id", "network"] {
                assert!(context["container"][field].is_string(), "{response}");
            }
        } else {
            assert!(context["container"].is_null(), "this breaks the runner: {response}");
        }
        if !services.is_empty() {
            let answered = context["services"].as_array().expect("services are a list");
            assert_eq!(answered.len(), services.len(), "{response}");
            for service in answered {
                assert!(service["id"].is_string() && service["network"].is_string(), "{response}");
                assert!(service["ports"].is_object(), "{response}");
            }
        }
        response
    }

    /// Runs `run:` with a container's default shell.
    #[track_caller]
    pub fn run(&mut self, script: &str) -> EndedCall {
        self.run_step(script, &[]).0
    }

    /// Runs `run:` with `env:`, and returns the step's outputs too.
    #[track_caller]
    pub fn run_step(
        &mut self,
        script: &str,
        env: &[(&str, &str)],
    ) -> (EndedCall, BTreeMap<String, String>) {
        let files = self.file_commands();
        let ended = self.start_step(script, env, &files).wait();
        self.keep_state(&ended);
        (ended, self.read_file_commands(&files))
    }

    /// Starts `run:` without waiting for its end.
    pub fn start_run(&self, script: &str) -> RunningCall {
        self.start_step(script, &[], &self.file_commands())
    }

    fn start_step(&self, script: &str, env: &[(&str, &str)], files: &str) -> RunningCall {
        let name = format!("{}.sh", guid());
        self.write(&self.temp().join(&name), script);
        let words = vec!["-e".to_owned(), format!("/__w/_temp/{name}")];
        self.start("run_script_step", self.script_args("sh", &words, env, files))
    }

    /// Runs a JavaScript action with the node for the container's libc.
    #[track_caller]
    pub fn javascript(&mut self, source: &str, env: &[(&str, &str)]) -> EndedCall {
        let action = self.work().join("_actions/octo/js-action/v1/dist");
        fs::create_dir_all(&action).expect("the runner may write there");
        self.write(&action.join("index.js"), source);
        if let Some(user) = self.user {
            for made in action.ancestors().take_while(|above| *above != self.work()) {
                chown(made, Some(user.0), Some(user.1)).expect("root may do this");
            }
        }
        let node = if self.is_alpine { "node20_alpine" } else { "node20" };
        let words = ["/__w/_actions/octo/js-action/v1/dist/index.js".to_owned()];
        let node = format!("/__e/{node}/bin/node");
        let args = self.script_args(&node, &words, env, &self.file_commands());
        self.call("run_script_step", args)
    }

    /// Runs a container action. Fields not given are as the runner sends them.
    #[track_caller]
    pub fn container_step(&mut self, step: Value) -> (EndedCall, BTreeMap<String, String>) {
        let files = self.file_commands();
        let args = self.container_args(step, &files);
        let ended = self.call("run_container_step", args);
        (ended, self.read_file_commands(&files))
    }

    pub fn start_container_step(&self, step: Value) -> RunningCall {
        self.start("run_container_step", self.container_args(step, &self.file_commands()))
    }

    /// Ends the job, as the runner does in every case.
    #[track_caller]
    pub fn cleanup(&mut self) -> EndedCall {
        let ended = self.call("cleanup_job", json!({}));
        self.state = Value::Null;
        ended.success()
    }

    // Arguments.

    /// Returns a job container as the runner sends it.
    pub fn job_container(&self, image: &str) -> Value {
        let work = self.work();
        merge(
            container(image),
            json!({
                "workingDirectory": "/__w/repo/repo",
                "environmentVariables": {"HOME": "/github/home"},
                "systemMountVolumes": [
                    mount("/var/run/docker.sock", "/var/run/docker.sock", false),
                    mount(&work, "/__w", false),
                    mount(&self.externals, "/__e", true),
                    mount(work.join("_temp"), "/__w/_temp", false),
                    mount(work.join("_actions"), "/__w/_actions", false),
                    mount(work.join("_tool"), "/__w/_tool", false),
                    mount(work.join("_temp/_github_home"), "/github/home", false),
                    mount(work.join("_temp/_github_workflow"), "/github/workflow", false),
                ],
            }),
        )
    }

    fn container_args(&self, step: Value, files: &str) -> Value {
        let work = self.work();
        let mut env = self.step_environment(files, "/github/file_commands", "/github/workspace");
        env.insert("HOME".to_owned(), json!("/github/home"));
        for (name, value) in step["environmentVariables"].as_object().into_iter().flatten() {
            env.insert(name.clone(), value.clone());
        }
        let args = merge(
            container(""),
            json!({
                "workingDirectory": "/github/workspace",
                "systemMountVolumes": [
                    mount("/var/run/docker.sock", "/var/run/docker.sock", false),
                    mount(work.join("_temp"), "/github/runner_temp", false),
                    mount(work.join("_temp/_github_home"), "/github/home", false),
                    mount(work.join("_temp/_github_workflow"), "/github/workflow", false),
                    mount(work.join("_temp/_runner_file_commands"), "/github/file_commands", false),
                    mount(self.workspace(), "/github/workspace", false),
                ],
            }),
        );
        merge(merge(args, step), json!({"environmentVariables": env}))
    }

    /// Returns the arguments of a script step.
    pub fn script_args(
        &self,
        program: &str,
        words: &[String],
        env: &[(&str, &str)],
        files: &str,
    ) -> Value {
        let place = "/__w/_temp/_runner_file_commands";
        let mut all = self.step_environment(files, place, "/__w/repo/repo");
        all.extend(env.iter().map(|&(name, value)| (name.to_owned(), json!(value))));
        json!({
            "entryPointArgs": words, "entryPoint": program, "environmentVariables": all,
            "prependPath": self.path, "workingDirectory": "/__w/repo/repo",
        })
    }

    fn step_environment(&self, files: &str, place: &str, workspace: &str) -> Map<String, Value> {
        let mut env = Map::new();
        for (name, value) in &self.env {
            env.insert(name.clone(), json!(value));
        }
        for (name, value) in github_environment() {
            env.insert(name.to_owned(), json!(value));
        }
        for (name, file) in FILES {
            env.insert(name.to_owned(), json!(format!("{place}/{file}_{files}")));
        }
        for (name, value) in [
            ("GITHUB_WORKSPACE", workspace),
            ("GITHUB_EVENT_PATH", "/github/workflow/event.json"),
            ("RUNNER_OS", "Linux"),
            ("RUNNER_NAME", &self.name),
            ("RUNNER_WORKSPACE", "/__w/repo"),
        ] {
            env.insert(name.to_owned(), json!(value));
        }
        env
    }

    fn worker_environment(&self) -> Vec<(String, String)> {
        let workspace = self.workspace();
        let temp = self.temp();
        let parent = self.work().join("repo");
        let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        let mut env: Vec<(String, String)> = vec![
            ("PATH".to_owned(), [self.path.join(":").as_str(), path].join(":")),
            ("HOME".to_owned(), self.home.display().to_string()),
            ("LANG".to_owned(), "C.UTF-8".to_owned()),
            ("RUNNER_TRACKING_ID".to_owned(), format!("github_{}", self.name)),
            ("GITHUB_ACTIONS".to_owned(), "true".to_owned()),
            ("CI".to_owned(), "true".to_owned()),
            ("GITHUB_WORKSPACE".to_owned(), workspace.display().to_string()),
            ("RUNNER_NAME".to_owned(), self.name.clone()),
            ("RUNNER_TEMP".to_owned(), temp.display().to_string()),
            ("RUNNER_WORKSPACE".to_owned(), parent.display().to_string()),
            ("RUNNER_TOOL_CACHE".to_owned(), self.work().join("_tool").display().to_string()),
            ("RUNNER_OS".to_owned(), "Linux".to_owned()),
            ("RUNNER_ARCH".to_owned(), "X64".to_owned()),
            ("RUNNER_ENVIRONMENT".to_owned(), "self-hosted".to_owned()),
        ];
        let github = github_environment().into_iter();
        env.extend(github.map(|(name, value)| (name.to_owned(), value.to_owned())));
        env.extend(self.hook.variables(&self.name));
        env.extend(self.variables.iter().cloned());
        // `PATH` must not start with a colon.
        env[0].1 = env[0].1.trim_start_matches(':').to_owned();
        env
    }

    // File commands of steps.

    fn file_commands(&self) -> String {
        let id = guid();
        for (_, file) in FILES {
            let path = self.temp().join(format!("_runner_file_commands/{file}_{id}"));
            self.write_empty(&path);
        }
        id
    }

    fn write_empty(&self, path: &Path) {
        self.write(path, "");
    }

    fn write(&self, path: &Path, text: &str) {
        fs::write(path, text).expect("the directory is there");
        if let Some((uid, gid)) = self.user {
            chown(path, Some(uid), Some(gid)).expect("root may do this");
        }
        if let Some(mode) = self.file_mode {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("root may do this");
        }
    }

    fn read_file_commands(&mut self, id: &str) -> BTreeMap<String, String> {
        let directory = self.temp().join("_runner_file_commands");
        let read = |file: &str| {
            fs::read_to_string(directory.join(format!("{file}_{id}"))).expect("the step kept it")
        };
        self.env.extend(key_values(&read("set_env")));
        for line in read("add_path").lines() {
            self.path.insert(0, line.to_owned());
        }
        key_values(&read("set_output"))
    }
}

const FILES: [(&str, &str); 5] = [
    ("GITHUB_PATH", "add_path"),
    ("GITHUB_ENV", "set_env"),
    ("GITHUB_STEP_SUMMARY", "step_summary"),
    ("GITHUB_STATE", "save_state"),
    ("GITHUB_OUTPUT", "set_output"),
];

fn github_environment() -> [(&'static str, &'static str); 10] {
    [
        ("GITHUB_JOB", "build"),
        ("GITHUB_REF", "refs/heads/main"),
        ("GITHUB_SHA", "5d41402abc4b2a76b9719d911017c592ae3d1f2b"),
        ("GITHUB_REPOSITORY", REPOSITORY),
        ("GITHUB_REPOSITORY_OWNER", "octo"),
        ("GITHUB_RUN_ID", "9876543210"),
        ("GITHUB_RUN_NUMBER", "42"),
        ("GITHUB_ACTOR", "octocat"),
        ("GITHUB_WORKFLOW", "CI: büild & tést"),
        ("GITHUB_HEAD_REF", ""),
    ]
}

/// Reads `NAME=value` and `NAME<<END` as the runner does.
fn key_values(text: &str) -> BTreeMap<String, String> {
    let mut values = BTreeMap::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some((name, end)) = line.split_once("<<") {
            let value: Vec<_> = lines.by_ref().take_while(|&line| line != end).collect();
            values.insert(name.to_owned(), value.join("\n"));
        } else if let Some((name, value)) = line.split_once('=') {
            values.insert(name.to_owned(), value.to_owned());
        }
    }
    values
}
