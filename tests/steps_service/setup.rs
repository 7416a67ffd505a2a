//! A server of one test, and what asks it.

use std::future::Future;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use oci_hooks::step_runner::log::{Demux, Stream};
use oci_hooks::step_runner::wire::document::step_runner_client::StepRunnerClient as DocumentClient;
use oci_hooks::step_runner::wire::proto;
use oci_hooks::step_runner::wire::proto::step_runner_client::StepRunnerClient as GitLabClient;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::net::UnixStream;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use crate::support::program::{
    self, DEADLINE, temporary_directory, temporary_directory_in, wait, wait_until,
};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_step-runner");

/// Runs a test that asks servers, for a limited time.
pub(crate) fn block_on<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let result = runtime.block_on(async { tokio::time::timeout(DEADLINE, test).await });
    runtime.shutdown_timeout(Duration::from_secs(1));
    result.expect("the test takes too long")
}

/// A server with directories of its own.
pub(crate) struct Server {
    child: Option<Child>,
    stderr: Option<BufReader<ChildStderr>>,
    pub(crate) dirs: TempDir,
    /// What the server is started by; nothing but its name if nobody does.
    by: Vec<&'static str>,
    options: Vec<String>,
    env: Vec<(String, String)>,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::with(&[], &[])
    }

    /// Starts a server with these options and variables.
    pub(crate) fn with(options: &[&str], env: &[(&str, &str)]) -> Self {
        Self::make(&[], options, env)
    }

    /// Starts a server that is the first process in a namespace of its own.
    pub(crate) fn first() -> Self {
        Self::make(&["unshare", "--pid", "--mount-proc", "--fork", "--kill-child"], &[], &[])
    }

    /// Starts a server that can have no cgroups: there are none where it is.
    pub(crate) fn without_cgroups() -> Self {
        let script = "mount -t tmpfs none /sys/fs/cgroup && exec \"$@\"";
        Self::make(&["unshare", "--mount", "sh", "-c", script, "sh"], &[], &[])
    }

    /// Starts a server that may have few files open at a time, and has them in memory.
    pub(crate) fn limited() -> Self {
        let dirs = temporary_directory_in(Path::new("/dev/shm"));
        Self::make_in(dirs, &["prlimit", "--nofile=64"], &[], &[])
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
        let mut server = Server { child: None, stderr: None, dirs, by, options, env };
        server.restart();
        server
    }

    /// Starts a server where the one before was.
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

    /// Returns the files of jobs, as paths below the server's directory.
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

    /// Returns the cgroup of the only job, if jobs have one here, after the job has started a process.
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

    /// Waits until the server has ended.
    #[track_caller]
    pub(crate) fn ended(&mut self) -> ExitStatus {
        wait(self.child.take().unwrap(), DEADLINE).expect("the server does not end")
    }

    /// Returns what the server said from now on until it ended.
    pub(crate) fn said(&mut self) -> String {
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

    /// Returns a client behind the proxy.
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
                // It ends with its standard input.
                tokio::spawn(async move { proxy.wait().await });
                Ok::<_, std::io::Error>(TokioIo::new(stream))
            }
        });
        let endpoint = Endpoint::from_static("http://proxy");
        GitLabClient::new(endpoint.connect_with_connector_lazy(connect))
    }

    /// Returns a request to run steps that are in `run:`.
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

impl Drop for Server {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.signal(Signal::TERM);
            let status = wait(self.child.take().unwrap(), DEADLINE);
            if !std::thread::panicking() {
                assert!(status.expect("the server does not end").success());
                assert_eq!(self.files(), <[PathBuf; 0]>::default(), "left behind");
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
    unstamped(&log(client, id, 0).await.unwrap())
}

pub(crate) fn unstamped(log: &[u8]) -> (String, String) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut take = |stream: Stream, bytes: &[u8]| match stream {
        Stream::Out => out.extend_from_slice(bytes),
        Stream::Err => err.extend_from_slice(bytes),
    };
    let mut demux = Demux::new();
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
