//! Measures the calls of GitHub's runner in a cluster, bare pods and execs, and the reference hook if given,
//! in turn on one cluster. Prints medians and ranges of the wall-clock time.
//!
//! `cargo bench -p container-hook --bench kubernetes`, as root; builds a cluster first, which takes
//! minutes the first time. `OCI_HOOKS_REFERENCE` is a bash script that runs the reference hook with the runner's
//! environment and request; on servers before 1.30 it needs a proxy that ends standard input.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "prints figures; what fails panics")]

#[path = "../tests/root/cluster/setup.rs"]
#[expect(dead_code, reason = "tests use more of it")]
mod setup;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, AttachParams, DeleteParams, PostParams};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use oci_hooks_testsupport::call::RunningCall;
use oci_hooks_testsupport::github_runner::{GithubRunner, InstalledHook};
use serde_json::{Value, json};
use setup::NamespaceHook;
use tokio::runtime::Runtime;

const RUNS: usize = 10;
const STEPS: usize = 3;
const FILES: usize = 10_000;
const OUTPUT_BYTES: usize = 200_000_000;

fn main() {
    let cluster = setup::cluster();
    // As by default in a runner's pod.
    let has_volumes = if cluster.minor() >= 35 { "image-volumes = true" } else { "" };
    let pods = NamespaceHook::with(&cluster, &format!("[kubernetes]\n{has_volumes}\n"));
    let reference = std::env::var_os("OCI_HOOKS_REFERENCE").map(PathBuf::from);
    let reference = reference.map(|script| Reference { pods: &pods, script });
    let bare = Bare::new(&pods);
    println!(
        "time on the clock, median (range) of {RUNS} jobs in turn, {STEPS} script steps in each\n"
    );
    println!("{:40} {:>20} {:>20} {:>20}", "", "ours", "reference", "bare");
    let mut ours = pods.runner("bench-ours");
    let mut theirs = reference.as_ref().map(|reference| {
        pods.make_runner_pod("bench-reference", json!({}));
        GithubRunner::new(reference, "bench-reference")
    });
    // Pulls the images.
    job(&mut ours, &mut Figures::default());
    let [mut of_ours, mut of_theirs, mut of_bare]: [Figures; 3] = Default::default();
    for _ in 0..RUNS {
        job(&mut ours, &mut of_ours);
        if let Some(theirs) = &mut theirs {
            job(theirs, &mut of_theirs);
        }
        bare.job(&mut of_bare);
    }
    let rows = of_ours.rows().into_iter().zip(of_theirs.rows()).zip(of_bare.rows());
    for (((what, ours), (_, theirs)), (_, bare)) in rows {
        println!("{what:40} {:>20} {:>20} {:>20}", show(ours), show(theirs), show(bare));
    }
    let ours = measure_many_files(&mut ours);
    let theirs = theirs.as_mut().map(measure_many_files).unwrap_or_default();
    let what = format!("prepare_job with {FILES} files");
    println!("{what:40} {:>20} {:>20} {:>20}", show(&ours), show(&theirs), "-");
    memory(&pods);
}

#[derive(Default)]
struct Figures {
    prepare: Vec<Duration>,
    script: Vec<Duration>,
    container: Vec<Duration>,
    cleanup: Vec<Duration>,
}

impl Figures {
    fn rows(&self) -> [(&'static str, &[Duration]); 4] {
        [
            ("prepare_job; a pod until it runs", &self.prepare),
            ("run_script_step; an exec", &self.script),
            ("run_container_step; a pod until it ended", &self.container),
            ("cleanup_job", &self.cleanup),
        ]
    }
}

/// Runs a job.
fn job<H: InstalledHook>(runner: &mut GithubRunner<'_, H>, figures: &mut Figures) {
    figures.prepare.push(prepare(runner));
    for _ in 0..STEPS {
        figures.script.push(runner.run("true").success().took);
    }
    // The reference needs an entry point.
    let step = json!({"image": "alpine:3.20", "entryPoint": "true"});
    figures.container.push(runner.container_step(step).0.success().took);
    figures.cleanup.push(runner.cleanup().took);
}

fn prepare<H: InstalledHook>(runner: &mut GithubRunner<'_, H>) -> Duration {
    let args = json!({"container": runner.job_container("node:22"), "services": []});
    runner.call("prepare_job", args).success().took
}

/// Measures jobs whose workspace has many files.
fn measure_many_files<H: InstalledHook>(runner: &mut GithubRunner<'_, H>) -> Vec<Duration> {
    let directory = runner.workspace().join("many");
    for number in 0..FILES {
        let directory = directory.join((number % 100).to_string());
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(number.to_string()), number.to_string()).unwrap();
    }
    let took = prepare(runner);
    runner.cleanup();
    vec![took]
}

/// The reference hook, with the settings of ours.
struct Reference<'a> {
    pods: &'a NamespaceHook<'a>,
    script: PathBuf,
}

impl InstalledHook for Reference<'_> {
    fn runners(&self) -> &std::path::Path {
        self.pods.runners()
    }

    fn entry(&self) -> PathBuf {
        self.script.clone()
    }

    fn variables(&self, runner: &str) -> Vec<(String, String)> {
        let mut variables = self.pods.variables(runner);
        let image = "ghcr.io/actions/actions-runner:latest".to_owned();
        variables.push(("ACTIONS_RUNNER_IMAGE".to_owned(), image));
        variables
    }

    fn start(&self, command: Command, request: Vec<u8>, response: Option<PathBuf>) -> RunningCall {
        self.pods.start(command, request, response)
    }
}

/// Pods and execs without a hook.
struct Bare {
    runtime: Runtime,
    pods: Api<Pod>,
}

impl Bare {
    fn new(pods: &NamespaceHook<'_>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let variables = pods.variables("bare");
        let file = &variables.iter().find(|(name, _)| name == "KUBECONFIG").unwrap().1;
        let file = Kubeconfig::read_from(file).unwrap();
        let pods = runtime.block_on(async {
            let options = KubeConfigOptions::default();
            let config = Config::from_custom_kubeconfig(file, &options).await.unwrap();
            Api::default_namespaced(kube::Client::try_from(config).unwrap())
        });
        Self { runtime, pods }
    }

    fn job(&self, figures: &mut Figures) {
        self.runtime.block_on(async {
            figures.prepare.push(self.pod("bare", &["sleep", "1000"], "Running").await);
            for _ in 0..STEPS {
                let begin = Instant::now();
                let params = AttachParams::default();
                let mut exec = self.pods.exec("bare", ["true"], &params).await.unwrap();
                let status = exec.take_status().unwrap().await.unwrap();
                figures.script.push(begin.elapsed());
                assert_eq!(status.status.as_deref(), Some("Success"));
            }
            figures.container.push(self.pod("ends", &["true"], "Succeeded").await);
            let begin = Instant::now();
            self.delete("bare").await;
            figures.cleanup.push(begin.elapsed());
            self.delete("ends").await;
        });
    }

    async fn pod(&self, name: &str, command: &[&str], phase: &str) -> Duration {
        let pod: Value = json!({
            "metadata": {"name": name},
            "spec": {"restartPolicy": "Never", "containers": [{
                "name": "job", "image": "alpine:3.20", "command": command,
                "imagePullPolicy": "IfNotPresent",
            }]},
        });
        let begin = Instant::now();
        let pod: Pod = serde_json::from_value(pod).unwrap();
        self.pods.create(&PostParams::default(), &pod).await.unwrap();
        loop {
            let pod = self.pods.get(name).await.unwrap();
            if pod.status.and_then(|status| status.phase).as_deref() == Some(phase) {
                return begin.elapsed();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn delete(&self, name: &str) {
        self.pods.delete(name, &DeleteParams::default().grace_period(0)).await.unwrap();
        while self.pods.get_opt(name).await.unwrap().is_some() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn show(times: &[Duration]) -> String {
    let mut times: Vec<_> = times.iter().map(Duration::as_millis).collect();
    times.sort_unstable();
    match times.get(times.len() / 2) {
        Some(median) => format!("{median} ({}–{})", times[0], times[times.len() - 1]),
        None => "-".to_owned(),
    }
}

/// Prints the memory of a step with much output.
fn memory(pods: &NamespaceHook<'_>) {
    let mut runner = pods.runner("bench-memory");
    prepare(&mut runner);
    let script = format!(
        "head -c {OUTPUT_BYTES} /dev/zero | tr '\\0' x\n\
         for status in /proc/[0-9]*/status; do\n\
         grep -q '^Name:.agent$' $status && sed -n 's/^VmHWM:[^0-9]*/\\nagent /p' $status\n\
         done; true"
    );
    let call = runner.start_run(&script);
    let status = format!("/proc/{}/status", call.id());
    let mut most = 0;
    while let Some(now) = peak_kilobytes(&fs::read_to_string(&status).unwrap_or_default()) {
        most = most.max(now);
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = call.wait().success().stdout();
    let agents = output.lines().filter_map(|line| line.strip_prefix("agent "));
    let agents: Vec<_> = agents.collect();
    println!("\nmemory of a step that writes {OUTPUT_BYTES} bytes: the hook's {most} kB");
    println!("of the agent's processes: {}", agents.join(", "));
    runner.cleanup();
}

/// Returns the peak memory from `/proc/PID/status`; none if the process has ended.
fn peak_kilobytes(status: &str) -> Option<u64> {
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    peak.trim().strip_suffix(" kB")?.parse().ok()
}
