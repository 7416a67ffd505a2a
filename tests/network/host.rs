//! A network namespace that plays the host, and one that plays the world.

use std::path::Path;
use std::process::Command;

use oci_hooks::network::{NetworkOptions, Subnet};
use oci_hooks::sys::netns;

use crate::support::program;

/// The host's address in the world.
pub(crate) const ADDRESS: &str = "198.51.100.1";
/// An address in the world.
pub(crate) const WORLD: &str = "198.51.100.2";

pub(crate) struct Host {
    dir: tempfile::TempDir,
}

impl Host {
    pub(crate) fn new() -> Self {
        program::require_root();
        let dir = tempfile::tempdir().unwrap();
        let host = Host { dir };
        netns::create(&host.pin("host"), || ()).unwrap();
        netns::create(&host.pin("world"), || ()).unwrap();
        let world = host.pin("world");
        host.run(|| {
            ip("link set lo up");
            ip("link add outside type veth peer name inside");
            let process = Command::new("nsenter")
                .arg(format!("--net={}", world.display()))
                .args(["sleep", "60"])
                .spawn();
            let mut process = process.unwrap();
            // The process is in its namespace as soon as it is `sleep`.
            crate::eventually("nsenter runs", || {
                std::fs::read_to_string(format!("/proc/{}/comm", process.id())).unwrap()
                    == "sleep\n"
            });
            ip(&format!("link set inside netns {}", process.id()));
            process.kill().unwrap();
            process.wait().unwrap();
            ip(&format!("address add {ADDRESS}/24 dev outside"));
            ip("link set outside up");
            ip(&format!("route add 169.254.169.254 via {WORLD}"));
        });
        host.outside(|| {
            ip("link set lo up");
            ip(&format!("address add {WORLD}/24 dev inside"));
            ip("address add 169.254.169.254/32 dev inside");
            ip("link set inside up");
        });
        host
    }

    /// Runs something on the host.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        netns::within(&self.pin("host"), work).unwrap()
    }

    /// Runs something out in the world.
    pub(crate) fn outside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        netns::within(&self.pin("world"), work).unwrap()
    }

    pub(crate) fn options(&self) -> NetworkOptions {
        NetworkOptions {
            run: self.dir.path().join("run"),
            pool: Subnet::default(),
            pool6: Subnet::default(),
            host_access: true,
        }
    }

    /// Returns what is left of networks: links, elements of maps, files and mounts.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let links = output("ip", &["-o", "link"]);
        let rules = output("nft", &["list", "ruleset"]);
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let run = self.dir.path().join("run");
        let mut found: Vec<_> = links.lines().filter(|line| line.contains("ocih")).collect();
        found.extend(rules.lines().filter(|line| line.contains("elements")));
        found.extend(mounts.lines().filter(|line| line.contains(run.to_str().unwrap())));
        let mut found: Vec<_> = found.into_iter().map(str::to_owned).collect();
        let files = std::fs::read_dir(run.join("network")).unwrap();
        found.extend(files.map(|file| file.unwrap().path().display().to_string()));
        found
    }

    fn pin(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        for name in ["host", "world"] {
            let _ = netns::unpin(&self.pin(name));
        }
    }
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

fn output(name: &str, arguments: &[&str]) -> String {
    let program = program::find(name);
    let output = Command::new(Path::new(&program)).args(arguments).output().unwrap();
    assert!(output.status.success(), "{name} {arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}
