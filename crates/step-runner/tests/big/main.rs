//! A log of a gigabyte with secrets in it, followed to its end.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

mod expected;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use expected::{BLOCK_BYTES, BLOCKS, LogBlock, LogExpectation};
use rustix::process::{Pid, Signal, kill_process};
use step_runner::client::{ServerAddress, StepClient};
use step_runner::log::LogDemux;
use step_runner::wire::proto::step_result::Status;
use step_runner::wire::proto::{Job, RunRequest, Variable};

/// Limit of the server's peak memory, without its executable, which is 130 MB in debug builds.
const MAX_OWN_BYTES: u64 = 12 << 20;

/// Number of equal parts of the log, each read over its own connection. Together they have the size of the output;
/// the log is longer by its headers, and a last connection reads the rest. Parts may end within log entries.
const PARTS: u64 = 5;

/// Exceeds the duration of the test on a busy machine.
const DEADLINE: Duration = Duration::from_secs(600);

#[test]
fn gigabyte_log_is_masked_followed_and_resumed_with_little_memory() {
    let dir = directory();
    let content = LogBlock::new();
    fs::write(dir.path().join("block"), &content.written).unwrap();
    let server = BenchServer::start(dir.path());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let test = async { tokio::time::timeout(DEADLINE, follow(&server, content)).await };
    runtime.block_on(test).expect("it takes too long");
    let peak = server.peak_own_bytes();
    assert!(peak <= MAX_OWN_BYTES, "the server had {peak} bytes");
    assert_eq!(server.jobs(), 0, "the job is closed");
}

async fn follow(server: &BenchServer<'_>, content: LogBlock) {
    let client = || StepClient::new(ServerAddress::Socket(server.socket()));
    let script =
        format!("i=0; while [ $i -lt {BLOCKS} ]; do echo block $i; cat block; i=$((i + 1)); done");
    let request = RunRequest {
        id: "big".to_owned(),
        work_dir: server.dir.to_str().unwrap().to_owned(),
        job: Some(Job { variables: content.variables(), ..Job::default() }),
        steps: format!("{{}}\n---\nrun: [{{name: big, script: {script:?}}}]\n"),
        ..RunRequest::default()
    };
    client().run(request).await.unwrap();

    let mut expected = LogExpectation::new(content.masked);
    let mut demux = LogDemux::default();
    let mut offset = 0;
    let mut stop = Some(1);
    while let Some(part) = stop {
        let client = client();
        let mut log = client.follow_log("big", offset);
        stop = None;
        while let Some(bytes) = log.next().await.unwrap() {
            let until = part * (BLOCKS * BLOCK_BYTES as u64 / PARTS + 1);
            let keep = bytes.len().min(usize::try_from(until - offset).unwrap());
            demux.write(&bytes[..keep], |stream, bytes| expected.take(stream, bytes));
            offset += keep as u64;
            if offset == until {
                // The unread rest is sent again.
                stop = Some(part + 1);
                break;
            }
        }
    }
    demux.finish(|stream, bytes| expected.take(stream, bytes));
    expected.finish();
    let jobs = client().status("big").await.unwrap();
    assert_eq!(jobs[0].status(), Status::Success, "{}", jobs[0].message);
    client().close("big").await.unwrap();
}

/// Creates a directory for two gigabytes, in memory if there is room.
fn directory() -> tempfile::TempDir {
    let is_roomy =
        |path: &Path| rustix::fs::statvfs(path).is_ok_and(|fs| fs.f_bavail * fs.f_frsize > 4 << 30);
    let memory = Path::new("/dev/shm");
    let place = if is_roomy(memory) { memory } else { Path::new(env!("CARGO_TARGET_TMPDIR")) };
    tempfile::Builder::new().prefix("oci-hooks-").tempdir_in(place).unwrap()
}

/// A server, killed on drop.
struct BenchServer<'a> {
    dir: &'a Path,
    process: Child,
}

impl<'a> BenchServer<'a> {
    fn start(dir: &'a Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_step-runner"));
        command.arg("serve").arg("--socket").arg(dir.join("s")).arg("--state-dir");
        command.arg(dir.join("state")).env_clear().env("PATH", "/usr/bin:/bin").current_dir(dir);
        let mut process =
            command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it is built");
        let mut said = String::new();
        let mut stderr = BufReader::new(process.stderr.take().unwrap());
        let server = BenchServer { dir, process };
        stderr.read_line(&mut said).unwrap();
        assert!(said.contains("is listening on"), "{said}");
        // The server must never block on its standard error, which should be empty.
        std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::stderr()));
        server
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("s")
    }

    /// Returns the peak memory of the server, without the pages of its executable.
    fn peak_own_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let bytes = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            value.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
        };
        // Pages of the executable are counted in the peak, and stay mapped.
        bytes("VmHWM:") - bytes("RssFile:")
    }

    /// Returns the number of jobs with files.
    fn jobs(&self) -> usize {
        fs::read_dir(self.dir.join("state/jobs")).unwrap().count()
    }
}

impl Drop for BenchServer<'_> {
    fn drop(&mut self) {
        kill_process(Pid::from_child(&self.process), Signal::TERM).unwrap();
        let status = self.process.wait().unwrap();
        if !std::thread::panicking() {
            assert!(status.success(), "{status}");
        }
    }
}

impl LogBlock {
    fn variables(&self) -> Vec<Variable> {
        let variable = |(value, at): (&String, usize)| Variable {
            key: format!("SECRET_{at}"),
            value: value.clone(),
            masked: true,
            ..Variable::default()
        };
        self.secrets.iter().zip(0..).map(variable).collect()
    }
}
