//! Measures a job of an ordinary user, of root, and of rootless podman, in turn on one machine. Prints
//! medians of the wall-clock time, ratios, and their limits.
//!
//! `cargo bench -p container-hook --bench rootless`, as root; needs runc, crun, docker-registry,
//! busybox-static, passt, slirp4netns, uidmap, and podman. `OCI_HOOKS_ROUNDS=21` sets the number of rounds.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "prints figures; what fails panics")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use oci_hooks_testsupport::by_user::UserInstallation;
use oci_hooks_testsupport::github_runner::{GithubRunner, container, merge};
use oci_hooks_testsupport::hub::{HostRegistry, RegistryName};
use oci_hooks_testsupport::measure::median;
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::TestRuntime;
use oci_hooks_testsupport::world::{UserIds, UserWorld, WorldUser};
use serde_json::{Value, json};

const ROUNDS: usize = 11;
/// Number of steps in a round.
const STEPS: usize = 3;

const JOB: &str = "docker.io/library/node:22";
const SERVICE: &str = "docker.io/library/redis:7";

fn main() {
    let rounds = std::env::var("OCI_HOOKS_ROUNDS").map_or(ROUNDS, |text| text.parse().unwrap());
    println!(
        "a job with a service; time on the clock, median (least - most) of {rounds} rounds in turn\n"
    );
    for runtime in TestRuntime::ALL {
        let world = UserWorld::new();
        let _hub = HostRegistry::start(world.host(), RegistryName::Hub, None);
        let users =
            [world.user(UserIds::Ranges), world.user(UserIds::None), world.user(UserIds::Ranges)];
        let installations = [None, Some(&users[0]), Some(&users[1])]
            .map(|user| UserInstallation::new(&world, user, runtime, ""));
        let [root, ranges, single] =
            installations.each_ref().map(|installation| installation.runner("bench"));
        let mut contestants = [
            Contestant::new("root", Engine::Ours(root)),
            Contestant::new("user", Engine::Ours(ranges)),
            Contestant::new("user without ids", Engine::Ours(single)),
            Contestant::new("podman", Engine::Podman(Podman::new(&world, &users[2], runtime))),
        ];
        // Pulls the images.
        for contestant in &mut contestants {
            contestant.run_job();
            contestant.figures = Figures::default();
        }
        for _ in 0..rounds {
            for contestant in &mut contestants {
                contestant.run_job();
            }
        }
        report(runtime, &contestants);
    }
}

/// Times of a contestant.
#[derive(Default)]
struct Figures {
    prepare: Vec<Duration>,
    step: Vec<Duration>,
    cleanup: Vec<Duration>,
}

enum Engine<'a> {
    Ours(GithubRunner<'a, UserInstallation<'a>>),
    Podman(Podman<'a>),
}

struct Contestant<'a> {
    name: &'static str,
    engine: Engine<'a>,
    figures: Figures,
}

impl<'a> Contestant<'a> {
    fn new(name: &'static str, engine: Engine<'a>) -> Self {
        Self { name, engine, figures: Figures::default() }
    }

    /// Runs a job.
    fn run_job(&mut self) {
        let figures = &mut self.figures;
        match &mut self.engine {
            Engine::Ours(runner) => {
                let job = runner.job_container("node:22");
                let args = json!({"container": job, "services": [service()]});
                figures.prepare.push(runner.call("prepare_job", args).success().took);
                let script = runner.temp().join("bench.sh");
                fs::write(script, "true").unwrap();
                let words = ["-e".to_owned(), "/__w/_temp/bench.sh".to_owned()];
                for _ in 0..STEPS {
                    let args = runner.script_args("sh", &words, &[], "x");
                    figures.step.push(runner.call("run_script_step", args).success().took);
                }
                figures.cleanup.push(runner.cleanup().took);
            }
            Engine::Podman(podman) => {
                let start = Instant::now();
                podman.call(&["network", "create", "job"]);
                let run = ["run", "--detach", "--network", "job", "--name"];
                podman.call(&[&run[..], &["redis", SERVICE]].concat());
                podman.call(&[&run[..], &["job", JOB, "sleep", "1000"]].concat());
                figures.prepare.push(start.elapsed());
                for _ in 0..STEPS {
                    figures.step.push(podman.time(&["exec", "job", "sh", "-ec", "true"]));
                }
                let start = Instant::now();
                podman.call(&["rm", "--force", "--time", "0", "job", "redis"]);
                podman.call(&["network", "rm", "job"]);
                figures.cleanup.push(start.elapsed());
            }
        }
    }
}

/// Returns a service without a health check.
fn service() -> Value {
    merge(container("redis:7"), json!({"portMappings": []}))
}

/// Podman of a user, with the native overlay.
struct Podman<'w> {
    world: &'w UserWorld,
    user: &'w WorldUser,
    runtime: PathBuf,
}

/// Runs crun in a mount namespace that hides the hybrid cgroup hierarchy, which crun rejects. A user can cover the
/// host's mounts, but not remove them.
const CRUN: &str = r#"#!/bin/sh
grep -q ' /sys/fs/cgroup/unified ' /proc/self/mounts || exec crun "$@"
exec unshare --mount --propagation slave \
    sh -c 'mount -t tmpfs tmpfs /sys/fs/cgroup/unified && exec crun "$@"' crun "$@"
"#;

impl<'w> Podman<'w> {
    fn new(world: &'w UserWorld, user: &'w WorldUser, runtime: TestRuntime) -> Self {
        let runtime = match runtime {
            TestRuntime::Runc => program::find("runc"),
            TestRuntime::Crun => {
                let path = world.host().path().join("bin/crun");
                program::write_program(&path, CRUN);
                path
            }
        };
        let podman = Self { world, user, runtime };
        // By default podman may copy all files.
        world.shell_as(
            user,
            "mkdir -p .config/containers; printf '[storage]\\ndriver = \"overlay\"\\n' \
             >.config/containers/storage.conf",
        );
        for image in [JOB, SERVICE] {
            podman.call(&["pull", "--quiet", image]);
        }
        let driver = podman.call(&["info", "--format", "{{.Store.GraphDriverName}}"]);
        assert_eq!(driver.trim(), "overlay");
        podman
    }

    fn call(&self, words: &[&str]) -> String {
        let mut command = Command::new(program::find("podman"));
        command.args(["--cgroup-manager", "cgroupfs", "--events-backend", "file", "--runtime"]);
        command.arg(&self.runtime).args(words);
        self.world.run_as(self.user, &mut command).success()
    }

    fn time(&self, words: &[&str]) -> Duration {
        let start = Instant::now();
        self.call(words);
        start.elapsed()
    }
}

/// Prints the times of all contestants, and each ratio with its limit.
fn report(runtime: TestRuntime, contestants: &[Contestant<'_>; 4]) {
    println!("{runtime:18} {:>26} {:>26} {:>26}", "prepare", "step", "cleanup");
    for Contestant { name, figures, .. } in contestants {
        let [prepare, step, cleanup] =
            [&figures.prepare, &figures.step, &figures.cleanup].map(|times| show(times));
        println!("{name:18} {prepare:>26} {step:>26} {cleanup:>26}");
    }
    let [root, user, single, podman] = contestants.each_ref().map(|contestant| {
        let Figures { prepare, step, cleanup } = &contestant.figures;
        [prepare, step, cleanup].map(|times| median(times.iter().copied()))
    });
    for (who, [prepare, step, cleanup]) in [("user", user), ("user without ids", single)] {
        let over = |ours: Duration, theirs: Duration| ours.as_secs_f64() / theirs.as_secs_f64();
        let ms = |more: u64| Duration::from_millis(more);
        bar(who, "prepare / podman", over(prepare, podman[0]), 0.4);
        let bound = root[0].mul_f64(1.1) + ms(60);
        bar(who, "prepare / (1.1 root + 60 ms)", over(prepare, bound), 1.0);
        bar(who, "step / (root + 2 ms)", over(step, root[1] + ms(2)), 1.0);
        bar(who, "step / podman", over(step, podman[1]), 0.5);
        bar(who, "cleanup / podman", over(cleanup, podman[2]), 0.15);
    }
    println!();
}

fn bar(who: &str, what: &str, is: f64, most: f64) {
    let verdict = if is <= most { "kept" } else { "MISSED" };
    println!("{who:18} {what:32} {is:5.2}, at most {most:.2}: {verdict}");
}

fn show(times: &[Duration]) -> String {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let least = ms(*times.iter().min().unwrap());
    let most = ms(*times.iter().max().unwrap());
    format!("{:.1} ms ({least:.0} - {most:.0})", ms(median(times.iter().copied())))
}
