//! Time and memory of `oci-hooks-nri` for recorded requests of containerd, with different numbers of hook
//! files, two of which match.
//!
//! `cargo bench -p oci-hooks-nri --bench nri`; a peer can be given as a shell command, such as the
//! reference plugin, whose directories are fixed:
//!
//! ```sh
//! cargo bench -p oci-hooks-nri --bench nri -- "exec unshare --mount sh -c 'mount --bind {dir} \
//!     /usr/share/containers/oci/hooks.d && exec ./hook-injector -idx 20 -socket-path {socket}'"
//! ```

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "prints figures; what fails panics")]

#[path = "../tests/all/runtime.rs"]
#[expect(dead_code, reason = "tests use the rest")]
mod runtime;

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use runtime::SimulatedRuntime;

const REQUESTS: usize = 2000;

/// `USER_HZ`, which is 100 on the architectures that we build for.
const TICKS_PER_SECOND: u64 = 100;

const REQUEST: &[u8] = include_bytes!("../tests/data/create-containerd-1.7.24.bin");

fn main() {
    let peer = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    println!("{REQUESTS} requests of containerd 1.7, one after the other");
    println!(
        "{:>6} {:>8} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "files", "", "median", "99 %", "CPU", "memory", "peak"
    );
    for count in [2, 10, 100, 1000] {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("hooks.d");
        make_hooks(&dir, count);
        let mut ours = Command::new(env!("CARGO_BIN_EXE_oci-hooks-nri"));
        let socket = temp.path().join("nri.sock");
        ours.arg("--hooks-dir").arg(&dir).arg("--socket").arg(&socket);
        ours.arg("--metrics").arg(temp.path().join("metrics.prom"));
        measure("ours", count, ours, &socket);
        if let Some(peer) = &peer {
            let peer = peer.replace("{dir}", dir.to_str().unwrap());
            let peer = peer.replace("{socket}", socket.to_str().unwrap());
            let mut command = Command::new("sh");
            command.arg("-c").arg(peer);
            measure("peer", count, command, &socket);
        }
    }
}

fn measure(name: &str, files: usize, mut command: Command, socket: &Path) {
    let _ = fs::remove_file(socket);
    let listener = UnixListener::bind(socket).unwrap();
    let mut plugin = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let (connection, _) = listener.accept().unwrap();
    let mut runtime = SimulatedRuntime::new(connection);
    runtime.register();
    runtime.configure("").unwrap();
    runtime.call("Synchronize", Vec::new()).unwrap();
    let before = cpu(&plugin);
    let mut times: Vec<Duration> = (0..REQUESTS)
        .map(|_| {
            let start = Instant::now();
            let response = runtime.replay(REQUEST).unwrap();
            assert!(!response.is_empty(), "two hooks match");
            start.elapsed()
        })
        .collect();
    times.sort();
    let status = fs::read_to_string(format!("/proc/{}/status", plugin.id())).unwrap();
    let kilobytes = |name| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    println!(
        "{files:>6} {name:>8} {:>7} µs {:>7} µs {:>7} µs {:>7} kB {:>7} kB",
        times[REQUESTS / 2].as_micros(),
        times[REQUESTS * 99 / 100].as_micros(),
        (cpu(&plugin) - before).as_micros() / REQUESTS as u128,
        kilobytes("VmRSS:"),
        kilobytes("VmHWM:"),
    );
    plugin.kill().unwrap();
    plugin.wait().unwrap();
}

/// Returns the CPU time of all threads so far.
fn cpu(process: &Child) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let ticks: u64 =
        fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND)
}

/// Writes typical hook files; the first two match.
fn make_hooks(dir: &Path, count: usize) {
    fs::create_dir(dir).unwrap();
    for number in 0..count {
        let when = match number {
            0 => r#""commands": ["^/bin/false$"]"#.to_owned(),
            1 => {
                r#""annotations": {"^io\\.kubernetes\\.cri\\.image-name$": "/busybox:"}"#.to_owned()
            }
            _ if number % 2 == 0 => format!(r#""commands": ["^/usr/(local/)?bin/.*-{number}$"]"#),
            _ => format!(r#""annotations": {{"^com\\.example\\.hook-{number}$": "^(true|yes)$"}}"#),
        };
        let text = format!(
            r#"{{"version": "1.0.0", "hook": {{"path": "/bin/true", "args": ["true", "{number}"],
            "timeout": 10}}, "when": {{{when}}}, "stages": ["createRuntime", "poststop"]}}"#
        );
        fs::write(dir.join(format!("{number:04}.json")), text).unwrap();
    }
}
