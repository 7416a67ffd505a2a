//! Containers as gitlab-runner creates them: standard input stays open, and other processes execute programs in them.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::TestRuntime;
use serde_json::{Value, json};
use step_runner::client::{ServerAddress, StepClient};
use tempfile::TempDir;

/// Specification of a container.
pub(crate) struct ContainerSetup<'a> {
    pub(crate) runtime: TestRuntime,
    /// Fills the root file system, which is mounted read-only.
    pub(crate) fill: &'a dyn Fn(&Path),
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<String>,
    pub(crate) user: u32,
    /// Directories of the host, with their mount points.
    pub(crate) volumes: Vec<(PathBuf, &'static str)>,
    /// If set, a tmpfs is mounted at `/dev/shm`, as by Docker and Kubernetes.
    pub(crate) has_shared_memory: bool,
}

pub(crate) struct GitlabContainer {
    runtime: TestRuntime,
    id: String,
    dir: TempDir,
    child: Option<Child>,
    pub(crate) stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
    user: u32,
}

impl GitlabContainer {
    pub(crate) fn start(spec: &ContainerSetup) -> Self {
        program::require_root();
        let dir = program::temporary_directory();
        let root = dir.path().join("rootfs");
        fs::create_dir(&root).unwrap();
        (spec.fill)(&root);
        for (_, target) in &spec.volumes {
            fs::create_dir_all(root.join(target.trim_start_matches('/'))).unwrap();
        }
        program::run(Command::new(program::find("runc")).arg("spec").current_dir(dir.path()))
            .success();
        let path = dir.path().join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        edit(&mut config, spec);
        fs::write(&path, config.to_string()).unwrap();
        let id = program::unique_name();
        let mut command = runtime(spec.runtime, dir.path());
        command.arg("run").arg("--bundle").arg(dir.path()).arg(&id);
        let pipes = || Stdio::piped();
        command.stdin(pipes()).stdout(Stdio::piped()).stderr(pipes());
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (runtime, user) = (spec.runtime, spec.user);
        GitlabContainer { runtime, id, dir, child: Some(child), stdin, stdout, stderr, user }
    }

    /// Waits for the line that reports that the server is ready, and returns the path of its socket.
    pub(crate) fn ready(&mut self) -> String {
        let mut said = String::new();
        loop {
            let mut line = String::new();
            let count = self.stderr.read_line(&mut line).unwrap();
            assert_ne!(count, 0, "{}: the server ended: {said}", self.runtime);
            if let Some(path) = line.strip_prefix("step-runner is listening on socket ") {
                return path.trim_end_matches('\n').to_owned();
            }
            said.push_str(&line);
        }
    }

    /// Reads a line from standard output.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line
    }

    /// Returns a client that connects through a program in the container, as with `docker exec -i`.
    pub(crate) fn client(&self, words: &[&str]) -> StepClient {
        let command = self.exec(words);
        let program = command.get_program().to_owned();
        let words = [program].into_iter().chain(command.get_args().map(ToOwned::to_owned));
        StepClient::new(ServerAddress::Command(words.collect()))
    }

    /// Returns a command that runs another one in the container.
    pub(crate) fn exec(&self, words: &[&str]) -> Command {
        let mut command = runtime(self.runtime, self.dir.path());
        command.args(["exec", "--user", &self.user.to_string(), &self.id]).args(words);
        command
    }

    /// Stops the container as Docker does, with a signal to its init.
    pub(crate) fn stop(&self) {
        let mut command = runtime(self.runtime, self.dir.path());
        program::run(command.args(["kill", &self.id, "TERM"])).success();
    }

    /// Waits until the container has stopped, and returns its status and its output on both streams.
    pub(crate) fn wait_for_stop(mut self) -> (ExitStatus, String, String) {
        let child = self.child.take().unwrap();
        let status = program::wait(child, program::DEADLINE).expect("the container does not end");
        let (mut out, mut err) = (String::new(), String::new());
        self.stdout.read_to_string(&mut out).unwrap();
        self.stderr.read_to_string(&mut err).unwrap();
        (status, out, err)
    }
}

impl Drop for GitlabContainer {
    fn drop(&mut self) {
        let mut command = runtime(self.runtime, self.dir.path());
        program::run(command.args(["delete", "--force", &self.id]));
        if let Some(child) = self.child.take() {
            program::wait(child, program::DEADLINE);
        }
    }
}

/// Returns the runtime with a state directory for this container.
fn runtime(runtime: TestRuntime, dir: &Path) -> Command {
    let mut command = runtime.command();
    command.arg("--root").arg(dir.join("state"));
    command
}

fn edit(config: &mut Value, spec: &ContainerSetup) {
    config["root"]["readonly"] = json!(true);
    let process = &mut config["process"];
    process["terminal"] = json!(false);
    process["args"] = json!(spec.args);
    process["user"] = json!({"uid": spec.user, "gid": spec.user});
    let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned();
    process["env"] = json!([&[path], &spec.env[..]].concat());
    process["cwd"] = json!("/");
    let mounts = config["mounts"].as_array_mut().unwrap();
    mounts.retain(|mount| spec.has_shared_memory || mount["destination"] != "/dev/shm");
    for (source, target) in &spec.volumes {
        let options = ["rbind", "rprivate", "rw"];
        mounts.push(
            json!({"destination": target, "type": "bind", "source": source, "options": options}),
        );
    }
    // The network namespace has no interfaces; the calls need none.
    let namespaces = config["linux"]["namespaces"].as_array().unwrap();
    assert!(namespaces.iter().any(|namespace| namespace["type"] == "network"));
}
