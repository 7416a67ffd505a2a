//! Compares `oci-hooks inject` with many hook files to a program that only reads and parses these
//! files, the minimum for any program, and to podman's Go code if `OCI_HOOKS_BENCH_PEER` is set.
//! Prints CPU time, its ratio, and peak memory.
//!
//! `cargo bench --bench inject`; `contrib/bench-inject` builds the Go program first.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "prints figures; what fails panics")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::resource::{UsageWho, getrusage};
use oci_hooks_testsupport::measure::{median, run};

const RUNS: usize = 21;

/// Environment variable with the path of the program that runs podman's Go code.
const PEER: &str = "OCI_HOOKS_BENCH_PEER";

fn main() {
    let args: Vec<_> = std::env::args().collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [_, "floor", dir, _config] => floor(Path::new(dir)),
        [_, "peak", program, args @ ..] => print_peak(Command::new(program).args(args)),
        _ => measure(),
    }
}

/// A program to measure.
struct BenchProgram {
    name: &'static str,
    path: PathBuf,
    /// Arguments before the directory and the configuration.
    args: &'static [&'static str],
}

impl BenchProgram {
    fn command(&self, dir: &Path, config: &Path) -> Command {
        let mut command = Command::new(&self.path);
        command.args(self.args).arg(dir).arg(config);
        command
    }
}

fn programs() -> Vec<BenchProgram> {
    let ours = env!("CARGO_BIN_EXE_oci-hooks").into();
    let this = std::env::current_exe().unwrap();
    let mut programs = vec![
        BenchProgram { name: "inject", path: ours, args: &["inject", "--hooks-dir"] },
        BenchProgram { name: "floor", path: this, args: &["floor"] },
    ];
    if let Some(peer) = std::env::var_os(PEER) {
        programs.push(BenchProgram { name: "podman's Go", path: peer.into(), args: &[] });
    }
    programs
}

fn measure() {
    let temp = tempfile::tempdir().unwrap();
    let config = temp.path().join("config.json");
    fs::write(&config, CONFIG).unwrap();
    let load = fs::read_to_string("/proc/loadavg").unwrap();
    println!("CPU time, median and least of {RUNS} runs in turn; load {}", load.trim());
    println!("the floor reads and parses with serde_json; memory is the peak of what is resident");
    let programs = programs();
    for count in [1, 100, 1000, 5000] {
        let dir = temp.path().join(format!("hooks-{count}"));
        make_hooks(&dir, count);
        let mut times = vec![Vec::new(); programs.len()];
        for _ in 0..=RUNS {
            for (program, times) in programs.iter().zip(&mut times) {
                times.push(run(&mut program.command(&dir, &config)).cpu.as_micros());
            }
        }
        // The first run of each program is a warm-up.
        let times: Vec<_> = times.iter().map(|times| &times[1..]).collect();
        let medians: Vec<_> = times.iter().map(|times| median(times.iter().copied())).collect();
        println!("\n{count} hook files");
        for ((program, times), middle) in programs.iter().zip(times).zip(&medians) {
            let least = times.iter().min().unwrap();
            println!(
                "{:>12}: {middle:>7} µs, least {least:>7} µs; inject takes {:.2} of it; {:>6} kB",
                program.name,
                ratio(medians[0], *middle),
                peak(&program.command(&dir, &config)),
            );
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "microseconds of a short run")]
fn ratio(ours: u128, other: u128) -> f64 {
    ours as f64 / other.max(1) as f64
}

/// Returns the peak memory of a command in KiB. The system reports it for all children together, so
/// the command runs as the only child of a separate process.
fn peak(command: &Command) -> u64 {
    let mut alone = Command::new(std::env::current_exe().unwrap());
    alone.arg("peak").arg(command.get_program()).args(command.get_args());
    let output = alone.output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

fn print_peak(command: &mut Command) {
    run(command);
    println!("{}", getrusage(UsageWho::RUSAGE_CHILDREN).unwrap().max_rss());
}

/// Lists, reads and parses the files, and does nothing else.
fn floor(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap() {
        let text = fs::read(entry.unwrap().path()).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&text).unwrap();
        std::hint::black_box(value);
    }
}

/// Writes typical hook files, no two with the same patterns.
fn make_hooks(dir: &Path, count: u128) {
    fs::create_dir(dir).unwrap();
    for number in 0..count {
        let when = match number % 5 {
            0 => format!(r#""commands": [".*/tool-{number}$"]"#),
            1 => format!(r#""annotations": {{"^com\\.example\\.hook-{number}$": "^(true|yes)$"}}"#),
            2 => format!(r#""commands": ["^/usr/(local/)?bin/.*-{number}$"]"#),
            3 => format!(
                r#""hasBindMounts": true, "annotations": {{"^io\\.example\\.a{number}$": ".*"}}"#
            ),
            _ => r#""always": true, "commands": ["/none$"]"#.to_owned(),
        };
        let text = format!(
            r#"{{
    "version": "1.0.0",
    "hook": {{
        "path": "/bin/true",
        "args": ["true", "--hook", "{number}"],
        "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
        "timeout": 5
    }},
    "when": {{{when}}},
    "stages": ["createRuntime", "poststop"]
}}
"#
        );
        fs::write(dir.join(format!("{number:05}-hook.json")), text).unwrap();
    }
}

const CONFIG: &str = r#"{
    "ociVersion": "1.0.2",
    "process": {"args": ["/usr/bin/python3", "-m", "http.server"], "cwd": "/"},
    "root": {"path": "rootfs"},
    "annotations": {"io.container.manager": "podman", "org.example.stage": "ci"},
    "mounts": [{"destination": "/data", "type": "bind", "source": "/srv", "options": ["rbind"]}]
}
"#;
