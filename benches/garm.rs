//! What GARM's calls of `garm-provider-runc` take, with the runtime alone beside them on the same
//! bundle, on one machine in turn. Prints medians of the time on the clock.
//!
//! `cargo bench --bench garm --features full`, as root; needs runc, crun, docker-registry and
//! busybox-static.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "prints figures; what fails panics")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::garm::installation::Installation;
use support::garm::provider::Provider;
use support::garm::server::Garm;
use support::host::Host;
use support::leftovers::Installed as _;
use support::program;
use support::runtime::Runtime;

const RUNS: usize = 31;

/// How many instances are listed.
const MANY: usize = 200;

const IMAGES: &str = "[images.present]\nreference = \"docker.io/garm/runner:1\"\n\
    pull = \"missing\"\n[images.asked]\nreference = \"docker.io/garm/runner:1\"\npull = \"always\"\n\
    [images.bare]\nreference = \"docker.io/garm/base:1\"\npull = \"missing\"\n";

fn main() {
    println!("time on the clock, median of {RUNS} runs in turn\n");
    for runtime in Runtime::ALL {
        let host = Host::new();
        let bench = Bench {
            installation: Installation::new(&host, runtime, IMAGES),
            garm: Garm::start(&host),
            runtime,
        };
        bench.calls();
        bench.many();
    }
}

struct Bench<'h> {
    installation: Installation<'h>,
    garm: Garm,
    runtime: Runtime,
}

impl Bench<'_> {
    fn provider(&self) -> Provider<'_> {
        Provider::new(&self.installation)
    }

    fn create(&self, name: &str, image: &str) -> Duration {
        let document = self.garm.bootstrap(name, "exec sleep 1000", json!({"image": image}));
        self.provider().start_create(&document).wait().success().took
    }

    fn delete(&self, name: &str) -> Duration {
        self.provider().start("DeleteInstance", name, Vec::new()).wait().success().took
    }

    fn list(&self) -> Duration {
        self.provider().start("ListInstances", "", Vec::new()).wait().success().took
    }

    fn calls(&self) {
        for image in ["present", "bare"] {
            self.create("first", image);
            self.delete("first");
        }
        self.create("model", "present");
        let bundle = self.bundle();
        let [mut ours, mut bare, mut asked, mut layered, mut line, mut deleted]: [Vec<_>; 6] =
            Default::default();
        for _ in 0..RUNS {
            let start = Instant::now();
            ours.push(self.create("one", "present"));
            self.installation.wait_for_log("one", "@ cwd");
            line.push(start.elapsed());
            deleted.push(self.delete("one"));
            bare.push(self.bare(&bundle));
            asked.push(self.create("one", "asked"));
            self.delete("one");
            layered.push(self.create("one", "bare"));
            self.delete("one");
        }
        self.report("CreateInstance, image there", &ours);
        self.report("  the runtime alone: create, start", &bare);
        let ratio = median(&ours).as_secs_f64() / median(&bare).as_secs_f64();
        println!("{:44} {ratio:>10.2}", format!("{} ratio", self.runtime));
        self.report("CreateInstance, registry asked", &asked);
        self.report("CreateInstance, runner from its layer", &layered);
        self.report("from CreateInstance to the runner's line", &line);
        self.report("DeleteInstance, runner at work", &deleted);
        self.delete("model");
    }

    fn many(&self) {
        let next = std::sync::atomic::AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        if number >= MANY {
                            break;
                        }
                        self.create(&format!("many-{number}"), "present");
                    }
                });
            }
        });
        self.installation.wait_for_log("many-0", "@ cwd");
        let listed: Vec<_> = (0..RUNS).map(|_| self.list()).collect();
        self.report(&format!("ListInstances of {MANY}"), &listed);
        self.memory();
        let start = Instant::now();
        self.provider().remove_all();
        println!(
            "{:44} {:>7.1} ms\n",
            format!("{} RemoveAllInstances of {MANY}", self.runtime),
            start.elapsed().as_secs_f64() * 1e3
        );
    }

    /// Prints what a supervisor holds of memory: all of it, and its own part.
    fn memory(&self) {
        let program = self.installation.program().display().to_string();
        let processes = self.installation.host().processes();
        let supervisors: Vec<_> =
            processes.iter().filter(|p| p.line.starts_with(&program)).collect();
        let (mut rss, mut own) = (Vec::new(), Vec::new());
        for supervisor in &supervisors {
            let path = format!("/proc/{}/smaps_rollup", supervisor.pid);
            let text = self.installation.host().enter(|| fs::read_to_string(path));
            let Ok(text) = text else { continue };
            let sum = |names: &[&str]| -> u64 {
                let lines = text.lines().filter(|line| names.iter().any(|n| line.starts_with(n)));
                lines.filter_map(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
            };
            rss.push(sum(&["Rss:"]));
            own.push(sum(&["Private_Clean:", "Private_Dirty:"]));
        }
        rss.sort_unstable();
        own.sort_unstable();
        println!(
            "{:44} {:>6} KiB, {} KiB its own, of {} supervisors",
            format!("{} memory of a supervisor", self.runtime),
            rss[rss.len() / 2],
            own[own.len() / 2],
            supervisors.len()
        );
    }

    /// Makes a bundle that is the same as that of the only instance there is, on its root. Nobody else sees
    /// what is mounted into that one, so this one has files with the same content.
    fn bundle(&self) -> PathBuf {
        let containers = self.installation.run_directory().join("containers");
        let model = fs::read_dir(containers).unwrap().next().unwrap().unwrap().path();
        let file = find(&model, "config.json").expect("it has a bundle");
        let mut config: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        let root = Path::new(config["root"]["path"].as_str().unwrap());
        let root = file.parent().unwrap().join(root);
        // Root of a user namespace gets there as any user does.
        let below = |dir: &&Path| dir.starts_with(self.installation.host().path());
        for dir in root.ancestors().skip(1).take_while(below) {
            self.installation.host().shell(&format!("chmod o+x {}", dir.display()));
        }
        config["root"]["path"] = json!(root);
        config["linux"]["cgroupsPath"] = json!(format!("/{}", program::unique_name()));
        let bundle = self.installation.host().path().join("bare");
        fs::create_dir(&bundle).unwrap();
        let inside = self.inside(config["process"]["args"][0].as_str().unwrap());
        let mounts = config["mounts"].as_array_mut().unwrap().iter_mut();
        for (at, mount) in mounts.filter(|mount| mount["type"] == "bind").enumerate() {
            let destination = mount["destination"].as_str().unwrap().trim_start_matches('/');
            let (source, original) = (bundle.join(at.to_string()), inside.join(destination));
            self.installation.host().enter(|| {
                if original.is_dir() {
                    fs::create_dir(&source).unwrap();
                } else {
                    fs::copy(&original, &source).unwrap();
                }
            });
            mount["source"] = json!(source);
        }
        fs::write(bundle.join("config.json"), config.to_string()).unwrap();
        bundle
    }

    /// Returns the root directory of the only instance as its first process sees it.
    fn inside(&self, program: &str) -> PathBuf {
        let processes = self.installation.host().processes();
        let first = processes.iter().find(|process| process.line.starts_with(program));
        let pid = first.unwrap_or_else(|| panic!("{program} does not run")).pid;
        Path::new("/proc").join(pid.to_string()).join("root")
    }

    /// Has the runtime alone create and start a container.
    fn bare(&self, bundle: &Path) -> Duration {
        let host = self.installation.host();
        let call = |words: &[&str]| {
            let mut command: Command = self.runtime.command();
            command.arg("--root").arg(host.path().join("bare-state")).args(words);
            host.run(&mut command).success();
        };
        let start = Instant::now();
        call(&["create", "--bundle", bundle.to_str().unwrap(), "bare"]);
        call(&["start", "bare"]);
        let took = start.elapsed();
        call(&["delete", "--force", "bare"]);
        took
    }

    fn report(&self, what: &str, times: &[Duration]) {
        let mut sorted = times.to_vec();
        sorted.sort_unstable();
        let at = |part: usize| sorted[sorted.len() * part / 100].as_secs_f64() * 1e3;
        println!(
            "{:44} {:>7.1} ms, 9 of 10 below {:.1} ms",
            format!("{} {what}", self.runtime),
            at(50),
            at(90)
        );
    }
}

fn median(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    times[times.len() / 2]
}

fn find(directory: &Path, name: &str) -> Option<PathBuf> {
    let file = directory.join(name);
    if file.is_file() {
        return Some(file);
    }
    // What is mounted below belongs to the instance.
    let entries = fs::read_dir(directory).ok()?.flatten().filter(|e| e.file_name() != "rootfs");
    let directories = entries.map(|entry| entry.path()).filter(|path| path.is_dir());
    directories.into_iter().find_map(|path| find(&path, name))
}
