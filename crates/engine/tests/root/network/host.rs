//! A network namespace that plays the host, and one that plays the world.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use oci_hooks_engine::network::{Network, NetworkOptions, NetworkRequest};
use oci_hooks_host::metadata::{METADATA, MetadataAddress};
use oci_hooks_host::netns;
use oci_hooks_testsupport::program::{self, wait_until};

/// The host's address in the world.
pub(crate) const ADDRESS: &str = "198.51.100.1";
/// An address in the world.
pub(crate) const WORLD: &str = "198.51.100.2";
/// IPv6 counterparts of both.
pub(crate) const ADDRESS6: &str = "2001:db8::1";
pub(crate) const WORLD6: &str = "2001:db8::2";

/// Addresses of another program's guest on the host.
pub(crate) const GUEST: [&str; 2] = ["203.0.113.2", "2001:db8:1::2"];

pub(crate) struct NetworkHost {
    dir: tempfile::TempDir,
}

impl NetworkHost {
    pub(crate) fn new() -> Self {
        program::require_root();
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let host = NetworkHost { dir };
        netns::create(&host.pin("host"), None, || ()).unwrap();
        netns::create(&host.pin("world"), None, || ()).unwrap();
        host.run(|| {
            // Distributions differ in their defaults for reverse path filtering.
            for name in ["all", "default"] {
                set(&format!("net/ipv4/conf/{name}/rp_filter"), "0");
            }
            let mut process = Command::new("nsenter")
                .arg(format!("--net={}", host.pin("world").display()))
                .args(["sh", "-c", "echo; read end"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            // The process is in its namespace once it writes a line.
            std::io::Read::read_exact(process.stdout.as_mut().unwrap(), &mut [0]).unwrap();
            ip("link set lo up");
            ip(&format!("link add outside type veth peer name inside netns {}", process.id()));
            drop(process.stdin.take());
            process.wait().unwrap();
            ip(&format!("address add {ADDRESS}/24 dev outside"));
            ip(&format!("address add {ADDRESS6}/64 dev outside nodad"));
            ip("link set outside up");
            ip(&format!("route add default via {WORLD}"));
            ip(&format!("-6 route add default via {WORLD6}"));
        });
        host.run_outside(|| {
            ip("link set lo up");
            ip(&format!("address add {WORLD}/24 dev inside"));
            ip(&format!("address add {WORLD6}/64 dev inside nodad"));
            ip("link set inside up");
            for MetadataAddress { address, .. } in METADATA {
                let length = if address.is_ipv4() { "32" } else { "128 nodad" };
                ip(&format!("address add dev inside {address}/{length}"));
            }
        });
        host
    }

    /// Calls `work` on the host.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        netns::run_in_namespace(&self.pin("host"), work).unwrap()
    }

    /// Calls `work` in the world.
    pub(crate) fn run_outside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        netns::run_in_namespace(&self.pin("world"), work).unwrap()
    }

    pub(crate) fn options(&self) -> NetworkOptions {
        NetworkOptions::new(self.dir.path().join("run"))
    }

    pub(crate) fn network(&self, id: &str) -> Network {
        Network::create(&self.options(), &NetworkRequest::new(id)).unwrap()
    }

    /// Creates a network of another program with one guest, and returns the pin of the guest's namespace.
    pub(crate) fn guest(&self, interface: &str, kind: &str) -> PathBuf {
        let pin = self.pin("guest");
        netns::create(&pin, None, || ()).unwrap();
        let name = if kind == "bridge" { "port" } else { interface };
        ip(&format!("link add {name} type veth peer name guest"));
        ip(&format!("link set guest netns {}", pin.display()));
        let on_host = match kind {
            "bridge" => {
                ip(&format!("link add {interface} type bridge"));
                ip(&format!("link set {name} master {interface} up"));
                interface
            }
            _ => name,
        };
        ip(&format!("link set {on_host} up"));
        ip(&format!("address add 203.0.113.1/24 dev {on_host}"));
        ip(&format!("address add 2001:db8:1::1/64 dev {on_host} nodad"));
        netns::run_in_namespace(&pin, || {
            ip(&format!("address add {}/24 dev guest", GUEST[0]));
            ip(&format!("address add {}/64 dev guest nodad", GUEST[1]));
            ip("link set guest up");
            ip("route add default via 203.0.113.1");
            ip("-6 route add default via 2001:db8:1::1");
        })
        .unwrap();
        pin
    }

    /// Waits until nothing of networks is left: links, elements of maps, files and mounts.
    #[track_caller]
    pub(crate) fn expect_nothing_left(&self) {
        // The kernel removes links asynchronously.
        wait_until("no links are left", || !output("ip", &["-o", "link"]).contains("ocih"));
        let rules = output("nft", &["list", "ruleset"]);
        assert!(!rules.contains("oci_hooks") && !rules.contains("ocih"), "{rules}");
        let run = self.options().run;
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(run.to_str().unwrap()), "{mounts}");
        let files = std::fs::read_dir(run.join("network")).unwrap();
        let files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        assert_eq!(files, Vec::<PathBuf>::new());
    }

    fn pin(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for NetworkHost {
    fn drop(&mut self) {
        // Removes the networks of a failed test.
        let networks = std::fs::read_dir(self.options().run.join("network"));
        let ids: Vec<_> =
            networks.into_iter().flatten().flatten().map(|entry| entry.file_name()).collect();
        self.run(|| {
            for id in &ids {
                let _ = Network::remove_id(&self.options(), id.to_str().unwrap());
            }
        });
        for name in ["host", "world", "guest"] {
            let _ = netns::unpin(&self.pin(name));
        }
    }
}

/// Runs `ip` in the namespace of the calling thread.
#[track_caller]
pub(crate) fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

/// Runs a shell script in the namespace of the calling thread, expects success, and returns its output.
#[track_caller]
pub(crate) fn shell(script: &str) -> String {
    output("sh", &["-ec", script])
}

/// Runs `nft` in the namespace of the calling thread.
#[track_caller]
pub(crate) fn nft(command: &str) -> String {
    output("nft", &[command])
}

/// Sets a parameter of the namespace of the calling thread.
pub(crate) fn set(name: &str, value: &str) {
    std::fs::write(Path::new("/proc/sys").join(name), value).unwrap();
}

#[track_caller]
fn output(name: &str, arguments: &[&str]) -> String {
    let program = program::find(name);
    let output = Command::new(Path::new(&program)).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} {arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}
