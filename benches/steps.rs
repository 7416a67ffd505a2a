//! `step-runner`: its start, from the request to the first byte of the log, a hundred steps beside a shell
//! that runs the same hundred commands, and long logs beside a pipe.
//!
//! `cargo bench --features step-runner --bench steps [-- start|first-byte|steps|20MB|1GB …]`

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "prints figures; what fails panics")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use oci_hooks::step_runner::client::{Address, Client};
use oci_hooks::step_runner::document::StepFile;
use oci_hooks::step_runner::engine::{Cancel, Job};
use oci_hooks::step_runner::log::{Log, Masking, Output, Source, Stream};
use oci_hooks::step_runner::resolve::Resolver;
use oci_hooks::step_runner::wire::proto::RunRequest;
use oci_hooks::step_runner::wire::proto::step_result::Status;

const STEPS: usize = 100;

const RUNS: usize = 41;

fn main() {
    // cargo adds `--bench`.
    let only: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let is_wanted = |name: &str| only.is_empty() || only.iter().any(|only| only == name);
    let all: [(&str, fn()); 5] = [
        ("start", start),
        ("first-byte", first_byte),
        ("steps", hundred_steps),
        ("20MB", || long_log("20 MB", 20_000_000, RUNS / 4)),
        ("1GB", || long_log("1 GB", 1_000_000_000, 3)),
    ];
    all.into_iter().filter(|(name, _)| is_wanted(name)).for_each(|(_, measure)| measure());
}

/// From the start of the server to the line that says so.
fn start() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("step-runner.sock");
    let times = (0..RUNS).map(|_| time(|| drop(Server::start(&socket)))).collect();
    println!("to start a server: {:.1?}", median(times));
}

/// What the first byte of a log may take.
const FIRST_BYTE: Duration = Duration::from_millis(10);

/// From the request to the first byte of the log of what it asks for.
fn first_byte() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("step-runner.sock");
    let server = Server::start(&socket);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let times = runtime.block_on(async {
        let client = Client::new(Address::Socket(socket.clone()));
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
    let median = median(times);
    println!("from Run to the first byte of the log: {median:.1?}");
    assert!(median <= FIRST_BYTE, "more than {FIRST_BYTE:?}");
}

/// A server, which ends with this.
struct Server(Child);

impl Server {
    fn start(socket: &Path) -> Self {
        let mut server = Command::new(env!("CARGO_BIN_EXE_step-runner"));
        let server = server.args(["serve", "--socket"]).arg(socket).stderr(Stdio::piped());
        let mut server = server.spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(server.stderr.take().unwrap()).read_line(&mut ready).unwrap();
        assert!(ready.starts_with("step-runner is listening"), "{ready}");
        Server(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A hundred times `true`, each in a process of its own; both run by turns.
fn hundred_steps() {
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
        ours.push(time(|| play(&steps, dir.path(), run, &mut Deaf)));
        shells.push(time(shell));
    }
    let (ours, shell) = (median(ours), median(shells));
    let ratio = ours.as_secs_f64() / shell.as_secs_f64();
    println!(
        "{STEPS} steps of /bin/true: {ours:.1?}; sh -c 'while …; do /bin/true; done': {shell:.1?}; {ratio:.2}×"
    );
}

/// A command that prints so much, as lines: masked, stamped and stored, and unheard, beside a shell that
/// prints it into a pipe.
fn long_log(name: &str, bytes: u64, runs: usize) {
    let dir = tempfile::tempdir().unwrap();
    let script = format!("yes '{LINE}' | head -c {bytes}");
    let text = format!("{{}}\n---\nexec: {{command: [sh, -c, \"{script}\"]}}\n");
    let steps = StepFile::parse("steps", &text).unwrap();
    let mut masking = Masking::default();
    masking.add_secret("wh4t-n0b0dy-m4y-see");

    let (mut stored, mut unheard, mut piped) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..runs {
        let path = dir.path().join("log");
        let mut counted = Counted(Log::create(&path, &masking, 4 * bytes).unwrap(), 0);
        stored.push(time(|| play(&steps, dir.path(), 2 * run, &mut counted)));
        assert_eq!(counted.1, bytes, "bytes are lost");
        drop(counted);
        std::fs::remove_file(path).unwrap();
        unheard.push(time(|| play(&steps, dir.path(), 2 * run + 1, &mut Deaf)));
        piped.push(time(|| {
            let pipe = Command::new("sh")
                .args(["-c", &format!("{script} | cat")])
                .stdout(Stdio::null())
                .status();
            assert!(pipe.unwrap().success());
        }));
    }
    let [stored, unheard, piped] = [stored, unheard, piped].map(median);
    let ratio = |time: Duration| time.as_secs_f64() / piped.as_secs_f64();
    println!(
        "a log of {name}: {stored:.2?}, {:.2}×; unheard: {unheard:.2?}, {:.2}×; sh -c '… | cat': {piped:.2?}",
        ratio(stored),
        ratio(unheard)
    );
}

/// A line of a log; with its end, 64 bytes.
const LINE: &str = "2026-05-05T12:00:00Z INFO server: GET /v1/pages?page=7 200 12ms";

/// A log that counts what commands print.
struct Counted(Log, u64);

impl Output for Counted {
    fn write(&mut self, source: Source, stream: Stream, bytes: &[u8]) {
        if source == Source::Step {
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

fn play(steps: &StepFile, dir: &Path, run: usize, output: &mut dyn Output) {
    let scratch = dir.join(format!("scratch-{run}"));
    std::fs::create_dir_all(&scratch).unwrap();
    let job = Job {
        steps: steps.clone(),
        work_dir: dir.to_owned(),
        dir: dir.to_owned(),
        env: std::env::vars().collect(),
        vars: BTreeMap::new(),
        inputs: BTreeMap::new(),
        scratch,
        grace: Duration::from_secs(5),
        cleanup: Duration::from_secs(5),
        timeout: None,
    };
    let cancel = Cancel::new().unwrap();
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

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

struct Deaf;

impl Output for Deaf {
    fn write(&mut self, _: Source, _: Stream, _: &[u8]) {}

    fn flush(&mut self) {}

    fn mask(&mut self, _: &str) {}
}
