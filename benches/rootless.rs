//! What a job takes of a user who is not root, beside the same job by root and by rootless podman, in turn on
//! one machine. Prints medians of the time on the clock, ratios, and the bars that they have to keep.
//!
//! `cargo bench --bench rootless --features full`, as root; needs runc, crun, docker-registry,
//! busybox-static, passt, slirp4netns, uidmap, and podman. `OCI_HOOKS_ROUNDS=21` has that many rounds.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "prints figures; what fails panics")]

#[path = "../tests/support/mod.rs"]
mod containers;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use containers::by_user::ByUser;
use containers::github_runner::{Runner, container, merge};
use containers::hub::{Name, Registry};
use containers::program;
use containers::runtime::Runtime;
use containers::world::{Ids, User, World};
use serde_json::{Value, json};

const ROUNDS: usize = 11;
/// How often a step is run in a round.
const STEPS: usize = 3;

const JOB: &str = "docker.io/library/node:22";
const SERVICE: &str = "docker.io/library/redis:7";

fn main() {
    let rounds = std::env::var("OCI_HOOKS_ROUNDS").map_or(ROUNDS, |text| text.parse().unwrap());
    println!(
        "a job with a service; time on the clock, median (least - most) of {rounds} rounds in turn\n"
    );
    for runtime in Runtime::ALL {
        let world = World::new();
        let _hub = Registry::start(world.host(), Name::Hub, None);
        let users = [world.user(Ids::Ranges), world.user(Ids::None), world.user(Ids::Ranges)];
        let installations = [None, Some(&users[0]), Some(&users[1])]
            .map(|user| ByUser::new(&world, user, runtime, ""));
        let [root, ranges, single] =
            installations.each_ref().map(|installation| installation.runner("bench"));
        let mut contestants = [
            Contestant::new("root", Engine::Ours(root)),
            Contestant::new("user", Engine::Ours(ranges)),
            Contestant::new("user without ids", Engine::Ours(single)),
            Contestant::new("podman", Engine::Podman(Podman::new(&world, &users[2], runtime))),
        ];
        // Once, for the images.
        for contestant in &mut contestants {
            contestant.round();
            contestant.figures = Figures::default();
        }
        for _ in 0..rounds {
            for contestant in &mut contestants {
                contestant.round();
            }
        }
        report(runtime, &contestants);
    }
}

/// What one of them took.
#[derive(Default)]
struct Figures {
    prepare: Vec<Duration>,
    step: Vec<Duration>,
    cleanup: Vec<Duration>,
}

enum Engine<'a> {
    Ours(Runner<'a, ByUser<'a>>),
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
    fn round(&mut self) {
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

/// Returns a service that is ready when it runs.
fn service() -> Value {
    merge(container("redis:7"), json!({"portMappings": []}))
}

/// Podman of a user, with the native overlay.
struct Podman<'w> {
    world: &'w World,
    user: &'w User,
    runtime: PathBuf,
}

/// Runs crun where it is not shown cgroup v2 beside v1, which it refuses: what a user has of the host's
/// mounts can be covered, but not taken away.
const CRUN: &str = r#"#!/bin/sh
grep -q ' /sys/fs/cgroup/unified ' /proc/self/mounts || exec crun "$@"
exec unshare --mount --propagation slave \
    sh -c 'mount -t tmpfs tmpfs /sys/fs/cgroup/unified && exec crun "$@"' crun "$@"
"#;

impl<'w> Podman<'w> {
    fn new(world: &'w World, user: &'w User, runtime: Runtime) -> Self {
        let runtime = match runtime {
            Runtime::Runc => program::find("runc"),
            Runtime::Crun => {
                let path = world.host().path().join("bin/crun");
                program::write_program(&path, CRUN);
                path
            }
        };
        let podman = Self { world, user, runtime };
        // By itself it may choose to copy all files.
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

/// Prints what they took, and how that is to what it has to be.
fn report(runtime: Runtime, contestants: &[Contestant<'_>; 4]) {
    println!("{runtime:18} {:>26} {:>26} {:>26}", "prepare", "step", "cleanup");
    for Contestant { name, figures, .. } in contestants {
        let [prepare, step, cleanup] =
            [&figures.prepare, &figures.step, &figures.cleanup].map(|times| show(times));
        println!("{name:18} {prepare:>26} {step:>26} {cleanup:>26}");
    }
    let [root, user, single, podman] = contestants.each_ref().map(|contestant| {
        let Figures { prepare, step, cleanup } = &contestant.figures;
        [prepare, step, cleanup].map(|times| median(times))
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

fn median(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    times[times.len() / 2]
}

fn show(times: &[Duration]) -> String {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let least = ms(*times.iter().min().unwrap());
    let most = ms(*times.iter().max().unwrap());
    format!("{:.1} ms ({least:.0} - {most:.0})", ms(median(times)))
}
