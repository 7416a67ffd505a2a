//! Duration of GARM's calls of `garm-provider-runc`, alternating with the runtime alone on an identical bundle. Prints
//! median and minimum of the wall-clock time, the ratio and the load.
//!
//! `cargo bench -p garm-provider-runc --bench garm`, as root; needs runc, crun, docker-registry and
//! busybox-static. `OCI_HOOKS_INSTANCES` is the number of other instances, 200 by default.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "prints figures; what fails panics")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use oci_hooks_testsupport::garm::installation::ProviderInstallation;
use oci_hooks_testsupport::garm::provider::ProviderCaller;
use oci_hooks_testsupport::garm::server::GarmServer;
use oci_hooks_testsupport::host::TestHost;
use oci_hooks_testsupport::leftovers::InstalledProgram as _;
use oci_hooks_testsupport::measure::median_ms;
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::TestRuntime;
use serde_json::{Value, json};

const RUNS: usize = 31;

/// Default number of other instances.
const MANY: usize = 200;

const IMAGES: &str = "[images.present]\nreference = \"docker.io/garm/runner:1\"\n\
    pull = \"missing\"\n[images.asked]\nreference = \"docker.io/garm/runner:1\"\npull = \"always\"\n\
    [images.bare]\nreference = \"docker.io/garm/base:1\"\npull = \"missing\"\n";

fn main() {
    let many = env::var("OCI_HOOKS_INSTANCES").map_or(MANY, |text| text.parse().unwrap());
    println!("time on the clock, median and minimum of {RUNS} runs in turn\n");
    for runtime in TestRuntime::ALL {
        let host = TestHost::new();
        let bench = GarmBench {
            installation: ProviderInstallation::new(&host, runtime, IMAGES),
            garm: GarmServer::start(&host),
            runtime,
        };
        let bundle = bench.measure_calls();
        bench.measure_many(many, &bundle);
    }
}

struct GarmBench<'h> {
    installation: ProviderInstallation<'h>,
    garm: GarmServer,
    runtime: TestRuntime,
}

impl GarmBench<'_> {
    fn provider(&self) -> ProviderCaller<'_> {
        ProviderCaller::new(&self.installation)
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

    /// Measures the calls, and returns the bundle for the runtime alone, which uses the files of the instance `model`.
    fn measure_calls(&self) -> PathBuf {
        for image in ["present", "bare"] {
            self.create("first", image);
            self.delete("first");
        }
        self.create("model", "present");
        let bundle = self.bundle();
        self.compare_calls("alone", &bundle);
        let [mut asked, mut layered]: [Vec<_>; 2] = Default::default();
        for _ in 0..RUNS {
            asked.push(self.create("one", "asked"));
            self.delete("one");
            layered.push(self.create("one", "bare"));
            self.delete("one");
        }
        self.report("CreateInstance, registry asked", &asked);
        self.report("CreateInstance, runner from its layer", &layered);
        bundle
    }

    /// Measures CreateInstance and DeleteInstance, alternating with the runtime alone.
    fn compare_calls(&self, beside: &str, bundle: &Path) {
        let [mut created, mut line, mut deleted, mut bare_run, mut bare_delete]: [Vec<_>; 5] =
            Default::default();
        for _ in 0..RUNS {
            let start = Instant::now();
            created.push(self.create("one", "present"));
            self.installation.wait_for_log("one", "@ cwd");
            line.push(start.elapsed());
            deleted.push(self.delete("one"));
            let run = ["run", "--detach", "--bundle", bundle.to_str().unwrap(), "bare"];
            bare_run.push(self.time_bare(&run));
            bare_delete.push(self.time_bare(&["delete", "--force", "bare"]));
        }
        let call = format!("CreateInstance, {beside}");
        self.compare(&call, &created, ("run --detach", &bare_run));
        self.report("  from the call to the runner's line", &line);
        let call = format!("DeleteInstance, {beside}, runner at work");
        self.compare(&call, &deleted, ("delete --force", &bare_delete));
    }

    /// Prints the times of a call and of a command of the runtime alone, the ratios, and the load.
    fn compare(&self, call: &str, ours: &[Duration], (command, bare): (&str, &[Duration])) {
        self.report(call, ours);
        self.report(&format!("  the runtime alone: {command}"), bare);
        let load = fs::read_to_string("/proc/loadavg").unwrap();
        println!(
            "{:52} {:>7.2}, minimum {:.2}, load {}",
            format!("{}   ratio", self.runtime),
            median_ms(ours) / median_ms(bare),
            minimum_ms(ours) / minimum_ms(bare),
            load.split(' ').next().unwrap()
        );
    }

    fn measure_many(&self, many: usize, bundle: &Path) {
        thread::scope(|scope| {
            for first in 0..8 {
                scope.spawn(move || {
                    for number in (first..many).step_by(8) {
                        self.create(&format!("many-{number}"), "present");
                    }
                });
            }
        });
        for number in 0..many {
            self.installation.wait_for_log(&format!("many-{number}"), "@ cwd");
        }
        self.compare_calls(&format!("beside {many}"), bundle);
        let listed: Vec<_> = (0..RUNS).map(|_| self.list()).collect();
        self.report(&format!("ListInstances of {many}"), &listed);
        self.memory();
        let start = Instant::now();
        self.provider().remove_all();
        println!(
            "{:52} {:>7.1} ms\n",
            format!("{} RemoveAllInstances of {many}", self.runtime),
            start.elapsed().as_secs_f64() * 1e3
        );
    }

    /// Prints the memory of a supervisor: resident, and private.
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
            "{:52} {:>6} KiB, {} KiB its own, of {} supervisors",
            format!("{} memory of a supervisor", self.runtime),
            rss[rss.len() / 2],
            own[own.len() / 2],
            supervisors.len()
        );
    }

    /// Creates a copy of the only instance's bundle, with the same root file system. Mounts of the instance are visible
    /// only in its mount namespace, so the copy has files with the same content.
    fn bundle(&self) -> PathBuf {
        let containers = self.installation.run_directory().join("containers");
        let model = fs::read_dir(containers).unwrap().next().unwrap().unwrap().path();
        let file = find(&model, "config.json").expect("it has a bundle");
        let mut config: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        let root = Path::new(config["root"]["path"].as_str().unwrap());
        let root = file.parent().unwrap().join(root);
        // Root of a user namespace needs search permission like any other user.
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

    /// Returns the root directory of the only instance, in the mount namespace of its first process.
    fn inside(&self, program: &str) -> PathBuf {
        let processes = self.installation.host().processes();
        let first = processes.iter().find(|process| process.line.starts_with(program));
        let pid = first.unwrap_or_else(|| panic!("{program} does not run")).pid;
        Path::new("/proc").join(pid.to_string()).join("root")
    }

    /// Measures a command of the runtime alone.
    fn time_bare(&self, words: &[&str]) -> Duration {
        let host = self.installation.host();
        let mut command = self.runtime.command();
        command.arg("--root").arg(host.path().join("bare-state")).args(words);
        let start = Instant::now();
        host.run(&mut command).success();
        start.elapsed()
    }

    fn report(&self, what: &str, times: &[Duration]) {
        println!(
            "{:52} {:>7.1} ms, minimum {:.1} ms",
            format!("{} {what}", self.runtime),
            median_ms(times),
            minimum_ms(times)
        );
    }
}

fn minimum_ms(times: &[Duration]) -> f64 {
    times.iter().min().unwrap().as_secs_f64() * 1e3
}

fn find(directory: &Path, name: &str) -> Option<PathBuf> {
    let file = directory.join(name);
    if file.is_file() {
        return Some(file);
    }
    // Mounts below `rootfs` belong to the instance.
    let entries = fs::read_dir(directory).ok()?.flatten().filter(|e| e.file_name() != "rootfs");
    let directories = entries.map(|entry| entry.path()).filter(|path| path.is_dir());
    directories.into_iter().find_map(|path| find(&path, name))
}
