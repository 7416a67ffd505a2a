//! `oci-hooks inject` with many hook files against reading and parsing the same files and nothing
//! else: the least that any program must do. Prints CPU time and the ratio.
//!
//! `cargo bench --bench inject`

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "prints figures; what fails panics")]

#[path = "support/mod.rs"]
mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use support::{Cost, median, pairs, run};

const RUNS: usize = 11;

fn main() {
    let args: Vec<_> = std::env::args().collect();
    if let [_, command, dir] = args.as_slice()
        && command == "floor"
    {
        return floor(Path::new(dir));
    }

    let temp = tempfile::tempdir().unwrap();
    let config = temp.path().join("config.json");
    fs::write(&config, CONFIG).unwrap();
    println!("CPU time, median of {RUNS} runs in turn; the floor reads and parses with serde_json");
    println!(
        "{:>6} {:>12} {:>12} {:>8} {:>16}",
        "files", "inject", "floor", "ratio", "inject per file"
    );
    for count in [1, 100, 1000, 5000] {
        let dir = temp.path().join(format!("hooks-{count}"));
        make_hooks(&dir, count);
        let this = std::env::current_exe().unwrap();
        let costs = pairs(
            RUNS,
            || {
                let mut command = Command::new(env!("CARGO_BIN_EXE_oci-hooks"));
                run(command.arg("inject").arg("--hooks-dir").arg(&dir).arg(&config))
            },
            || run(Command::new(&this).arg("floor").arg(&dir)),
        );
        let ours = median(costs.iter().map(|(ours, _)| cpu(*ours)));
        let floor = median(costs.iter().map(|(_, floor)| cpu(*floor)));
        #[expect(clippy::cast_precision_loss, reason = "microseconds of a short run")]
        let ratio = ours as f64 / floor.max(1) as f64;
        println!("{count:>6} {ours:>9} µs {floor:>9} µs {ratio:>8.2} {:>13} µs", ours / count);
    }
}

fn cpu(cost: Cost) -> u128 {
    cost.cpu.as_micros()
}

/// Lists, reads and parses, as a program without any other duty would.
fn floor(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap() {
        let text = fs::read(entry.unwrap().path()).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&text).unwrap();
        std::hint::black_box(value);
    }
}

/// Writes hook files as they are met in practice, no two with the same patterns.
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
