//! Benchmarks of `step-runner`: start, time from request to first byte of the log, a hundred steps compared
//! with a shell that runs the same commands, and long logs compared with a pipe.
//!
//! `cargo bench -p step-runner --bench steps [-- start|first-byte|steps|20MB|1GB …]`

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "prints figures; what fails panics")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use oci_hooks_testsupport::measure::median;
use step_runner::client::{ServerAddress, StepClient};
use step_runner::document::StepFile;
use step_runner::engine::{CancelHandle, StepJob};
use step_runner::log::{LogStream, Masking, OutputSink, OutputSource, StepLog};
use step_runner::resolve::Resolver;
use step_runner::wire::proto::RunRequest;
use step_runner::wire::proto::step_result::Status;

const STEPS: usize = 100;

const RUNS: usize = 41;

fn main() {
    // cargo adds `--bench`.
    let only: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let is_wanted = |name: &str| only.is_empty() || only.iter().any(|only| only == name);
    let all: [(&str, fn()); 5] = [
        ("start", start),
        ("first-byte", measure_first_byte),
        ("steps", measure_hundred_steps),
        ("20MB", || measure_long_log("20 MB", 20_000_000, RUNS / 4)),
        ("1GB", || measure_long_log("1 GB", 1_000_000_000, 3)),
    ];
    all.into_iter().filter(|(name, _)| is_wanted(name)).for_each(|(_, measure)| measure());
}

/// Measures the time from the start of the server to its line "listening".
fn start() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("step-runner.sock");
    let times = (0..RUNS).map(|_| time(|| drop(BenchServer::start(&socket))));
    println!("to start a server: {:.1?}", median(times));
}

/// Time limit for the first byte of a log.
const FIRST_BYTE: Duration = Duration::from_millis(10);

/// Measures the time from the request to the first byte of the job's log.
fn measure_first_byte() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("step-runner.sock");
    let server = BenchServer::start(&socket);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let times = runtime.block_on(async {
        let client = StepClient::new(ServerAddress::Socket(socket.clone()));
        let mut times = Vec::new();
        for run in 0..RUNS {
            let id = run.to_string();
            let request = RunRequest {
                id: id.clone(),
                work_dir: dir.path().to_str().unwrap().to_owned(),
                steps: "{}\n---\nrun: [{name: a, script: echo hello}]\n".to_owned(),
                ..RunRequest::default()
            };
            let start = Instant::now();
            client.run(request).await.unwrap();
            assert!(client.follow_log(&id, 0).next().await.unwrap().is_some());
            times.push(start.elapsed());
            client.close(&id).await.unwrap();
        }
        times
    });
    drop(server);
    let median = median(times.into_iter());
    println!("from Run to the first byte of the log: {median:.1?}");
    assert!(median <= FIRST_BYTE, "more than {FIRST_BYTE:?}");
}

/// A running server, killed on drop.
struct BenchServer(Child);

impl BenchServer {
    fn start(socket: &Path) -> Self {
        let mut server = Command::new(env!("CARGO_BIN_EXE_step-runner"));
        let server = server.args(["serve", "--socket"]).arg(socket).stderr(Stdio::piped());
        let mut server = server.spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(server.stderr.take().unwrap()).read_line(&mut ready).unwrap();
        assert!(ready.starts_with("step-runner is listening"), "{ready}");
        BenchServer(server)
    }
}

impl Drop for BenchServer {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Runs `true` a hundred times, each in its own process, alternating with a shell that does the same.
fn measure_hundred_steps() {
    let dir = tempfile::tempdir().unwrap();
    let mut text = "{}\n---\nrun:\n".to_owned();
    for number in 0..STEPS {
        writeln!(text, "- {{name: s{number}, step: ./true}}").unwrap();
    }
    std::fs::create_dir(dir.path().join("true")).unwrap();
    let step = "{}\n---\nexec: {command: [/bin/true]}\n";
    std::fs::write(dir.path().join("true/step.yml"), step).unwrap();
    let steps = StepFile::parse("steps", &text).unwrap();

    let (mut ours, mut shells) = (Vec::new(), Vec::new());
    for run in 0..RUNS {
        ours.push(time(|| run_steps(&steps, dir.path(), run, &mut DiscardOutput)));
        shells.push(time(shell));
    }
    let (ours, shell) = (median(ours.into_iter()), median(shells.into_iter()));
    let ratio = ours.as_secs_f64() / shell.as_secs_f64();
    println!(
        "{STEPS} steps of /bin/true: {ours:.1?}; sh -c 'while …; do /bin/true; done': {shell:.1?}; {ratio:.2}×"
    );
}

/// Runs a command that prints lines of `bytes` in total: once with its output masked, stamped and stored, once
/// with its output ignored, compared with a shell that prints it into a pipe.
fn measure_long_log(name: &str, bytes: u64, runs: usize) {
    let dir = tempfile::tempdir().unwrap();
    let script = format!("yes '{LINE}' | head -c {bytes}");
    let text = format!("{{}}\n---\nexec: {{command: [sh, -c, \"{script}\"]}}\n");
    let steps = StepFile::parse("steps", &text).unwrap();
    let mut masking = Masking::default();
    masking.add_secret("wh4t-n0b0dy-m4y-see");

    let (mut stored, mut unheard, mut piped) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..runs {
        let path = dir.path().join("log");
        let mut counted = CountedLog(StepLog::create(&path, &masking, 4 * bytes).unwrap(), 0);
        stored.push(time(|| run_steps(&steps, dir.path(), 2 * run, &mut counted)));
        assert_eq!(counted.1, bytes, "bytes are lost");
        drop(counted);
        std::fs::remove_file(path).unwrap();
        unheard.push(time(|| run_steps(&steps, dir.path(), 2 * run + 1, &mut DiscardOutput)));
        piped.push(time(|| {
            let pipe = Command::new("sh")
                .args(["-c", &format!("{script} | cat")])
                .stdout(Stdio::null())
                .status();
            assert!(pipe.unwrap().success());
        }));
    }
    let [stored, unheard, piped] = [stored, unheard, piped].map(|times| median(times.into_iter()));
    let ratio = |time: Duration| time.as_secs_f64() / piped.as_secs_f64();
    println!(
        "a log of {name}: {stored:.2?}, {:.2}×; unheard: {unheard:.2?}, {:.2}×; sh -c '… | cat': {piped:.2?}",
        ratio(stored),
        ratio(unheard)
    );
}

/// A log line, 64 bytes with its line feed.
const LINE: &str = "2026-05-05T12:00:00Z INFO server: GET /v1/pages?page=7 200 12ms";

/// A log that counts the bytes of commands.
struct CountedLog(StepLog, u64);

impl OutputSink for CountedLog {
    fn write(&mut self, source: OutputSource, stream: LogStream, bytes: &[u8]) {
        if source == OutputSource::Step {
            self.1 += bytes.len() as u64;
        }
        self.0.write(source, stream, bytes);
    }

    fn flush(&mut self) {
        self.0.flush();
    }

    fn release(&mut self, now: Instant) -> Option<Instant> {
        self.0.release(now)
    }

    fn mask(&mut self, secret: &str) {
        self.0.mask(secret);
    }
}

fn run_steps(steps: &StepFile, dir: &Path, run: usize, output: &mut dyn OutputSink) {
    let scratch = dir.join(format!("scratch-{run}"));
    std::fs::create_dir_all(&scratch).unwrap();
    let job = StepJob {
        steps: steps.clone(),
        work_dir: dir.to_owned(),
        dir: dir.to_owned(),
        env: std::env::vars().collect(),
        vars: BTreeMap::new(),
        scratch,
        grace: Duration::from_secs(5),
        cleanup: Duration::from_secs(5),
        timeout: None,
    };
    let cancel = CancelHandle::new().unwrap();
    let outcome = job.run(&Resolver::default(), output, &cancel, &mut |_| {});
    assert_eq!(outcome.status, Status::Success, "{}", outcome.message);
}

fn shell() {
    let loop_ = format!("i=0; while [ $i -lt {STEPS} ]; do /bin/true; i=$((i+1)); done");
    assert!(Command::new("sh").args(["-c", &loop_]).status().unwrap().success());
}

fn time(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

struct DiscardOutput;

impl OutputSink for DiscardOutput {
    fn write(&mut self, _: OutputSource, _: LogStream, _: &[u8]) {}

    fn flush(&mut self) {}

    fn mask(&mut self, _: &str) {}
}
