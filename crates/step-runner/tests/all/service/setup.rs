//! A server of one test, and its clients.

use std::future::Future;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use oci_hooks_testsupport::program::{
    self, DEADLINE, temporary_directory, temporary_directory_in, wait, wait_until,
};
use rustix::process::{Pid, Signal, kill_process};
use step_runner::log::{LogDemux, LogStream};
use step_runner::wire::document::step_runner_client::StepRunnerClient as DocumentClient;
use step_runner::wire::proto;
use step_runner::wire::proto::step_runner_client::StepRunnerClient as GitLabClient;
use tempfile::TempDir;
use tokio::net::UnixStream;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_step-runner");

/// Runs an async test with a time limit.
pub(crate) fn block_on<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let result = runtime.block_on(async { tokio::time::timeout(DEADLINE, test).await });
    runtime.shutdown_timeout(Duration::from_secs(1));
    result.expect("the test takes too long")
}

/// A server with its own directories.
pub(crate) struct ServerFixture {
    child: Option<Child>,
    stderr: Option<BufReader<ChildStderr>>,
    pub(crate) dirs: TempDir,
    /// Wrapper command that starts the server, or nothing.
    by: Vec<&'static str>,
    options: Vec<String>,
    env: Vec<(String, String)>,
}

impl ServerFixture {
    pub(crate) fn start() -> Self {
        Self::with(&[], &[])
    }

    /// Starts a server with these options and environment variables.
    pub(crate) fn with(options: &[&str], env: &[(&str, &str)]) -> Self {
        Self::make(&[], options, env)
    }

    /// Starts a server as PID 1 of a PID namespace.
    pub(crate) fn start_as_first() -> Self {
        Self::make(&["unshare", "--pid", "--mount-proc", "--fork", "--kill-child"], &[], &[])
    }

    /// Starts a server that sees no cgroup file system.
    pub(crate) fn without_cgroups() -> Self {
        let script = "mount -t tmpfs none /sys/fs/cgroup && exec \"$@\"";
        Self::make(&["unshare", "--mount", "sh", "-c", script, "sh"], &[], &[])
    }

    /// Starts a server with a low limit of open files, and its files in memory.
    pub(crate) fn limited() -> Self {
        Self::with_file_limit("--nofile=64")
    }

    /// Starts a server with a limit of open files, given as an option of `prlimit`, and its files in memory.
    pub(crate) fn with_file_limit(limit: &'static str) -> Self {
        let dirs = temporary_directory_in(Path::new("/dev/shm"));
        Self::make_in(dirs, &["prlimit", limit], &[], &[])
    }

    fn make(by: &[&'static str], options: &[&str], env: &[(&str, &str)]) -> Self {
        Self::make_in(temporary_directory(), by, options, env)
    }

    fn make_in(dirs: TempDir, by: &[&'static str], options: &[&str], env: &[(&str, &str)]) -> Self {
        for name in ["work", "tmp"] {
            std::fs::create_dir(dirs.path().join(name)).unwrap();
        }
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let env = env.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let by = by.to_vec();
        let mut server = ServerFixture { child: None, stderr: None, dirs, by, options, env };
        server.restart();
        server
    }

    /// Starts the server again with the same directories.
    pub(crate) fn restart(&mut self) {
        let mut child = self.command().stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let ready = format!("step-runner is listening on socket {}\n", self.socket().display());
        let mut said = String::new();
        while !said.ends_with(&ready) {
            let count = stderr.read_line(&mut said).unwrap();
            assert_ne!(count, 0, "the server ended: {said}");
        }
        self.child = Some(child);
        self.stderr = Some(stderr);
    }

    /// Starts the server again with the same directories and other options.
    pub(crate) fn restart_with(&mut self, options: &[&str]) {
        self.options = options.iter().map(|option| (*option).to_owned()).collect();
        self.restart();
    }

    pub(crate) fn command(&self) -> Command {
        let mut words = self.by.iter().copied().chain([PROGRAM]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).arg("serve").arg("--socket").arg(self.socket()).args(&self.options);
        command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("TMPDIR", self.tmp());
        command.envs(self.env.clone()).current_dir(self.work_dir());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dirs.path().join("s.sock")
    }

    pub(crate) fn work_dir(&self) -> PathBuf {
        self.dirs.path().join("work")
    }

    pub(crate) fn tmp(&self) -> PathBuf {
        self.dirs.path().join("tmp")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Returns the absolute paths of the jobs' files.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut dirs = vec![self.tmp()];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
                if entry.file_type().unwrap().is_dir() {
                    dirs.push(entry.path());
                } else {
                    found.push(entry.path());
                }
            }
        }
        let is_of_server = |path: &PathBuf| path.ends_with("lock") || path.ends_with("boot");
        found.retain(|path| !is_of_server(path));
        found
    }

    /// Returns the files of jobs that are removed when the server ends, even if the jobs were not closed.
    pub(crate) fn secret_files(&self) -> Vec<PathBuf> {
        let is_kept =
            |path: &PathBuf| ["job.json", "log", "results"].iter().any(|name| path.ends_with(name));
        self.files().into_iter().filter(|path| !is_kept(path)).collect()
    }

    /// Returns the cgroup of the only job once it has started a process, if jobs have cgroups here.
    pub(crate) fn job_cgroup(&self) -> Option<PathBuf> {
        let mut record = String::new();
        wait_until("a process is recorded", || {
            let file = self.files().into_iter().find(|file| file.ends_with("scratch/groups"));
            record = file.and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
            record.lines().any(|line| line.starts_with(|first: char| first.is_ascii_digit()))
        });
        record.lines().find_map(|line| line.strip_prefix("cgroup ")).map(PathBuf::from)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self.child.as_ref().unwrap()), signal).unwrap();
    }

    /// Waits until the server has exited.
    #[track_caller]
    pub(crate) fn wait_for_exit(&mut self) -> ExitStatus {
        wait(self.child.take().unwrap(), DEADLINE).expect("the server does not end")
    }

    /// Returns the rest of the server's output until its exit.
    pub(crate) fn read_output(&mut self) -> String {
        std::io::read_to_string(self.stderr.take().unwrap()).unwrap()
    }

    pub(crate) fn channel(&self) -> Channel {
        channel(&self.socket())
    }

    pub(crate) fn gitlab(&self) -> GitLabClient<Channel> {
        GitLabClient::new(channel(&self.socket()))
    }

    pub(crate) fn document(&self) -> DocumentClient<Channel> {
        DocumentClient::new(channel(&self.socket()))
    }

    /// Returns a client that connects through the proxy.
    pub(crate) fn gitlab_by_proxy(&self) -> GitLabClient<Channel> {
        let socket = self.socket();
        let connect = service_fn(move |_| {
            let mut proxy = tokio::process::Command::new(PROGRAM);
            proxy.arg("proxy").arg("--socket").arg(&socket).kill_on_drop(true);
            proxy.stdin(Stdio::piped()).stdout(Stdio::piped());
            async move {
                let mut proxy = proxy.spawn()?;
                let stream =
                    tokio::io::join(proxy.stdout.take().unwrap(), proxy.stdin.take().unwrap());
                // The proxy exits at the end of its standard input.
                tokio::spawn(async move { proxy.wait().await });
                Ok::<_, std::io::Error>(TokioIo::new(stream))
            }
        });
        let endpoint = Endpoint::from_static("http://proxy");
        GitLabClient::new(endpoint.connect_with_connector_lazy(connect))
    }

    /// Returns a request to run the steps in `run:`.
    pub(crate) fn request(&self, id: &str, run: &str) -> proto::RunRequest {
        proto::RunRequest {
            id: id.to_owned(),
            work_dir: self.work_dir().to_str().unwrap().to_owned(),
            steps: format!("{{}}\n---\nrun:\n{run}"),
            ..proto::RunRequest::default()
        }
    }

    /// Returns a request to run a script.
    pub(crate) fn script(&self, id: &str, script: &str) -> proto::RunRequest {
        let script = serde_json::to_string(script).unwrap();
        self.request(id, &format!("  - {{name: a, script: {script}}}\n"))
    }
}

impl Drop for ServerFixture {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.signal(Signal::TERM);
            let status = wait(self.child.take().unwrap(), DEADLINE);
            if !std::thread::panicking() {
                assert!(status.expect("the server does not end").success());
                assert_eq!(self.secret_files(), <[PathBuf; 0]>::default(), "left behind");
                assert!(!self.socket().exists());
            }
        }
        program::remove(&mut self.dirs);
    }
}

fn channel(socket: &Path) -> Channel {
    let socket = socket.to_owned();
    let connect = service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://socket").connect_with_connector_lazy(connect)
}

/// Reads a job's log to its end.
pub(crate) async fn log(
    client: &mut GitLabClient<Channel>,
    id: &str,
    offset: i64,
) -> Result<Vec<u8>, Status> {
    let request = proto::FollowLogsRequest { id: id.to_owned(), offset };
    let mut stream = client.follow_logs(request).await?.into_inner();
    let mut log = Vec::new();
    while let Some(answer) = stream.message().await? {
        log.extend(answer.data);
    }
    Ok(log)
}

/// Reads a job's log to its end, and returns standard output and standard error.
pub(crate) async fn output(client: &mut GitLabClient<Channel>, id: &str) -> (String, String) {
    strip_stamps(&log(client, id, 0).await.unwrap())
}

pub(crate) fn strip_stamps(log: &[u8]) -> (String, String) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut take = |stream: LogStream, bytes: &[u8]| match stream {
        LogStream::Out => out.extend_from_slice(bytes),
        LogStream::Err => err.extend_from_slice(bytes),
    };
    let mut demux = LogDemux::default();
    demux.write(log, &mut take);
    demux.finish(&mut take);
    (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

/// Returns the state of one job.
pub(crate) async fn status(
    client: &mut GitLabClient<Channel>,
    id: &str,
) -> Result<proto::Status, Status> {
    let request = proto::StatusRequest { id: id.to_owned() };
    let jobs = client.status(request).await?.into_inner().jobs;
    let [job] = jobs.try_into().expect("one job is asked for");
    Ok(job)
}

pub(crate) async fn close(client: &mut GitLabClient<Channel>, id: &str) {
    client.close(proto::CloseRequest { id: id.to_owned() }).await.unwrap();
}
