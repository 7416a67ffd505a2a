//! Overhead of `oci-hooks-runtime` for a runtime's `create`, with 20 hook files of which 3 match, and
//! for a command that it passes on. Prints the wall-clock time, the ratio and the overhead, and
//! the sizes of the programs. `true` in place of a runtime measures the wrapper alone.
//!
//! `cargo bench -p oci-hooks-runtime --bench runtime`, as root; needs runc, crun and busybox-static.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "prints figures; what fails panics")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use oci_hooks_testsupport::bundle::BusyboxBundle;
use oci_hooks_testsupport::measure::{RunCost, median, run};
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::TestRuntime;

const RUNS: usize = 61;
const WRAPPER: &str = env!("CARGO_BIN_EXE_oci-hooks-runtime");

fn main() {
    println!("time on the clock, median of {RUNS} runs in turn");
    println!(
        "{:32} {:>11} {:>11} {:>7} {:>11} {:>11}",
        "", "alone", "wrapped", "ratio", "added", "added CPU"
    );
    // Docker's and containerd's bundles are on /run, which is a tmpfs; podman's are on a disk.
    for directory in [std::env::temp_dir(), PathBuf::from("/dev/shm")] {
        let hooks = BenchHooks::new(&directory);
        let runtimes = TestRuntime::ALL.map(|runtime| runtime.command().get_program().into());
        for runtime in runtimes.into_iter().chain([PathBuf::from("/bin/true")]) {
            let name = runtime.file_stem().unwrap().to_string_lossy();
            let container = BenchContainer::new(&runtime, &hooks, &directory);
            report(&format!("{name} create in {}", directory.display()), &container.creations());
            report(&format!("{name} state"), &container.states());
        }
    }
    println!();
    for path in [program::built_program("oci-hooks"), PathBuf::from(WRAPPER)] {
        let name = path.file_name().unwrap().to_string_lossy();
        println!("{name:32} {:>8} KiB", fs::metadata(&path).unwrap().len() / 1024);
    }
}

fn report(what: &str, costs: &[(RunCost, RunCost)]) {
    let wrapped = median(costs.iter().map(|(ours, _)| ours.wall));
    let alone = median(costs.iter().map(|(_, peer)| peer.wall));
    let added = median(costs.iter().map(|(ours, peer)| micros(ours.wall) - micros(peer.wall)));
    let cpu = median(costs.iter().map(|(ours, peer)| micros(ours.cpu) - micros(peer.cpu)));
    let ratio = wrapped.as_secs_f64() / alone.as_secs_f64();
    let (alone, wrapped) = (micros(alone), micros(wrapped));
    println!("{what:32} {alone:>8} µs {wrapped:>8} µs {ratio:>7.2} {added:>8} µs {cpu:>8} µs");
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap()
}

/// A hook directory with 20 files, of which 3 match a shell.
struct BenchHooks(tempfile::TempDir);

impl BenchHooks {
    fn new(directory: &Path) -> Self {
        let hooks = tempfile::tempdir_in(directory).unwrap();
        for number in 0..20 {
            let when = match number % 6 {
                5 => r#""commands": ["/sh$"], "always": true"#.to_owned(),
                0 => format!(r#""annotations": {{"^com\\.example\\.h{number}$": "^(true|yes)$"}}"#),
                1..3 => r#""hasBindMounts": true"#.to_owned(),
                _ => format!(r#""commands": ["^/usr/(local/)?bin/.*-{number}$"]"#),
            };
            // `create` does not run hooks of this stage, whose time would be measured too.
            let text = format!(
                r#"{{
    "version": "1.0.0",
    "hook": {{
        "path": "/bin/cat",
        "args": ["cat", "-"],
        "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "NUMBER={number}"],
        "timeout": 5
    }},
    "when": {{{when}}},
    "stages": ["poststop"]
}}
"#
            );
            fs::write(hooks.path().join(format!("{number:02}.json")), text).unwrap();
        }
        BenchHooks(hooks)
    }
}

/// A container that is created repeatedly.
struct BenchContainer<'h> {
    runtime: &'h Path,
    hooks: &'h BenchHooks,
    bundle: BusyboxBundle,
    without_hooks: Vec<u8>,
    with_hooks: Vec<u8>,
}

impl<'h> BenchContainer<'h> {
    fn new(runtime: &'h Path, hooks: &'h BenchHooks, directory: &Path) -> Self {
        program::require_root();
        let bundle = BusyboxBundle::new_in(directory, "exit 0");
        let without_hooks = fs::read(bundle.path().join("config.json")).unwrap();
        let mut container =
            BenchContainer { runtime, hooks, bundle, without_hooks, with_hooks: Vec::new() };
        container.create(true);
        container.with_hooks = fs::read(container.config()).unwrap();
        let count = container.bundle.config()["hooks"]["poststop"].as_array().map(Vec::len);
        assert_eq!(count, Some(3));
        container.delete();
        container
    }

    /// Measures `create`; without the wrapper, the runtime gets a configuration with the hooks.
    fn creations(&self) -> Vec<(RunCost, RunCost)> {
        let measure = |wrapped| {
            let cost = self.create(wrapped);
            self.delete();
            cost
        };
        pairs(RUNS, || measure(true), || measure(false))
    }

    /// Measures a command that is passed on.
    fn states(&self) -> Vec<(RunCost, RunCost)> {
        self.create(false);
        let measure = |wrapped| run(self.command(wrapped).args(["state", "bench"]));
        let costs = pairs(RUNS, || measure(true), || measure(false));
        self.delete();
        costs
    }

    fn create(&self, wrapped: bool) -> RunCost {
        let config = if wrapped { &self.without_hooks } else { &self.with_hooks };
        fs::write(self.config(), config).unwrap();
        run(self.command(wrapped).args(["create", "--bundle", self.bundle.path_str(), "bench"]))
    }

    fn delete(&self) {
        run(self.command(false).args(["delete", "--force", "bench"]));
    }

    fn command(&self, wrapped: bool) -> Command {
        let mut command = Command::new(if wrapped { Path::new(WRAPPER) } else { self.runtime });
        command.env("OCI_HOOKS_RUNTIME", self.runtime).env("OCI_HOOKS_DIRS", self.hooks.0.path());
        command.arg("--root").arg(self.bundle.path().join("state"));
        command
    }

    fn config(&self) -> PathBuf {
        self.bundle.path().join("config.json")
    }
}

/// Runs two commands in turn, `runs` times each after a warm-up, and returns the costs.
fn pairs(
    runs: usize,
    mut ours: impl FnMut() -> RunCost,
    mut peer: impl FnMut() -> RunCost,
) -> Vec<(RunCost, RunCost)> {
    ours();
    peer();
    (0..runs).map(|_| (ours(), peer())).collect()
}
