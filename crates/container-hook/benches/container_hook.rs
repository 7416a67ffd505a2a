//! Measures the four calls of GitHub's runner, the bare runtime and podman, in turn on one machine. Prints medians
//! of the wall-clock time, with the minimum in parentheses, and the load.
//!
//! `cargo bench -p container-hook --bench container_hook`, as root; needs runc, crun, docker-registry
//! and busybox-static, and podman for its column.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "prints figures; what fails panics")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use oci_hooks_testsupport::bundle::BusyboxBundle;
use oci_hooks_testsupport::github_runner::{GithubRunner, container, merge};
use oci_hooks_testsupport::host::TestHost;
use oci_hooks_testsupport::hub::{HostRegistry, RegistryName};
use oci_hooks_testsupport::installation::HookInstallation;
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::TestRuntime;
use serde_json::{Value, json};

const RUNS: usize = 21;

fn main() {
    println!(
        "milliseconds of {RUNS} runs in turn: median (minimum); `bare` is the runtime alone, or the job without a service\n"
    );
    println!("{:34} {:>14} {:>14} {:>8} {:>14}", "", "ours", "bare", "added", "podman");
    for runtime in TestRuntime::ALL {
        let host = TestHost::new();
        let _hub = HostRegistry::start(&host, RegistryName::Hub, None);
        // Pull policy "missing" for both, the default of `docker create`.
        let installation = HookInstallation::new(&host, runtime, "");
        let podman = Podman::find(&host, runtime);
        let mut bench = Bench::new(&installation, runtime, podman);
        bench.jobs();
        bench.script_steps();
        bench.container_steps();
        println!("load average: {}", fs::read_to_string("/proc/loadavg").unwrap());
    }
}

struct Bench<'a> {
    runtime: TestRuntime,
    installation: &'a HookInstallation<'a>,
    runner: GithubRunner<'a>,
    podman: Option<Podman<'a>>,
}

impl<'a> Bench<'a> {
    fn new(
        installation: &'a HookInstallation<'a>,
        runtime: TestRuntime,
        podman: Option<Podman<'a>>,
    ) -> Self {
        let runner = GithubRunner::new(installation, "bench");
        let mut bench = Self { runtime, installation, runner, podman };
        // Pulls the images.
        bench.prepare(&[redis()]);
        bench.runner.cleanup();
        bench
    }

    fn prepare(&mut self, services: &[Value]) -> (Duration, Value) {
        let args = json!({"container": self.runner.job_container("node:22"), "services": services});
        let ended = self.runner.call("prepare_job", args).success();
        (ended.took, ended.response.unwrap())
    }

    fn jobs(&mut self) {
        let bundle = BusyboxBundle::new_in(Path::new("/dev/shm"), "exec sleep 1000");
        let [mut bare_run, mut bare_delete]: [Vec<Duration>; 2] = Default::default();
        let mut figures: [Vec<Duration>; 6] = Default::default();
        for _ in 0..RUNS {
            let run = ["run", "--detach", "--bundle", bundle.path_str(), "bare"];
            bare_run.push(self.time_bare(&bundle, &run));
            bare_delete.push(self.time_bare(&bundle, &["delete", "--force", "bare"]));
            for (services, at) in [(vec![], 0), (vec![redis()], 2)] {
                figures[at].push(self.prepare(&services).0);
                figures[at + 1].push(self.runner.cleanup().took);
            }
            if let Some(podman) = &self.podman {
                figures[4].push(
                    podman.time(&["run", "--detach", "--name", "job", IMAGE, "sleep", "1000"]),
                );
                figures[5].push(podman.time(&["rm", "--force", "--time", "0", "job"]));
            }
        }
        let [prepare, cleanup, with_service, cleanup_two, podman_run, podman_rm] = figures;
        self.report("prepare_job, image there", &prepare, &bare_run, &podman_run);
        self.report("prepare_job with a service", &with_service, &prepare, &[]);
        self.report("cleanup_job", &cleanup, &bare_delete, &podman_rm);
        self.report("cleanup_job with a service", &cleanup_two, &cleanup, &[]);
    }

    fn script_steps(&mut self) {
        let response = self.prepare(&[]).1;
        let id = response["context"]["container"]["id"].as_str().unwrap().to_owned();
        if let Some(podman) = &self.podman {
            podman.time(&["run", "--detach", "--name", "job", IMAGE, "sleep", "1000"]);
        }
        let script = self.runner.temp().join("bare.sh");
        fs::write(script, "true").unwrap();
        let words = ["-e".to_owned(), "/__w/_temp/bare.sh".to_owned()];
        let args = self.runner.script_args("sh", &words, &[], "x");
        let state = &self.runner.state;
        let step = json!({"command": "run_script_step", "args": args, "state": state}).to_string();
        let [mut ours, mut bare, mut podman_exec]: [Vec<Duration>; 3] = Default::default();
        for _ in 0..RUNS {
            let host = self.installation.host();
            let run = |command: &mut Command, input: &str| {
                let start = Instant::now();
                program::run_by(command, input.as_bytes(), |c| host.enter(|| c.spawn())).success();
                start.elapsed()
            };
            let mut exec = self.runtime_command();
            exec.args(["exec", "--cwd", "/__w/repo/repo", &id, "sh", "-e", "/__w/_temp/bare.sh"]);
            // Podman evicts files from caches: the first command after it would be slower.
            run(&mut exec, "");
            // Includes the shell by which the runner starts the hook.
            ours.push(run(&mut self.runner.command(), &step));
            bare.push(run(&mut exec, ""));
            if let Some(podman) = &self.podman {
                podman_exec.push(podman.time(&["exec", "job", "sh", "-ec", "true"]));
            }
        }
        self.report("run_script_step", &ours, &bare, &podman_exec);
        if let Some(podman) = &self.podman {
            podman.time(&["rm", "--force", "--time", "0", "job"]);
        }
        self.runner.cleanup();
    }

    fn container_steps(&mut self) {
        self.prepare(&[]);
        let bundle = BusyboxBundle::new_in(Path::new("/dev/shm"), "true");
        let [mut ours, mut bare, mut podman_run]: [Vec<Duration>; 3] = Default::default();
        for _ in 0..RUNS {
            let step = json!({"image": "alpine:3.20", "entryPoint": "true"});
            ours.push(self.runner.container_step(step).0.success().took);
            let run = ["run", "--bundle", bundle.path_str(), "bare"];
            bare.push(self.time_bare(&bundle, &run));
            if let Some(podman) = &self.podman {
                podman_run.push(podman.time(&["run", "--rm", IMAGE, "true"]));
            }
        }
        self.report("run_container_step", &ours, &bare, &podman_run);
        self.runner.cleanup();
    }

    /// Measures a command of the runtime alone.
    fn time_bare(&self, bundle: &BusyboxBundle, words: &[&str]) -> Duration {
        let mut command = self.runtime.command();
        command.arg("--root").arg(bundle.path().join("state")).args(words);
        // `run --detach` keeps the output open.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        time(self.installation.host(), &mut command)
    }

    /// Returns a runtime command for the containers of the hook.
    fn runtime_command(&self) -> Command {
        let records = fs::read_dir(self.installation.run_directory().join("containers")).unwrap();
        let record = records.map(|entry| entry.unwrap().path().join("record.json")).next();
        let record: Value = serde_json::from_slice(&fs::read(record.unwrap()).unwrap()).unwrap();
        let mut command = self.runtime.command();
        command.arg("--root").arg(record["runtime"]["root"].as_str().unwrap());
        command
    }

    fn report(&self, what: &str, ours: &[Duration], bare: &[Duration], podman: &[Duration]) {
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        let show = |times: &[Duration]| match (median(times), times.iter().min()) {
            (Some(median), Some(least)) => {
                format!("{:.1} ({:.1})", milliseconds(median), milliseconds(*least))
            }
            _ => "-".to_owned(),
        };
        let added = median(ours).zip(median(bare));
        let added = added.map(|(ours, bare)| milliseconds(ours) - milliseconds(bare));
        println!(
            "{:34} {:>14} {:>14} {:>8} {:>14}",
            format!("{} {what}", self.runtime),
            show(ours),
            show(bare),
            added.map_or("-".to_owned(), |added| format!("{added:.1}")),
            show(podman)
        );
    }
}

fn redis() -> Value {
    let health = "--health-cmd \"redis-cli ping\" --health-interval 10s";
    merge(container("redis:7"), json!({"createOptions": health, "portMappings": ["6379"]}))
}

fn median(times: &[Duration]) -> Option<Duration> {
    let mut times = times.to_vec();
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

fn time(host: &TestHost, command: &mut Command) -> Duration {
    let start = Instant::now();
    host.run(command).success();
    start.elapsed()
}

const IMAGE: &str = "docker.io/library/node:22";

/// Podman with its own storage in the test host.
struct Podman<'h> {
    host: &'h TestHost,
    runtime: TestRuntime,
}

impl<'h> Podman<'h> {
    fn find(host: &'h TestHost, runtime: TestRuntime) -> Option<Self> {
        if !Path::new("/usr/bin/podman").is_file() {
            return None;
        }
        let podman = Self { host, runtime };
        podman.time(&["pull", "--quiet", IMAGE]);
        Some(podman)
    }

    fn time(&self, words: &[&str]) -> Duration {
        let directory = self.host.path().join("podman");
        let mut command = Command::new("/usr/bin/podman");
        command.arg("--root").arg(directory.join("root"));
        command.arg("--runroot").arg(directory.join("run"));
        command.args(["--cgroup-manager", "cgroupfs", "--events-backend", "file"]);
        command.arg("--runtime").arg(self.runtime.command().get_program());
        time(self.host, command.args(words))
    }
}

impl Drop for Podman<'_> {
    fn drop(&mut self) {
        program::run(Command::new("rm").arg("-rf").arg(self.host.path().join("podman")));
    }
}
