//! `oci-hooks-runtime create` against `runc create`: what hooks.d costs a container's start. Twenty
//! hook files are read, of which three match. Needs root, runc, and busybox from busybox-static.
//!
//! `cargo bench --features full --bench runtime`

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "prints figures; what fails panics")]

#[path = "support/mod.rs"]
mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use support::{Cost, median, pairs, run};

const RUNS: usize = 31;

fn main() {
    let temp = tempfile::tempdir().unwrap();
    let hooks = temp.path().join("hooks.d");
    make_hooks(&hooks);
    for (name, place) in [("disk", temp.path().join("bundle")), ("tmpfs", tmpfs())] {
        fs::create_dir_all(place.join("rootfs/bin")).unwrap();
        fs::copy("/bin/busybox", place.join("rootfs/bin/busybox")).unwrap();
        run(Command::new("runc").arg("spec").arg("--bundle").arg(&place));
        let config = fs::read_to_string(place.join("config.json")).unwrap();
        let config = config
            .replace("\"terminal\": true", "\"terminal\": false")
            .replace("\"sh\"\n", "\"/bin/busybox\", \"true\"\n");

        let create = |program: &str| -> Cost {
            fs::write(place.join("config.json"), &config).unwrap();
            let mut command = Command::new(program);
            command.env("OCI_HOOKS_DIRS", &hooks).arg("create").arg("--bundle").arg(&place);
            let cost = run(command.arg("oci-hooks-bench"));
            run(Command::new("runc").args(["delete", "--force", "oci-hooks-bench"]));
            cost
        };
        let ours = env!("CARGO_BIN_EXE_oci-hooks-runtime");
        report(
            &format!("create, bundle on {name}"),
            pairs(RUNS, || create(ours), || create("runc")),
        );
        fs::remove_dir_all(&place).unwrap();
    }
    let version = |program: &str| run(Command::new(program).arg("--version"));
    let ours = env!("CARGO_BIN_EXE_oci-hooks-runtime");
    report("--version, passed through", pairs(RUNS, || version(ours), || version("runc")));
}

fn report(what: &str, costs: Vec<(Cost, Cost)>) {
    let ours = median(costs.iter().map(|(ours, _)| ours.wall));
    let peer = median(costs.iter().map(|(_, peer)| peer.wall));
    let added = median(costs.iter().map(|(ours, peer)| {
        i128::try_from(ours.wall.as_micros()).unwrap()
            - i128::try_from(peer.wall.as_micros()).unwrap()
    }));
    println!(
        "{what}: {ours:.1?} with hooks.d, {peer:.1?} with runc alone; {added} µs more, ratio {:.2}",
        ours.as_secs_f64() / peer.as_secs_f64()
    );
}

fn tmpfs() -> std::path::PathBuf {
    Path::new("/dev/shm").join(format!("oci-hooks-bench-{}", std::process::id()))
}

fn make_hooks(dir: &Path) {
    fs::create_dir(dir).unwrap();
    for number in 0..20 {
        let when = match number % 7 {
            0 => r#""commands": ["/busybox$"]"#.to_owned(),
            1 => format!(r#""annotations": {{"^com\\.example\\.hook-{number}$": "^(true|yes)$"}}"#),
            _ => format!(r#""commands": ["^/usr/(local/)?bin/.*-{number}$"]"#),
        };
        let text = format!(
            r#"{{"version": "1.0.0", "hook": {{"path": "/bin/true", "env": ["PATH=/bin"], "timeout": 5}},
                "when": {{{when}}}, "stages": ["poststop"]}}"#
        );
        fs::write(dir.join(format!("{number:02}.json")), text).unwrap();
    }
}
