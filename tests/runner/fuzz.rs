//! Requests of a hostile runner by sudo: whatever they name, nothing changes but what is the runner's.

use std::fmt::Write as _;
use std::thread;

use serde_json::{Value, json};

use crate::setup::{Canary, shell_step};
use crate::sudo::unprivileged;
use crate::support::github_runner::{Runner, merge, mount, volume};
use crate::support::host::Host;
use crate::support::hub::{Name, Registry};
use crate::support::installation::Installation;
use crate::support::runtime::Runtime;

const REQUESTS: usize = 2_000;

/// How many requests are carried out at a time.
const AT_ONCE: usize = 4;

const SEED: u64 = 0x5eed_0f0c_1400_6b75;

/// Random numbers that are the same each time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }

    fn one_of<'t>(&mut self, list: &'t [String]) -> &'t str {
        &list[self.below(list.len())]
    }
}

/// Returns what requests name: what is not the runner's, in many ways.
fn hostile_paths(home: &str) -> Vec<String> {
    let mut paths: Vec<String> = [
        "/",
        "/etc",
        "/etc/shadow",
        "/etc/made",
        "/proc/self",
        "/proc/self/root",
        "/proc/1/root/etc",
        "/dev",
        "/dev/null",
        "/run/canary",
        "/run/canary/file",
        "/run/canary/made",
        "/run",
        "/home",
        "../../",
        "",
        ".",
        "/etc/line\nbreak",
        "/run/../etc",
        "//etc//",
        "/sys/kernel",
        "/root/made",
    ]
    .map(str::to_owned)
    .to_vec();
    paths.push(format!("/run/{}", "x".repeat(300)));
    paths.push(format!("/run{}", "/deep".repeat(1000)));
    for name in [
        "",
        "_work",
        "_work/_temp",
        "_work/repo/repo",
        "../..",
        "to-root",
        "to-etc",
        "to-etc/made",
        "to-canary",
        "to-canary/file",
        "to-canary/made",
        "to-shadow",
        "to-self/root/etc",
        "fifo",
        "socket",
        "_work/to-canary/made",
        "_work/_temp/../../../../../etc",
        "new",
        "Dockerfile",
        "to-canary/Dockerfile",
        "line\nbreak",
    ] {
        paths.push(format!("{home}/{name}"));
    }
    paths
}

fn request(numbers: &mut Numbers, paths: &[String], runner: &Runner<'_>) -> Value {
    let container = |numbers: &mut Numbers| {
        let mut args = merge(runner.job_container("alpine:3.20"), shell_step("true"));
        for _ in 0..=numbers.below(2) {
            let (path, target) = (numbers.one_of(paths), numbers.one_of(paths));
            match numbers.below(6) {
                0 => args["systemMountVolumes"] = json!([mount(path, "/x", false)]),
                1 => args["systemMountVolumes"] = json!([mount(runner.work(), target, false)]),
                2 => args["userMountVolumes"] = json!([volume(path, target, false)]),
                3 => {
                    args["image"] = Value::Null;
                    args["dockerfile"] = json!(path);
                }
                4 => args["workingDirectory"] = json!(path),
                _ => args["createOptions"] = json!(format!("-v \"{path}:{target}\"")),
            }
        }
        args
    };
    let (command, args) = match numbers.below(8) {
        0..=2 => ("prepare_job", json!({"container": container(numbers), "services": []})),
        3..=5 => ("run_container_step", container(numbers)),
        6 => {
            let mut args = runner.script_args("true", &[], &[], "x");
            args["workingDirectory"] = json!(numbers.one_of(paths));
            ("run_script_step", args)
        }
        _ => ("cleanup_job", json!({})),
    };
    let own = format!("{}/answer.json", runner.home().display());
    let answer = if numbers.below(2) == 0 { own.as_str() } else { numbers.one_of(paths) };
    json!({"command": command, "responseFile": answer, "args": args, "state": {}})
}

/// Returns all that is not the runners': what is of the program's own is left out.
fn outside(host: &Host) -> String {
    let own = "-path /run/oci-hooks -prune -o -path /run/netns -prune -o -path /run/sudo -prune -o \
               -path /run/runc -prune -o -path /run/crun -prune -o -path /run/lock -prune -o";
    host.shell(&format!(
        "find /etc /run {own} -printf '%p %u %m %l\\n' | sort; \
         find /etc /run/canary -type f -exec sha256sum {{}} + | sort; \
         find / /home -xdev -maxdepth 2 ! -path '/run*' ! -path '/proc*' ! -path '/tmp*' \
             ! -path '/dev*' -printf '%p %u %m\\n' | sort"
    ))
}

#[test]
fn random_requests_by_sudo_change_nothing_outside() {
    let host = Host::new();
    let _hub = Registry::start(&host, Name::Hub, None);
    let installation = Installation::new(&host, Runtime::Runc, "");
    let canary = Canary::new(&host);
    let mut first = unprivileged(&installation);
    first.container_step(shell_step("true")).0.success();
    let home = first.home().display().to_string();
    host.shell(&format!(
        "cd {home}; ln -s / to-root; ln -s /etc to-etc; ln -s /run/canary to-canary; \
         ln -s /etc/shadow to-shadow; ln -s /proc/self to-self; ln -s /run/canary _work/to-canary; \
         mkfifo fifo; printf 'FROM alpine:3.20\\nCOPY to-shadow fifo /\\n' >Dockerfile; \
         chown -hR 1:1 ."
    ));
    let _socket = std::os::unix::net::UnixListener::bind(first.home().join("socket")).unwrap();
    let paths = hostile_paths(&home);
    let before = outside(&host);
    println!("seed {SEED:#x}");
    thread::scope(|scope| {
        for number in 0..AT_ONCE {
            let (first, paths) = (&first, &paths);
            scope.spawn(move || {
                let mut numbers = Numbers(SEED ^ (number as u64 + 1));
                for _ in 0..REQUESTS / AT_ONCE {
                    let request = request(&mut numbers, paths, first).to_string();
                    let ended = first.start_raw(request.clone().into_bytes(), None).wait();
                    let log = ended.log();
                    assert!(!log.contains("panicked at"), "{request}: {log}");
                }
            });
        }
    });
    canary.check("requests");
    first.cleanup();
    let after = outside(&host);
    let mut changes = String::new();
    for line in after.lines().filter(|line| !before.contains(line)) {
        writeln!(changes, "new: {line}").unwrap();
    }
    for line in before.lines().filter(|line| !after.contains(line)) {
        writeln!(changes, "gone: {line}").unwrap();
    }
    assert_eq!(changes, "");
}
