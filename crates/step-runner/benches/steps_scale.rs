//! Benchmarks many jobs at once, each of `sleep 3` and ten `/bin/true`: time, CPU time, memory and threads of the
//! server, compared with as many shells that run the same commands.
//!
//! `cargo bench -p step-runner --bench steps_scale [-- 10 100 …]`

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "prints figures; what fails panics")]

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use oci_hooks_host::processes::ProcessSnapshot;
use step_runner::client::{ClientError, ServerAddress, StepClient};
use step_runner::wire::proto::RunRequest;
use step_runner::wire::proto::step_result::Status;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tonic::Code;

const JOBS: [usize; 6] = [1, 10, 50, 100, 200, 500];

/// Commands of a job.
const COMMANDS: usize = 11;

/// Minimum number of jobs per row, run in groups: CPU time is counted in hundredths of a second.
const LEAST_JOBS: usize = 10;

/// Soft and hard limit of open files of the server, and of a server that has to reject jobs.
const FILE_LIMIT: &str = "--nofile=1024:20000";
const LOW_FILE_LIMIT: &str = "--nofile=256";

/// `USER_HZ`, which is 100 on all architectures.
const TICKS_PER_SECOND: f64 = 100.0;

const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);

fn main() {
    // cargo adds `--bench`.
    let only: Vec<usize> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    println!(
        "jobs        wall            CPU time per command: server; with commands      memory  threads  correct    load"
    );
    let jobs = JOBS.into_iter().filter(|jobs| only.is_empty() || only.contains(jobs));
    jobs.for_each(|jobs| measure(&runtime, jobs));
    if only.is_empty() {
        let server = BenchServer::start(LOW_FILE_LIMIT);
        let JobCounts { correct, rejected, wrong } = server.run(&runtime, 0, 200);
        println!(
            "200 jobs, {LOW_FILE_LIMIT}: {correct} correct, {rejected} rejected, {wrong} failed"
        );
    }
}

/// Prints a row: concurrent jobs of a server, compared with as many shells.
fn measure(runtime: &Runtime, jobs: usize) {
    let groups = LEAST_JOBS.div_ceil(jobs);
    let server = BenchServer::start(FILE_LIMIT);
    let is_over = Arc::new(AtomicBool::new(false));
    let sampler = thread::spawn({
        let (pid, is_over) = (server.process.id(), is_over.clone());
        move || most_threads(pid, &is_over)
    });
    let (own, all) = server.ticks();
    let start = Instant::now();
    let correct: usize = (0..groups).map(|group| server.run(runtime, group, jobs).correct).sum();
    let wall = start.elapsed().as_secs_f64() / groups as f64;
    let (own, all) = (server.ticks().0 - own, server.ticks().1 - all);
    is_over.store(true, Ordering::Relaxed);
    let (threads, memory) = (sampler.join().unwrap(), server.peak_kilobytes());
    drop(server);

    let before = ticks("self")[2..].iter().sum::<u64>();
    let start = Instant::now();
    (0..groups).for_each(|_| run_shells(jobs));
    let shell_wall = start.elapsed().as_secs_f64() / groups as f64;
    let shell_all = ticks("self")[2..].iter().sum::<u64>() - before;

    let commands = (groups * jobs * COMMANDS) as f64;
    let millis = |ticks: u64| ticks as f64 / TICKS_PER_SECOND * 1000.0 / commands;
    let load = fs::read_to_string("/proc/loadavg").unwrap();
    println!(
        "{jobs:>4} {wall:>6.2} s {:>5.2}× of shells {:>9.2} ms; {:>5.2} ms, {:>5.2}× of shells {:>10.1} MB {threads:>8} {correct:>4}/{:<4} {:>7}",
        wall / shell_wall,
        millis(own),
        millis(all),
        all as f64 / shell_all as f64,
        memory as f64 / 1000.0,
        groups * jobs,
        load.split(' ').next().unwrap(),
    );
}

/// A running server, killed on drop.
struct BenchServer {
    dir: TempDir,
    process: Child,
    /// Process id of the server's launcher.
    launcher: u32,
}

/// Numbers of jobs by their outcome.
#[derive(Default)]
struct JobCounts {
    correct: usize,
    /// Not started, for lack of descriptors.
    rejected: usize,
    wrong: usize,
}

impl BenchServer {
    fn start(file_limit: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, command) in [("sleep", "[sleep, '3']"), ("true", "[/bin/true]")] {
            fs::create_dir(dir.path().join(name)).unwrap();
            let step = format!("{{}}\n---\nexec: {{command: {command}}}\n");
            fs::write(dir.path().join(name).join("step.yml"), step).unwrap();
        }
        let mut command = Command::new("prlimit");
        command.args([file_limit, env!("CARGO_BIN_EXE_step-runner"), "serve"]);
        command.arg("--socket").arg(dir.path().join("s")).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(process.stderr.take().unwrap()).read_line(&mut ready).unwrap();
        assert!(ready.starts_with("step-runner is listening"), "{ready}");
        let [launcher] = ProcessSnapshot::children_of(process.id())[..] else { panic!() };
        BenchServer { dir, process, launcher }
    }

    /// Runs concurrent jobs to their end, each with a client of its own.
    fn run(&self, runtime: &Runtime, group: usize, jobs: usize) -> JobCounts {
        let mut steps = "{}\n---\nrun:\n- {name: s0, step: ./sleep}\n".to_owned();
        for number in 1..COMMANDS {
            writeln!(steps, "- {{name: s{number}, step: ./true}}").unwrap();
        }
        let work_dir = self.dir.path().to_str().unwrap();
        let request = |job: usize| RunRequest {
            id: format!("{group}-{job}"),
            work_dir: work_dir.to_owned(),
            steps: steps.clone(),
            ..RunRequest::default()
        };
        let socket = self.dir.path().join("s");
        runtime.block_on(async {
            let jobs: JoinSet<_> =
                (0..jobs).map(|job| run_job(socket.clone(), request(job))).collect();
            let mut counts = JobCounts::default();
            for outcome in jobs.join_all().await {
                match outcome {
                    Ok(true) => counts.correct += 1,
                    Err(error) if error.code() == Code::ResourceExhausted => counts.rejected += 1,
                    Ok(false) | Err(_) => counts.wrong += 1,
                }
            }
            counts
        })
    }

    /// Returns the CPU time of the server and its launcher, and that with all commands which have ended.
    fn ticks(&self) -> (u64, u64) {
        let [user, system, ..] = ticks(&self.process.id().to_string());
        let launcher = ticks(&self.launcher.to_string());
        let own = user + system + launcher[0] + launcher[1];
        (own, own + launcher[2] + launcher[3])
    }

    /// Returns the maximum memory of the server and its launcher.
    fn peak_kilobytes(&self) -> u64 {
        [self.process.id(), self.launcher].map(|pid| status_field(pid, "VmHWM:")).iter().sum()
    }
}

impl Drop for BenchServer {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Runs a job; returns whether it succeeded with the expected log.
async fn run_job(socket: PathBuf, request: RunRequest) -> Result<bool, ClientError> {
    let client = StepClient::new(ServerAddress::Socket(socket));
    let mut log = Vec::new();
    let outcome = client.execute(request, |bytes| log.extend_from_slice(bytes)).await?;
    let log = String::from_utf8(log).unwrap();
    let is_complete =
        (0..COMMANDS).all(|step| log.contains(&format!("Running step name=s{step}\n")));
    Ok(outcome.status == Status::Success && is_complete)
}

fn run_shells(jobs: usize) {
    let script = format!("sleep 3{}", "; /bin/true".repeat(COMMANDS - 1));
    let shell = || Command::new("sh").args(["-c", &script]).spawn().unwrap();
    let shells: Vec<Child> = (0..jobs).map(|_| shell()).collect();
    for mut shell in shells {
        assert!(shell.wait().unwrap().success());
    }
}

/// Returns the highest number of threads of a process until `is_over`.
fn most_threads(pid: u32, is_over: &AtomicBool) -> u64 {
    let mut most = 0;
    while !is_over.load(Ordering::Relaxed) {
        most = most.max(status_field(pid, "Threads:"));
        thread::sleep(SAMPLE_INTERVAL);
    }
    most
}

/// Returns the number after a name in the status of a process.
fn status_field(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Returns the CPU time of a process in clock ticks: user, system, and both of its reaped descendants.
fn ticks(pid: &str) -> [u64; 4] {
    let stat = fs::read_to_string(Path::new("/proc").join(pid).join("stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let mut fields = fields.split(' ').skip(11).map(|ticks| ticks.parse().unwrap());
    std::array::from_fn(|_| fields.next().unwrap())
}
